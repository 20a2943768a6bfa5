"""Checks for section 3.5: the size limits of events and states."""

import json

from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session
from tidewire_conformance.wire.event_stream_decoder import Block

MAX_OPS = 10_000
"""Default of `max_event_ops`, the maximum number of operations in a diff, and the largest value that a server may declare."""

MAX_TESTED_EVENT = 2 * 2**20
"""Largest `max_event_bytes` that the suite tests with a longer text."""
MAX_TESTED_STATE = 16 * 2**20
"""Largest `max_state_bytes` that the suite tests. The test of a larger limit would need a job with a very large state."""


@check("TW-FRM-047", "TW-FRM-048", "TW-DIF-071", whole_run=True)
async def events_stay_within_size_limits(s: Session) -> None:
    """The data of a snapshot has at most `max_state_bytes`, and the data of any other event at most `max_event_bytes`. A
    diff has at most `max_event_ops` ops.
    """
    limits = s.server.limits
    max_ops = _max_ops(s)
    for each in s.streams():
        for block in each.events:
            name, requirement = (
                ("max_state_bytes", "TW-FRM-048")
                if block.type == "snapshot"
                else ("max_event_bytes", "TW-FRM-047")
            )
            size, most = len(block.data), limits.get(name, len(block.data))
            s.at(each, block).expect(requirement, size <= most, f"at most {most} bytes of data", size)
            count = _op_count(block)
            s.at(each, block).expect("TW-DIF-071", count <= max_ops, f"at most {max_ops} ops", count)


def _max_ops(s: Session) -> int:
    declared = s.server.limits.get("max_event_ops", MAX_OPS)
    return declared if type(declared) is int and 0 < declared <= MAX_OPS else MAX_OPS


def _limit(s: Session, name: str, most: int) -> int:
    """Return a limit of the server. If it is larger than the suite tests, skip the check."""
    limit = s.server.limits.get(name, 0)
    if limit > most:
        s.skip_untested(f"{name} is {limit}, but the suite tests limits of at most {most}")
    return limit


def _op_count(block: Block) -> int:
    if block.type != "message":
        return 0
    diff = block.json
    ops = diff.get("ops") if isinstance(diff, dict) else diff
    return len(ops) if isinstance(ops, list) else 1


@check("TW-DIF-071", "TW-FRM-081")
async def change_of_many_ops_is_split_over_several_events(s: Session) -> None:
    """A change that needs more operations than one diff may have is sent in several events, and is complete at the end."""
    max_ops = _max_ops(s)
    count = max_ops + max_ops // 10
    # Long elements make the operations that append to them shorter than one operation that sets the whole array.
    values = [[f"{index} {'x' * 40}{ending}" for index in range(count)] for ending in ("", "y")]
    sample = s.script_sample(*({"emit": value} for value in values))
    limits = s.server.limits
    if len(str(sample.body)) > min(limits.get("max_body_bytes", 0), limits.get("max_state_bytes", 0)):
        s.skip_untested(f"max_body_bytes or max_state_bytes is too small for a change of {count} ops")
    job, history = await s.run_to_end(sample)
    most = max(map(_op_count, history.events))
    s.at(history).expect("TW-DIF-071", most <= max_ops, f"at most {max_ops} ops", most)
    value = s.items(await s.read(job))[0]["value"]
    s.at(history).equal("TW-FRM-081", value, values[1], "the last array")


@check("TW-FRM-050")
async def oversized_state_fails_the_job(s: Session) -> None:
    """A job fails with `state_too_large` if its snapshot would exceed `max_state_bytes`."""
    sample = s.script_sample({"bytes": _limit(s, "max_state_bytes", MAX_TESTED_STATE) + 1})
    _, history = await s.run_to_end(sample)
    done = history.of_type("done")[0].members
    s.at(history).expect(
        "TW-FRM-050", done.get("error", {}).get("code") == "state_too_large", "state_too_large", done
    )


@check("TW-FRM-081", "TW-FRM-047")
async def long_text_is_split_over_several_events(s: Session) -> None:
    """A text that is longer than `max_event_bytes` is sent in several events and is complete at the end."""
    limits = s.server.limits
    size = limits.get("max_event_bytes", 0) + 1000
    if size - 1000 > MAX_TESTED_EVENT or size + 2000 > limits.get("max_state_bytes", 0):
        s.skip_untested(
            f"max_event_bytes is too large for the suite or too close to max_state_bytes: {size - 1000}"
        )
    sample = s.script_sample({"bytes": size})
    job, history = await s.run_to_end(sample)
    longest = max((len(block.data) for block in history.of_type("message")), default=0)
    s.at(history).expect("TW-FRM-047", longest < size, f"at most {size - 1000} bytes of data", longest)
    value = s.items(await s.read(job))[0]["value"]
    s.at(history).expect(
        "TW-FRM-081", isinstance(value, str) and len(value) == size, f"{size} characters", len(value)
    )


@check("TW-FRM-082")
async def long_result_is_set_in_one_event(s: Session) -> None:
    """At an endpoint that does not stream, a result that is longer than `max_event_bytes` is set in a snapshot. The check
    tests a job with one input, and a batch.
    """
    limit, judged = s.server.limits.get("max_event_bytes", 0), False
    for sample in s.server.samples:
        endpoint = s.server.endpoints[sample.endpoint]
        if sample.ended != "succeeded" or endpoint.capability("streams"):
            continue
        long = await _judge_long_results(s, sample, limit)
        judged = judged or long > 0
        most = s.server.limits.get("max_state_bytes", 0)
        if 0 < 3 * long < most and "batches" in s.server.capabilities and s.server.max_inputs(sample) > 1:
            await _judge_long_results(s, sample.with_inputs(sample.inputs * 2), limit)
    if not judged:
        s.skip_untested(
            f"no example of an endpoint that does not stream has a result of more than {limit} bytes"
        )


async def _judge_long_results(s: Session, sample: SampleRequest, limit: int) -> int:
    """Judge how a job sets values that are longer than a limit. Return the size of the longest value, in bytes."""
    job, history = await s.run_to_end(sample)
    longest = 0
    for number, item in enumerate(s.items(await s.read(job))):
        size = len(json.dumps(item["value"], ensure_ascii=False).encode())
        if size <= limit:
            continue
        longest = max(longest, size)
        path = b'"/items/%d/value' % number
        changes = [
            block.data[:100]
            for block in history.of_type("message")
            if path in block.data or block.data[:1] == b'"'
        ]
        wanted = f"no diff that changes the value of item {number} of over {limit} bytes"
        s.at(history).expect("TW-FRM-082", not changes, wanted, changes)
    return longest


WIDE = "😀"
"""Character of 4 bytes in UTF-8 and 2 code units in UTF-16."""
WIDE_BYTES = 4


@check("TW-FRM-047", "TW-FRM-081")
async def sizes_of_events_count_bytes(s: Session) -> None:
    """A text with more bytes, but fewer characters, than `max_event_bytes` is sent in several events.

    The first change of the job exceeds the limit. The later ones exceed it only if the server merges them.
    """
    limit = _limit(s, "max_event_bytes", MAX_TESTED_EVENT)
    # The first change is shorter than the limit in characters, and in the code units of UTF-16.
    pieces = [WIDE * (limit * 2 // 5), *[WIDE * (limit // 8)] * 8]
    # The stream is open before the first change: a server may trim its log, and begin with a snapshot for a late reader.
    sample = s.script_sample({"sleep_ms": 500}, *({"append": piece} for piece in pieces))
    size = sum(map(len, pieces)) * WIDE_BYTES
    if size + 10_000 > min(s.server.limits.get(name, 0) for name in ("max_body_bytes", "max_state_bytes")):
        s.skip_untested(f"max_body_bytes or max_state_bytes is too small for a text of {size} bytes")
    job, history = await s.run_to_end(sample)
    longest = max((len(block.data) for block in history.of_type("message")), default=0)
    s.at(history).expect("TW-FRM-047", longest <= limit, f"at most {limit} bytes of data", longest)
    value = s.items(await s.read(job))[0]["value"]
    count = len(value) if isinstance(value, str) else None
    s.at(history).equal("TW-FRM-081", count, sum(map(len, pieces)), f"{sum(map(len, pieces))} characters")


@check("TW-FRM-050", "TW-FRM-048", needs=["batches"], after="batch")
async def sizes_of_states_count_bytes(s: Session) -> None:
    """A job fails with `state_too_large` if the bytes of its snapshot would exceed `max_state_bytes`, even if its
    characters do not.
    """
    limits = s.server.limits
    limit = _limit(s, "max_state_bytes", MAX_TESTED_STATE)
    size = min(limits.get("max_body_bytes", 0), limit)
    piece = WIDE * (size // (3 * WIDE_BYTES))
    count = limit * 3 // 2 // max(1, len(piece) * WIDE_BYTES)
    if not piece or not 0 < count <= limits.get("max_inputs", 1):
        s.skip_untested("max_body_bytes or max_inputs is too small for a state of more than max_state_bytes")
    sample = s.script_sample().with_inputs([{}] * count, shared={"script": [{"append": piece}]})
    job, history = await s.run_to_end(sample)
    # Items that end before the state is too large succeed.
    items = s.items(await s.read(job))
    codes = sorted({item.get("error", {}).get("code", item["status"]) for item in items})
    s.at(history).expect("TW-FRM-050", "state_too_large" in codes, "items with state_too_large", codes)
    longest = max(len(block.data) for block in history.of_type("snapshot"))
    s.at(history).expect("TW-FRM-048", longest <= limit, f"at most {limit} bytes of data", longest)
