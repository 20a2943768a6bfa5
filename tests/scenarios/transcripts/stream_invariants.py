"""What holds for all event streams, and for the states that they tell."""

import re
from typing import Any

from scenarios.transcripts.record import ENDS, job_bodies, judges, key_of, texts_of
from support.spec_document import SCHEMA_OF_EVENT, breaches

# ---- bytes of event streams ----------------------------------------------------------------------------------------

_FIELDS = {"id", "event", "data", "retry"}


@judges("TW-FRM-009", "TW-FRM-011", "TW-FRM-012", "TW-FRM-013", "TW-FRM-016")
def streams_follow_the_grammar(run):
    """UTF-8, LF, no byte order mark, one data line of JSON, no empty id, an empty line after each event."""
    for talk in (talk for talk in run.talks if talk.is_stream):
        try:
            text = talk.received.decode() if talk.ended else talk.received.decode(errors="ignore")
        except UnicodeDecodeError as error:
            yield f"{talk.where}: {error}"
            continue
        if "\r" in text or text.startswith("\ufeff"):
            yield f"{talk.where}: a CR or a byte order mark"
        *blocks, rest = text.split("\n\n")
        if talk.ended and rest.strip("\n"):
            yield f"{talk.where}: it ends within an event: {rest!r}"
        for block in blocks:
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            names = [line.partition(":")[0] for line in lines]
            if len(names) != len(set(names)) or not set(names) <= _FIELDS or set(names) == {"id"}:
                yield f"{talk.where}: {block!r}"
            if "id:" in lines or ("data" not in names and names not in ([], ["retry"])):
                yield f"{talk.where}: an empty id, or no data: {block!r}"


@judges("TW-FRM-014", "TW-FRM-015", "TW-FRM-043", "TW-FRM-044")
def events_match_their_schemas(run):
    """Known types, data by its schema, an id for the logged ones alone."""
    for talk in run.talks:
        for event in talk.events:
            schema = SCHEMA_OF_EVENT.get(event.type)
            fatal = event.type == "problem" and event.id == "0-1"
            if schema is None:
                yield f"{talk.where}: an event of the type {event.type!r}"
            elif found := breaches(schema, event.data):
                yield f"{talk.where}: {event.fields}: {found[0]}"
            if event.is_logged != bool(event.id) and not fatal:
                yield f"{talk.where}: an id at the wrong event, or none: {event.fields}"


_ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}")


@judges("TW-RES-001", "TW-RES-003", "TW-RES-006", "TW-RES-008")
def ids_are_consecutive(run):
    """Within an epoch by one, or as far as the base that a merged diff names; a snapshot may pass over some."""
    for talk in run.talks:
        last = None
        for event in (event for event in talk.events if event.is_logged):
            if not _ID.fullmatch(event.id):
                yield f"{talk.where}: the id {event.id!r}"
                continue
            epoch, seq = key_of(event.id)
            data = event.data
            base = data.get("on", seq - 1) if event.type == "message" and isinstance(data, dict) else seq - 1
            is_snapshot = event.type == "snapshot"
            if last is not None and not (is_snapshot and data["reason"] == "rewound"):
                up = (epoch, seq) > last and seq > last[1]
                if not (up if is_snapshot else (epoch, base) == last):
                    yield f"{talk.where}: {event.id} after {last[0]}-{last[1]}"
            last = epoch, seq


@judges("TW-FRM-007", "TW-FRM-054", "TW-FRM-055", "TW-RES-023")
def closing_event_is_last(run):
    """Nothing after `done`, `goaway` or `problem`, and no end of the answer without one of them."""
    ends = {"done", "goaway", "problem"}
    for talk in (talk for talk in run.talks if talk.is_stream):
        kinds = [event.type for event in talk.events]
        if ends & set(kinds[:-1]):
            yield f"{talk.where}: {kinds[-3:]}"
        if talk.ended and not (kinds and kinds[-1] in ends):
            yield f"{talk.where}: it ends without one of {sorted(ends)}: {kinds[-1:]}"


@judges("TW-FRM-057", "TW-FRM-058", "TW-FRM-061", "TW-DIF-009")
def streams_begin_with_hello(run):
    """`hello` first, `retry` in or before it, no diff before a snapshot where no cursor was given."""
    for talk in (talk for talk in run.talks if talk.is_stream and talk.events):
        first, *_ = talk.events
        if first.type not in {"hello", "problem"}:
            yield f"{talk.where}: the first event is {first.type}"
        if first.type == "hello" and b"retry:" not in talk.received.partition(b"\n\nid:")[0]:
            yield f"{talk.where}: no retry"
        cursor = talk.asked.get("last-event-id") or "after=" in talk.url
        logged = [event.type for event in talk.events if event.is_logged]
        if logged and logged[0] == "message" and (talk.method == "POST" or not cursor):
            yield f"{talk.where}: a diff before a snapshot"


@judges("TW-FRM-069")
def ping_heads_were_sent_before(run):
    """The head of a ping is no id that a stream that came to its end did not send."""
    for talk in (talk for talk in run.talks if talk.is_stream and talk.ended):
        sent = [key_of(event.id) for event in talk.events if event.is_logged]
        heads = [key_of(event.data["head"]) for event in talk.events if event.type == "hello"]
        for event in (event for event in talk.events if event.type == "ping"):
            if key_of(event.data["head"]) > max(sent + heads):
                yield f"{talk.where}: a ping of {event.data['head']}"


@judges("TW-FRM-047", "TW-FRM-048", "TW-FRM-049")
def events_stay_within_size_limits(run):
    """A snapshot up to `max_state_bytes`, all else up to `max_event_bytes`."""
    limits = (run.discovery or {}).get("limits", {})
    for talk in run.talks:
        for event in talk.events:
            size = len(event.fields["data"].encode())
            name = "max_state_bytes" if event.type == "snapshot" else "max_event_bytes"
            if size > limits.get(name, size):
                yield f"{talk.where}: {event.type} {event.id} has {size} bytes, {name} is {limits[name]}"


# ---- states --------------------------------------------------------------------------------------------------------


@judges("TW-DIF-001", "TW-DIF-012", "TW-DIF-048", "TW-DIF-049", "TW-DIF-055", "TW-DIF-057")
def diffs_apply_and_checks_hold(run):
    """Each diff applies, its checks hold, `stable` is kept, the digest is right, and what comes of it is a state."""
    for step in run.steps:
        if step.why:
            yield f"{step.event.id}: {step.why}"
        elif step.after is not None and (found := breaches("state", step.after)):
            yield f"{step.event.id}: {found[0]}"


@judges("TW-RES-007", "TW-DIF-043", "TW-DIF-066", "TW-JOB-039")
def each_id_has_one_state(run):
    """Whoever reads it, merged or not, as a snapshot or by diffs, from the stream or from the job."""
    found: dict[tuple[str, str], Any] = {}
    for step in run.steps:
        if step.after is not None and found.setdefault((step.job, step.event.id), step.after) != step.after:
            yield f"{step.job} {step.event.id}: {step.after} and {found[step.job, step.event.id]}"
    for talk in run.talks:
        for body in job_bodies(talk):
            at = body.get("id"), body.get("cursor")
            if "state" in body and found.setdefault(at, body["state"]) != body["state"]:
                yield f"{talk.where}: {body['state']}, and the stream {found[at]}"


@judges("TW-DIF-058", "TW-DIF-059")
def stable_never_decreases_or_exceeds_its_text(run):
    """A number in `stable` is no greater than its text, and is neither lowered nor deleted within an epoch."""
    for talk, steps in run.folded:
        held: dict[tuple[int, int, str], int] = {}
        for step in (step for step in steps if step.after is not None):
            epoch, _ = key_of(step.event.id)
            for index, item in enumerate(step.after["items"]):
                texts, stable = dict(texts_of(item["value"])), item.get("stable", {})
                for path in {name for e, i, name in held if (e, i) == (epoch, index)} | stable.keys():
                    number = stable.get(path, -1)
                    if not held.get((epoch, index, path), 0) <= number <= len(texts.get(path, "")):
                        yield f"{talk.where}: {step.event.id}: stable {path!r} is {number}"
                    held[epoch, index, path] = number


@judges("TW-DIF-002", "TW-DIF-035")
def columns_and_item_count_are_constant(run):
    """The number of items, and the columns of an epoch, wherever they are told."""
    items: dict[str, int] = {}
    columns: dict[tuple[str, int], Any] = {}
    for step in run.steps:
        if step.after is not None and items.setdefault(step.job, len(step.after["items"])) != len(
            step.after["items"]
        ):
            yield f"{step.job} {step.event.id}: another number of items"
        if step.event.type == "snapshot":
            told, place = step.event.data["columns"], (step.job, key_of(step.event.id)[0])
            if columns.setdefault(place, told) != told:
                yield f"{step.job} {step.event.id}: columns {told}, before {columns[place]}"
    for talk in run.talks:
        for body in job_bodies(talk):
            place = (body["id"], key_of(body["cursor"])[0])
            if columns.setdefault(place, body["columns"]) != body["columns"]:
                yield f"{talk.where}: columns {body['columns']}, before {columns[place]}"


_MOVES = {
    ("queued", "running"), ("queued", "failed"), ("queued", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "cancelled"),
}  # fmt: skip


@judges("TW-OVR-018", "TW-OVR-019", "TW-OVR-020", "TW-OVR-021", "TW-DIF-005")
def item_status_transitions_are_valid(run):
    """Along its rows, never out of an end; a job ends as its items say; who failed has an error."""
    for step in run.steps:
        before, after = step.before, step.after
        if before is None or after is None or step.event.type == "snapshot":
            continue
        for old, new in zip(before["items"], after["items"], strict=False):
            moved = (old["status"], new["status"])
            if moved[0] != moved[1] and moved not in _MOVES:
                yield f"{step.event.id}: an item went from {moved[0]} to {moved[1]}"
            if old["status"] in ENDS and old != new:
                yield f"{step.event.id}: an item that had ended changed"
            if (new["status"] == "failed") != ("error" in new):
                yield f"{step.event.id}: {new}"
        if step.event.type == "done":
            ends = [item["status"] for item in after["items"]]
            if after["status"] != end_of(ends):
                yield f"{step.event.id}: {after['status']}, and its items {ends}"


def end_of(items: list[str]) -> str:
    if not set(items) <= ENDS:
        return "not ended"
    if "succeeded" in items:
        return "succeeded" if set(items) == {"succeeded"} else "partially_failed"
    return "failed" if "failed" in items else "cancelled"


@judges("TW-RES-004", "TW-RES-033", "TW-RES-034", "TW-RES-035", "TW-RES-036", "TW-RES-037", "TW-RES-038")
def new_epoch_begins_with_a_snapshot(run):
    """Restart or rewound, by 1 to 10000, with a greater seq; what had ended stays; `attempt` goes up with a restart;
    nothing follows `done`.
    """
    lasts: dict[str, tuple[int, int]] = {}
    ends: dict[str, tuple[int, int]] = {}
    restarts: dict[str, set[int]] = {}
    for step in run.steps:
        epoch, seq = key_of(step.event.id)
        before_it = lasts.get(step.job, (epoch, 0))
        if epoch > before_it[0]:
            opens = step.event.type == "snapshot" and step.event.data["reason"] in {
                "restart",
                "rewound",
                "compacted",
            }
            if not opens or epoch - before_it[0] > 10_000 or seq <= before_it[1]:
                yield f"{step.job}: {step.event.id} opens an epoch after {before_it}"
        lasts[step.job] = max(before_it, (epoch, seq))
        if epoch > ends.get(step.job, (epoch, 0))[0]:
            yield f"{step.job}: {step.event.id} after done {ends[step.job]}"
        if step.event.type == "done":
            ends[step.job] = epoch, seq
        reason = step.event.data["reason"] if step.event.type == "snapshot" else ""
        if reason == "restart":
            restarts.setdefault(step.job, set()).add(epoch)
            before = step.before["items"] if step.before is not None else []
            for old, new in zip(before, step.after["items"], strict=False):
                if old["status"] in ENDS and old != new:
                    yield f"{step.event.id}: an item that had ended changed by a restart"
    for talk in run.talks:
        for body in job_bodies(talk):
            seen = [epoch for epoch in restarts.get(body["id"], ()) if epoch <= key_of(body["cursor"])[0]]
            if body["attempt"] < 1 + len(seen):
                yield f"{talk.where}: attempt {body['attempt']} after {len(seen)} restarts"
