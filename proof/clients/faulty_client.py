"""Faulty clients: the plain client with one method changed. A scenario notices each, by the requirement that it breaks."""

from importlib import import_module
from pathlib import Path

from proof.reimplementations.plain_client import PlainClient
from proof.reimplementations.plain_state import Decoder, Json, State


class FaultyClient(PlainClient):
    """`scenario` has to catch it, with a finding that is about `kind`, as a breach of the requirement `breaks`."""

    scenario: str
    kind: str
    breaks = ""
    """By default the first requirement of its scenario."""
    control = "ended-before-it-was-read"
    """A scenario that has nothing to do with the fault, and passes."""
    patience = 0.0
    """A factor to the time that the scenario gives it; by default a short one where it hangs, which has to be waited for."""
    is_costly = False
    """Whether it takes seconds to notice it."""

    def __init_subclass__(cls):
        """Use a decoder, state or JSON reader that is defined within the class in place of the plain client's."""
        super().__init_subclass__()
        for part in [each for each in vars(cls).values() if isinstance(each, type)]:
            for name, right in (("decoder", Decoder), ("state_type", State), ("json", Json)):
                if issubclass(part, right):
                    setattr(cls, name, part)


def all_faulty_clients(kind=FaultyClient):
    """Every client with a fault."""
    for file in sorted(Path(__file__).parent.glob("*_faults.py")):
        import_module(f"{__package__}.{file.stem}")
    for client in kind.__subclasses__():
        yield client
        yield from all_faulty_clients(client)
