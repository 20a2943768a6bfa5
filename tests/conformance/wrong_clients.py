"""Clients with one fault each: the plain client with one method changed. Each is caught by a scenario, for its reason."""

from conformance.plain_client import PlainClient


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


def all_wrong(kind=WrongClient):
    """Every client with a fault."""
    from conformance import (
        wrong_askers,
        wrong_decoders,
        wrong_folders,
        wrong_lines,
        wrong_provers,
        wrong_rarely,
        wrong_readers,
        wrong_resumers,
        wrong_states,
        wrong_users,
        wrong_waiters,
    )

    assert {
        wrong_askers,
        wrong_decoders,
        wrong_folders,
        wrong_lines,
        wrong_provers,
        wrong_rarely,
        wrong_readers,
        wrong_resumers,
        wrong_states,
        wrong_users,
        wrong_waiters,
    }
    for client in kind.__subclasses__():
        yield client
        yield from all_wrong(client)
