"""Checks for section 3.5: the size limits of events and states."""

from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

MAX_TESTED_STATE = 16 * 2**20
"""Largest `max_state_bytes` that the suite tests. The test of a larger limit would need a job with a very large state."""


@check("TW-FRM-047", "TW-FRM-048", whole_run=True)
async def events_stay_within_size_limits(s: Session) -> None:
    """The data of a snapshot has at most `max_state_bytes`, and the data of any other event at most `max_event_bytes`."""
    limits = s.server.limits
    for each in s.streams():
        for block in each.events:
            name, requirement = (
                ("max_state_bytes", "TW-FRM-048")
                if block.type == "snapshot"
                else ("max_event_bytes", "TW-FRM-047")
            )
            s.expect(requirement, len(block.data) <= limits.get(name, len(block.data)),
                     f"at most {limits.get(name)} bytes of data", len(block.data), at=each, block=block)  # fmt: skip


@check("TW-FRM-050", serial=True)
async def oversized_state_fails_the_job(s: Session) -> None:
    """A job fails with `state_too_large` if its snapshot would exceed `max_state_bytes`."""
    limit = s.server.limits.get("max_state_bytes", 0)
    if limit > MAX_TESTED_STATE:
        s.skip_untested(
            f"max_state_bytes is {limit}, but the suite tests limits of at most {MAX_TESTED_STATE}"
        )
    sample = s.script_sample({"bytes": limit + 1})
    _, history = await s.run_to_end(sample)
    done = history.of_type("done")[0].members
    s.expect(
        "TW-FRM-050",
        done.get("error", {}).get("code") == "state_too_large",
        "state_too_large",
        done,
        at=history,
    )


@check("TW-FRM-081", "TW-FRM-047")
async def long_text_is_split_over_several_events(s: Session) -> None:
    """A text that is longer than `max_event_bytes` is complete at the end, and no diff is longer than this limit."""
    limits = s.server.limits
    size = limits.get("max_event_bytes", 0) + 1000
    if size > 2 * 2**20 or size + 2000 > limits.get("max_state_bytes", 0):
        s.skip_untested(
            f"max_event_bytes is too large for the suite or too close to max_state_bytes: {size - 1000}"
        )
    sample = s.script_sample({"bytes": size})
    job, history = await s.run_to_end(sample)
    longest = max((len(block.data) for block in history.of_type("message")), default=0)
    s.expect("TW-FRM-047", longest < size, f"at most {size - 1000} bytes of data", longest, at=history)
    value = s.items(await s.read(job))[0]["value"]
    s.expect(
        "TW-FRM-081",
        isinstance(value, str) and len(value) == size,
        f"{size} characters",
        len(value),
        at=history,
    )
