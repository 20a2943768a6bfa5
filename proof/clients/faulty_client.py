"""Base class and registry of the faulty clients. Each faulty client overrides one method or part of the plain client."""

import re
from importlib import import_module
from pathlib import Path

from proof.reimplementations.plain_client import PlainClient
from proof.reimplementations.plain_state import Decoder, Json, State


class FaultyClient(PlainClient):
    """Base class of faulty clients. The attribute `scenario` names the scenario that must report the fault."""

    scenario: str
    """Name of the scenario that must fail."""
    kind: str
    """Category of the expected finding, see `Finding.kind`."""
    breaks = ""
    """The requirement that the finding must name; by default the first requirement of the scenario."""
    control = "ended-before-it-was-read"
    """Name of a scenario that is unrelated to the fault and must pass."""
    patience = 0.0
    """Factor for the scenario's time limits. 0 selects a default, which is shorter if the client is expected to hang."""
    is_costly = False
    """Whether the scenario takes several seconds."""

    def __init_subclass__(cls):
        """If the class body defines a subclass of a part of the plain client, use the subclass instead of the part.

        The parts are the decoder, the state and the JSON parser.
        """
        super().__init_subclass__()
        for part in [each for each in vars(cls).values() if isinstance(each, type)]:
            for name, right in (("decoder", Decoder), ("state_type", State), ("json", Json)):
                if issubclass(part, right):
                    setattr(cls, name, part)


def changed(part, **members):
    """Return a subclass of a part of the plain client that overrides these members."""
    return type(f"Changed{part.__name__}", (part,), members)


def words_of(name):
    """Split the name of a class, such as `SendsNoCursor`, into words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z0-9])(?=[A-Z][a-z])", " ", name).lower()


def all_faulty_clients(kind=FaultyClient):
    """Iterate over all faulty clients."""
    for file in sorted(Path(__file__).parent.glob("*_faults.py")):
        import_module(f"{__package__}.{file.stem}")
    for client in kind.__subclasses__():
        yield client
        yield from all_faulty_clients(client)
