"""Clients with one fault each: the plain client with one method changed. Each is caught by a scenario, for its reason."""

from conformance.plain_client import PlainClient


class WrongClient(PlainClient):
    """`scenario` has to catch it, with a finding that is about `kind`."""

    scenario: str
    kind: str
    control = "ended-before-it-was-read"
    """A scenario that has nothing to do with the fault, and passes."""
    patience = 0.3
    """A factor to the time that the scenario gives it: some hang."""


def all_wrong(kind=WrongClient):
    """Every client with a fault."""
    from conformance import wrong_askers, wrong_readers, wrong_waiters

    assert {wrong_askers, wrong_readers, wrong_waiters}
    for client in kind.__subclasses__():
        yield client
        yield from all_wrong(client)
