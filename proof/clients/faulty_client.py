"""Clients with one fault each: the plain client with one method changed. Each is caught by a scenario, for its reason."""

from importlib import import_module
from pathlib import Path

from conformance.plain_client import PlainClient
from conformance.plain_state import Decoder, Json, State


class WrongClient(PlainClient):
    """`scenario` has to catch it, with a finding that is about `kind`, as a breach of the sentence `breaks`."""

    scenario: str
    kind: str
    breaks = ""
    """By default the sentence that its scenario is for."""
    control = "ended-before-it-was-read"
    """A scenario that has nothing to do with the fault, and passes."""
    patience = 0.0
    """A factor to the time that the scenario gives it; by default a short one where it hangs, which has to be waited for."""
    is_costly = False
    """Whether it takes seconds to catch it."""

    def __init_subclass__(cls):
        """A decoder, a state or a reader of JSON that stands within is the one that the client has."""
        super().__init_subclass__()
        for part in [each for each in vars(cls).values() if isinstance(each, type)]:
            for name, right in (("decoder", Decoder), ("state_type", State), ("json", Json)):
                if issubclass(part, right):
                    setattr(cls, name, part)


def all_wrong(kind=WrongClient):
    """Every client with a fault."""
    for file in sorted(Path(__file__).parent.glob("wrong_*.py")):
        import_module(f"conformance.{file.stem}")
    for client in kind.__subclasses__():
        yield client
        yield from all_wrong(client)
