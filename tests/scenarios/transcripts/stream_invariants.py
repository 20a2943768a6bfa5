"""Invariants for event streams and the states that follow from them."""

import re
from typing import Any

from scenarios.transcripts.record import ENDS, checks, job_bodies, parse_id, texts_of
from support.spec_document import SCHEMA_OF_EVENT, breaches

# ---- framing of event streams --------------------------------------------------------------------------------------

_FIELDS = {"id", "event", "data", "retry"}


@checks("TW-FRM-009", "TW-FRM-011", "TW-FRM-012", "TW-FRM-013", "TW-FRM-016", "TW-FRM-080")
def streams_follow_the_grammar(run):
    """Streams are UTF-8 with LF, without a byte order mark or empty ids.

    Each event has one data line of JSON and ends with an empty line.
    """
    for exchange in (exchange for exchange in run.exchanges if exchange.is_stream):
        try:
            text = exchange.received.decode() if exchange.ended else exchange.received.decode(errors="ignore")
        except UnicodeDecodeError as error:
            yield f"{exchange.where}: {error}"
            continue
        if "\r" in text or text.startswith("\ufeff"):
            yield f"{exchange.where}: the stream contains a CR or a byte order mark"
        *blocks, rest = text.split("\n\n")
        if exchange.ended and rest.strip("\n"):
            yield f"{exchange.where}: the stream ends within an event: {rest!r}"
        for block in blocks:
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            names = [line.partition(":")[0] for line in lines]
            if len(names) != len(set(names)) or not set(names) <= _FIELDS or set(names) == {"id"}:
                yield f"{exchange.where}: invalid fields in {block!r}"
            if "id:" in lines or ("data" not in names and names not in ([], ["retry"])):
                yield f"{exchange.where}: an empty id, or no data: {block!r}"


@checks("TW-FRM-014", "TW-FRM-015", "TW-FRM-043", "TW-FRM-044")
def events_match_their_schemas(run):
    """Event types are known, data validates against its schema, and only logged events have ids."""
    for exchange in run.exchanges:
        for event in exchange.events:
            schema = SCHEMA_OF_EVENT.get(event.type)
            fatal = event.type == "problem" and event.id == "0-1"
            if schema is None:
                yield f"{exchange.where}: unknown event type {event.type!r}"
            elif found := breaches(schema, event.data):
                yield f"{exchange.where}: {event.fields}: {found[0]}"
            if event.is_logged != bool(event.id) and not fatal:
                yield f"{exchange.where}: unexpected or missing id: {event.fields}"


_ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}")


@checks("TW-RES-001", "TW-RES-003", "TW-RES-006", "TW-RES-008")
def ids_are_consecutive(run):
    """Ids within an epoch increase by one, or continue from the base of a merged diff.

    A snapshot may skip ids.
    """
    for exchange in run.exchanges:
        last = None
        for event in (event for event in exchange.events if event.is_logged):
            if not _ID.fullmatch(event.id):
                yield f"{exchange.where}: malformed id {event.id!r}"
                continue
            epoch, seq = parse_id(event.id)
            data = event.data
            base = data.get("on", seq - 1) if event.type == "message" and isinstance(data, dict) else seq - 1
            is_snapshot = event.type == "snapshot"
            if last is not None and not (is_snapshot and data["reason"] == "rewound"):
                up = (epoch, seq) > last and seq > last[1]
                if not (up if is_snapshot else (epoch, base) == last):
                    yield f"{exchange.where}: id {event.id} follows {last[0]}-{last[1]}"
            last = epoch, seq


@checks("TW-FRM-007", "TW-FRM-054", "TW-FRM-055", "TW-RES-023")
def closing_event_is_last(run):
    """No event follows `done`, `goaway` or `problem`, and a response ends only after one of them."""
    ends = {"done", "goaway", "problem"}
    for exchange in (exchange for exchange in run.exchanges if exchange.is_stream):
        kinds = [event.type for event in exchange.events]
        if ends & set(kinds[:-1]):
            yield f"{exchange.where}: events follow the final one: {kinds[-3:]}"
        if exchange.ended and not (kinds and kinds[-1] in ends):
            yield f"{exchange.where}: the stream ends without one of {sorted(ends)}: {kinds[-1:]}"


@checks("TW-FRM-057", "TW-FRM-058", "TW-FRM-061", "TW-DIF-009")
def streams_begin_with_hello(run):
    """`hello` is first, `retry` is in or before it, and without a cursor no diff precedes a snapshot."""
    for exchange in (exchange for exchange in run.exchanges if exchange.is_stream and exchange.events):
        first, *_ = exchange.events
        if first.type not in {"hello", "problem"}:
            yield f"{exchange.where}: the first event is {first.type}"
        if first.type == "hello" and b"retry:" not in exchange.received.partition(b"\n\nid:")[0]:
            yield f"{exchange.where}: `retry` is missing"
        cursor = exchange.request_headers.get("last-event-id") or "after=" in exchange.url
        logged = [event.type for event in exchange.events if event.is_logged]
        if logged and logged[0] == "message" and (exchange.method == "POST" or not cursor):
            yield f"{exchange.where}: a diff before a snapshot"


@checks("TW-FRM-069")
def ping_heads_were_sent_before(run):
    """The head that a ping names is not newer than the last id of a complete stream."""
    for exchange in (exchange for exchange in run.exchanges if exchange.is_stream and exchange.ended):
        sent = [parse_id(event.id) for event in exchange.events if event.is_logged]
        heads = [parse_id(event.data["head"]) for event in exchange.events if event.type == "hello"]
        for event in (event for event in exchange.events if event.type == "ping"):
            if parse_id(event.data["head"]) > max(sent + heads):
                yield f"{exchange.where}: a ping names the unsent head {event.data['head']}"


@checks("TW-FRM-047", "TW-FRM-048", "TW-FRM-081")
def events_stay_within_size_limits(run):
    """A snapshot has at most `max_state_bytes`, any other event at most `max_event_bytes`."""
    limits = (run.discovery or {}).get("limits", {})
    for exchange in run.exchanges:
        for event in exchange.events:
            size = len(event.fields["data"].encode())
            name = "max_state_bytes" if event.type == "snapshot" else "max_event_bytes"
            if size > limits.get(name, size):
                yield f"{exchange.where}: {event.type} {event.id} has {size} bytes, {name} is {limits[name]}"


# ---- states --------------------------------------------------------------------------------------------------------


@checks("TW-DIF-001", "TW-DIF-012", "TW-DIF-048", "TW-DIF-049", "TW-DIF-055", "TW-DIF-057")
def diffs_apply_and_checks_hold(run):
    """Each diff applies, its checks and the digest match, and the resulting state is valid."""
    for step in run.steps:
        if step.why:
            yield f"{step.event.id}: {step.why}"
        elif step.after is not None and (found := breaches("state", step.after)):
            yield f"{step.event.id}: {found[0]}"


@checks("TW-RES-007", "TW-DIF-043", "TW-DIF-066", "TW-JOB-039")
def each_id_has_one_state(run):
    """Snapshots, diffs, merged diffs and job resources give the same state for the same id."""
    found: dict[tuple[str, str], Any] = {}
    for step in run.steps:
        if step.after is not None and found.setdefault((step.job, step.event.id), step.after) != step.after:
            yield f"{step.job} {step.event.id}: two states for one id, {step.after} and {found[step.job, step.event.id]}"
    for exchange in run.exchanges:
        for body in job_bodies(exchange):
            at = body.get("id"), body.get("cursor")
            if "state" in body and found.setdefault(at, body["state"]) != body["state"]:
                yield f"{exchange.where}: the job resource has {body['state']}, the stream {found[at]}"


@checks("TW-DIF-058", "TW-DIF-059")
def stable_never_decreases_or_exceeds_its_text(run):
    """A number in `stable` is at most the length of its text and never decreases within an epoch."""
    for exchange, steps in run.folded:
        held: dict[tuple[int, int, str], int] = {}
        for step in (step for step in steps if step.after is not None):
            epoch, _ = parse_id(step.event.id)
            for index, item in enumerate(step.after["items"]):
                texts, stable = dict(texts_of(item["value"])), item.get("stable", {})
                for path in {name for e, i, name in held if (e, i) == (epoch, index)} | stable.keys():
                    number = stable.get(path, -1)
                    if not held.get((epoch, index, path), 0) <= number <= len(texts.get(path, "")):
                        yield f"{exchange.where}: {step.event.id}: stable {path!r} is {number}"
                    held[epoch, index, path] = number


@checks("TW-DIF-002", "TW-DIF-035")
def columns_and_item_count_are_constant(run):
    """The number of items, and the columns of an epoch, never change."""
    items: dict[str, int] = {}
    columns: dict[tuple[str, int], Any] = {}
    for step in run.steps:
        if step.after is not None and items.setdefault(step.job, len(step.after["items"])) != len(
            step.after["items"]
        ):
            yield f"{step.job} {step.event.id}: the number of items changed"
        if step.event.type == "snapshot":
            received_columns, place = step.event.data["columns"], (step.job, parse_id(step.event.id)[0])
            if columns.setdefault(place, received_columns) != received_columns:
                yield f"{step.job} {step.event.id}: columns {received_columns} replace {columns[place]}"
    for exchange in run.exchanges:
        for body in job_bodies(exchange):
            place = (body["id"], parse_id(body["cursor"])[0])
            if columns.setdefault(place, body["columns"]) != body["columns"]:
                yield f"{exchange.where}: columns {body['columns']} replace {columns[place]}"


_MOVES = {
    ("queued", "running"), ("queued", "failed"), ("queued", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "cancelled"),
}  # fmt: skip


@checks("TW-OVR-018", "TW-OVR-019", "TW-OVR-020", "TW-OVR-021", "TW-DIF-005")
def item_status_transitions_are_valid(run):
    """Status transitions follow the table.

    Ended items do not change, a job ends as its items say, and failed items have an error.
    """
    for step in run.steps:
        before, after = step.before, step.after
        if before is None or after is None or step.event.type == "snapshot":
            continue
        for old, new in zip(before["items"], after["items"], strict=False):
            moved = (old["status"], new["status"])
            if moved[0] != moved[1] and moved not in _MOVES:
                yield f"{step.event.id}: an item changed from {moved[0]} to {moved[1]}"
            if old["status"] in ENDS and old != new:
                yield f"{step.event.id}: an ended item changed"
            if (new["status"] == "failed") != ("error" in new):
                yield f"{step.event.id}: status and error of an item disagree: {new}"
        if step.event.type == "done":
            ends = [item["status"] for item in after["items"]]
            if after["status"] != end_of(ends):
                yield f"{step.event.id}: the job is {after['status']}, but its items are {ends}"


def end_of(items: list[str]) -> str:
    if not set(items) <= ENDS:
        return "not ended"
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"


@checks("TW-RES-004", "TW-RES-033", "TW-RES-034", "TW-RES-035", "TW-RES-037", "TW-RES-038", "TW-RES-050")
def new_epoch_begins_with_a_snapshot(run):
    """An epoch begins with a `restart` or `rewound` snapshot, increases by 1 to 10000, and has a greater seq.

    Ended items stay, `attempt` increases with a restart, and nothing follows `done`.
    """
    lasts: dict[str, tuple[int, int]] = {}
    ends: dict[str, tuple[int, int]] = {}
    restarts: dict[str, set[int]] = {}
    for step in run.steps:
        epoch, seq = parse_id(step.event.id)
        before_it = lasts.get(step.job, (epoch, 0))
        if epoch > before_it[0]:
            opens = step.event.type == "snapshot" and step.event.data["reason"] in {
                "restart",
                "rewound",
                "compacted",
            }
            if not opens or epoch - before_it[0] > 10_000 or seq <= before_it[1]:
                yield f"{step.job}: {step.event.id} incorrectly begins an epoch after {before_it}"
        lasts[step.job] = max(before_it, (epoch, seq))
        if epoch > ends.get(step.job, (epoch, 0))[0]:
            yield f"{step.job}: {step.event.id} follows done {ends[step.job]}"
        if step.event.type == "done":
            ends[step.job] = epoch, seq
        reason = step.event.data["reason"] if step.event.type == "snapshot" else ""
        if reason == "restart":
            restarts.setdefault(step.job, set()).add(epoch)
            before = step.before["items"] if step.before is not None else []
            for old, new in zip(before, step.after["items"], strict=False):
                if old["status"] in ENDS and old != new:
                    yield f"{step.event.id}: a restart changed an ended item"
    for exchange in run.exchanges:
        for body in job_bodies(exchange):
            seen = [epoch for epoch in restarts.get(body["id"], ()) if epoch <= parse_id(body["cursor"])[0]]
            if body["attempt"] < 1 + len(seen):
                yield f"{exchange.where}: attempt {body['attempt']} after {len(seen)} restarts"
