"""Benign variants: unusual servers that conform to the specification. No check may fail."""

import asyncio
import json
import posixpath
import re

from proof.servers.fault_helpers import (
    after_a_restart,
    change_data,
    change_json,
    refuse,
    replace_events,
    rewrite_body,
    rewrite_events,
    rewrite_query,
    rotate_streams,
    take_samples,
)
from proof.servers.fault_proxy import problem
from proof.servers.faults import benign_variant, variant
from proof.servers.faults.endpoint_permissions import is_forbidden
from proof.servers.faults.slow_readers import merge_text_and_check
from proof.servers.faults.split_characters import split_characters
from proof.servers.faults.ties import many_ties, with_ties
from proof.servers.server_process import SETTINGS


def _merge_start_and_append(exchange, frame):
    """Merge the start of an item and its first append in a log that is read from its beginning."""
    if exchange.cursor != "0-0":
        return frame
    held = exchange.own.pop("held", b"")
    start = re.match(rb"id:1-2\ndata:\[(.*)\]\n\n$", held)
    append = re.match(rb'id:1-3\ndata:(".*")\n\n$', frame)
    if start and append:
        ops = b'%b,["a","/items/0/value",%b]' % (start[1], append[1])
        return b'id:1-3\ndata:{"ops":[%b],"on":1}\n\n' % ops
    if frame.startswith(b"id:1-2\n"):
        exchange.own["held"] = frame
        return held
    return held + frame


def _without_capabilities(exchange):
    query = exchange.query
    if exchange.path == "/v1/jobs" or exchange.path.endswith("/stream-token"):
        return problem(404, "not_found")
    if exchange.method == "DELETE" and exchange.path.startswith("/v1/jobs/"):
        status, headers, body = problem(405, "method_not_allowed")
        return status, headers | {"allow": "GET"}, body
    if b"diffs=0" in query or b"errors=inband" in query:
        return problem(400, "bad_parameter")
    if not exchange.is_submit or not isinstance(exchange.json, dict):
        return None
    members = ["deadline_ms", "on_disconnect", "grace_ms", *["inputs"] * ("input" not in exchange.json)]
    lacking = [each for each in members if each in exchange.json]
    return problem(422, "invalid_input", pointer=f"/{lacking[0]}") if lacking else None


def _declares_none(exchange, status, body):
    found = json.loads(body) if body[:1] == b"{" and status == 200 else {}
    if exchange.path == "/v1" and found:
        found["capabilities"] = []
        found["endpoints"] = [each for each in found["endpoints"] if each["name"] != "generate"]
        del found["min_interval_ms"]
    elif "value_schema" in found:
        own = found["capabilities"]
        found["capabilities"] = {name: own[name] for name in own if name not in {"batch", "logprobs"}}
    return (status, json.dumps(found).encode()) if found else None


def _note_origin(exchange):
    if not exchange.is_to_the_replica:
        exchange.shared.setdefault("origin", f"http://{exchange.header('host')}".encode())


def _absolute(exchange, text):
    return text.replace(b'"/v1/', b'"' + exchange.shared["origin"] + b"/v1/")


def _absolute_links(exchange, status, body):
    return (status, _absolute(exchange, body)) if status < 400 else None


def _absolute_link_headers(exchange, status, headers):
    for name in {"location", "content-location"} & headers.keys():
        headers[name] = exchange.shared["origin"].decode() + headers[name]


def _relative(exchange, text):
    """Make each link relative to the path of the request."""
    return re.sub(rb'(?<=")/v1/[^"?]*', lambda link: _path_from(exchange, link[0].decode()).encode(), text)


def _path_from(exchange, target):
    folder, name = posixpath.split(target)
    return posixpath.normpath(
        posixpath.join(posixpath.relpath(folder, posixpath.dirname(exchange.path)), name)
    )


def _relative_links(exchange, status, body):
    return (status, _relative(exchange, body)) if status < 400 and body[:1] == b"{" else None


def _relative_link_headers(exchange, status, headers):
    for name in {"location", "content-location"} & headers.keys():
        headers[name] = _path_from(exchange, headers[name])


def _add_query_to_headers(exchange, status, headers):
    for name in {"location", "content-location"} & headers.keys():
        headers[name] += "?shard=1"


def _request_candidates(description):
    asked = {
        "logprobs": True,
        "top_logprobs": 3,
        "ranks": True,
        "prompt_logprobs": 1,
        "logprobs_mode": "processed",
    }
    return description | {"examples": [each | asked for each in description["examples"]]}


def _delay(seconds):
    async def wait(exchange):
        await asyncio.sleep(seconds)

    return wait


def _last_tied(most_probable):
    return lambda scores, order: [each for each in order if scores[each] == scores[order[0]]][-1]


# fmt: off
variant("crlf_line_ends",
        "Lines end in CR LF.",
        frames=rewrite_events(b"\n", b"\r\n"))
variant("cr_line_ends",
        "Lines end in CR.",
        frames=rewrite_events(b"\n", b"\r"))
variant("comments_between_events",
        "Each event is followed by a comment.",
        frames=lambda exchange, frame: frame + b":padding 0000\n\n")
variant("space_after_colon",
        "Each colon of a field is followed by a space.",
        frames=lambda exchange, frame: re.sub(rb"^(id|event|retry|data):", rb"\1: ", frame, flags=re.MULTILINE))
variant("unknown_ephemeral_events",
        "`hello` is followed by an unknown event without an id.",
        frames=replace_events(b"event:hello", lambda frame: frame + b'event:weather\ndata:{"rain":true}\n\n'))
variant("diffs_never_merged",
        "Diffs are never merged.",
        settings={"merge_window": 0.0})
variant("diffs_merged_over_100_ms",
        "The diffs of 100 ms are merged to one diff.",
        settings={"merge_window": 0.1})
variant("retry_in_separate_block",
        "`retry` is sent before `hello`, in a separate block of the stream.",
        frames=rewrite_events(rb"^(retry:\d+\n)(event:hello)", rb"\1\n\2"))
variant("no_script_endpoint",
        "The server has a durable log but no endpoint `tidewire.script`, so checks have to use the endpoints' examples.",
        has_script=False, has_durable_log=True)
variant("responses_delayed_by_300_ms",
        "Every response is delayed by 300 ms.",
        requests=_delay(0.3))
variant("responses_delayed_by_60_ms_without_a_script",
        "Every response is delayed by 60 ms, and the longest job of an example ends after a second.",
        has_script=False, has_durable_log=True, requests=_delay(0.06))
variant("log_in_a_file",
        "The log is a file, and the server declares a higher durability than `process`.",
        has_durable_log=True)
variant("one_byte_chunks",
        "Each chunk of a body has one byte.",
        piece=1)
variant("streams_rotate_after_400_ms",
        "Each stream ends with `goaway` and the reason `rotate` after 0.4 s.",
        install=rotate_streams(0.4))
variant("streams_rotate_after_1_s",
        "Each stream ends with `goaway` and the reason `rotate` after 1 s.",
        install=rotate_streams(1.0))
variant("short_queue",
        "The queue is shorter than the limit of jobs of one caller, so a job too many gets `queue_full`.",
        settings={"max_queue_size": 100})
variant("few_jobs_per_caller",
        "A caller may have six unfinished jobs.",
        settings={"max_jobs_per_principal": 6})
variant("absolute_links",
        "All links are absolute and name the first address of the server, even in responses of the second one.",
        requests=_note_origin, heads=_absolute_link_headers, bodies=_absolute_links,
        frames=lambda exchange, frame: _absolute(exchange, frame) if b"event:hello" in frame else frame)
variant("relative_links",
        "All links are relative to the path of the request, such as `../../jobs/<id>` and `events`.",
        heads=_relative_link_headers, bodies=_relative_links,
        frames=lambda exchange, frame: _relative(exchange, frame) if b"event:hello" in frame else frame)
variant("links_with_a_query",
        "Each link to a job, its stream and its cancel request has a query.",
        requests=rewrite_query(rb"^shard=1&?", b""), heads=_add_query_to_headers,
        bodies=rewrite_body(rb'"((?:self|events|cancel|jobs)":"/v1/[^"?]*)"', rb'"\1?shard=1"'))
variant("links_to_other_places",
        "Jobs and endpoints have further links by name, which refer to places outside of the server.",
        bodies=rewrite_body(rb'"links":\{', b'"links":{"docs":"https://docs.example/words","help":"mailto:help@example.org",'))
variant("example_requests_candidates",
        "The example of the text generation itself asks for candidates, ranks and log-probabilities of the prompt.",
        bodies=change_json(".*/v1/endpoints/generate", _request_candidates))
variant("http_1_0_responses",
        "Responses use HTTP/1.0, in which the body ends when the connection is closed.",
        speaks_http_1_0=True)
variant("no_capabilities",
        "The server declares none of the capabilities that section 2.3 defines.",
        instead=_without_capabilities, bodies=_declares_none)
variant("samples_become_batch_items",
        "If an input asks for `n` samples, the samples become the items of a batch.",
        requests=take_samples)
variant("paths_with_a_prefix",
        "A reverse proxy removes a prefix from the paths.",
        prefix="/tide", settings={"root_path": "/tide"})
variant("model_with_many_ties",
        "Many logits of the model are equal.",
        install=many_ties)
variant("model_that_chooses_the_last_tied_token",
        "Many logits of the model are equal. At a temperature of 0, the last of the most probable tokens is chosen.",
        install=with_ties("most_probable", _last_tied))
variant("model_with_split_characters",
        "Some tokens of the model end within a character.",
        install=split_characters)
variant("endpoint_forbidden_to_the_second_caller",
        "The second caller may not use one of the endpoints in discovery.",
        instead=refuse(is_forbidden, 403, "forbidden"))
variant("times_with_nine_fractional_digits",
        "Times have nine fractional digits.",
        frames=rewrite_events(rb'(_at":"[^".]+?)(\.\d+)?Z"',
           lambda found: b'%b%b"' % (found[1], (found[2] or b".").ljust(10, b"0") + b"Z")),
        bodies=rewrite_body(rb'(_at":"[^".]+?)(\.\d+)?Z"',
           lambda found: b'%b%b"' % (found[1], (found[2] or b".").ljust(10, b"0") + b"Z")))
variant("merged_diffs_after_a_restart",
        "After a restart, a stream from the beginning of a log has a diff that merges two events.",
        has_durable_log=True, frames=after_a_restart(_merge_start_and_append))
variant("merged_diff_at_each_resume",
        "A resumed stream begins with a diff that merges several events.",
        frames=merge_text_and_check(lambda data: None))
# fmt: on


@benign_variant(hook="frames")
def leading_byte_order_mark(exchange, frame):
    """A stream starts with a byte order mark."""
    mark = b"" if "marked" in exchange.own else b"\xef\xbb\xbf"
    exchange.own["marked"] = True
    return mark + frame


@benign_variant()
def unknown_members_everywhere(hooks):
    """Every event and every body has unknown members."""

    def more(exchange, status, body):
        if b"vocabulary" in exchange.path.encode() or body[:2] != b'{"':
            return None
        return status, (b'{"x.colour":[1,{"red":null}],' + body[1:]).replace(b"null", b"true", 1)

    hooks.frames.append(rewrite_events(rb'data:\{"', b'data:{"x.colour":[1,{"red":true}],"'))
    hooks.bodies.append(more)


@benign_variant()
def other_white_space_and_member_order(hooks):
    """JSON has unusual white space and an unusual order of members."""

    def spread(exchange, status, body):
        is_object = body[:1] == b"{"
        return (
            (status, json.dumps(json.loads(body), indent=2, sort_keys=True, ensure_ascii=False).encode())
            if is_object
            else None
        )

    def reorder(match):
        return b"data:" + json.dumps(json.loads(match[1]), sort_keys=True, ensure_ascii=False).encode()

    hooks.bodies.append(spread)
    hooks.frames.append(rewrite_events(rb"data:(\{.*\})", reorder))


@benign_variant(hook="frames")
def ops_instead_of_bare_strings(exchange, frame):
    """Every append is an operation with a path, instead of a diff that is only a string."""
    if found := re.search(rb'"columns":(\["[^"]*"\])', frame):
        exchange.own["place"] = json.loads(found[1])[0].encode()
    place = exchange.own.get("place", b"/items/0/value" + (b"/text" if b"generate" in frame else b""))
    return (
        re.sub(rb'\ndata:(".*")', lambda m: b'\ndata:[["a","%b",%b]]' % (place, m[1]), frame)
        if exchange.own
        else frame
    )


@benign_variant()
def slow_cancels_that_end_the_job(hooks):
    """Every response is delayed by 300 ms, and a cancel request is answered after the job may have ended."""
    from tidewire_server.jobs.job_service import JobService

    inner = JobService.cancel

    async def cancel(*arguments):
        await inner(*arguments)
        await asyncio.sleep(0.2)
        return await inner(*arguments)  # false if the job has ended

    JobService.cancel = cancel
    hooks.requests.append(_delay(0.3))


@benign_variant(hook="instead")
def every_seventh_request_gets_429(exchange):
    """Every seventh request is answered with 429."""
    exchange.shared["n"] = exchange.shared.get("n", 0) + 1
    if exchange.shared["n"] % 7:
        return None
    status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=1000)
    return status, headers | {"retry-after": "1", "access-control-allow-origin": exchange.header("origin") or "null", "vary": "Origin",
                              "access-control-expose-headers": "Location, Content-Location, Retry-After, Idempotency-Replayed"}, body  # fmt: skip


@benign_variant(hook="frames")
def fields_in_reverse_order(exchange, frame):
    """The fields of an event are sent in reverse order, so that the id is the last field."""
    lines = frame[:-2].split(b"\n")
    return b"\n".join(lines[::-1]) + b"\n\n"


@benign_variant()
def snapshots_instead_of_diffs(hooks):
    """Every diff is logged as a snapshot."""
    from tidewire.protocol.cursor import Cursor
    from tidewire_server.job_log.pending_events import PendingEvents
    from tidewire_server.job_log.snapshot_events import snapshot_frame
    from tidewire_server.store.log_interface import Block, StateAt

    inner = PendingEvents.take

    def take(pending, after):
        found = inner(pending, after)
        if found is None:
            return None
        at = StateAt(Cursor(after.epoch, after.seq + 1), found.state.columns, found.state.mark)
        return Block([snapshot_frame(at.cursor, at.view.value(), at.columns, "compacted")], at)

    PendingEvents.take = take


@benign_variant()
def all_changes_merged(hooks):
    """All changes of 30 ms are logged as one diff, even if an item starts and ends in them."""
    from tidewire.protocol.cursor import Cursor
    from tidewire_server.job_log.commit_schedule import GroupCommit
    from tidewire_server.job_log.pending_events import PendingEvents
    from tidewire_server.store.log_interface import Block, StateAt

    soon, inner = GroupCommit.soon, PendingEvents.take

    def later(commits, writer):
        loop = commits._loop
        loop.call_soon_threadsafe(loop.call_later, 0.03, soon, commits, writer)

    def take(pending, after):
        found = inner(pending, after)
        frames = found.frames if found is not None else []
        if len(frames) < 2 or any(b"event:snapshot" in each for each in frames):
            return found
        diffs = [json.loads(each.partition(b"data:")[2]) for each in frames]
        column = found.state.columns[0] if found.state.columns else ""
        ops = [op for diff in diffs for op in _ops_of(diff, column)]
        texts = {check[0] for diff in diffs if isinstance(diff, dict) for check in diff["check"]}
        document = pending.state.document
        checks = [[path, document.text_length(path), document.text_crc(path)] for path in sorted(texts)]
        data = json.dumps({"ops": ops, "check": checks}).encode()
        cursor = Cursor(after.epoch, after.seq + 1)
        if len(data) > pending._event_bytes or len(ops) > pending._event_ops:
            return found
        return Block(
            [b"id:%d-%d\ndata:%b\n\n" % (*cursor, data)],
            StateAt(cursor, found.state.columns, found.state.mark),
        )

    GroupCommit.soon, PendingEvents.take = later, take


def _ops_of(diff, column):
    if isinstance(diff, str):
        return [["a", column, diff]]
    return diff["ops"] if isinstance(diff, dict) else diff


def _trim_log(before_the_last_block):
    """Return a hook that trims each log after each append."""

    def install(hooks):
        from tidewire_server.store.memory.memory_store import MemoryLog

        inner = MemoryLog.append_at_once

        def append(log, after, block):
            before = log._state
            inner(log, after, block)
            log._trim(before if before_the_last_block or block.ended else log._state)

        MemoryLog.append_at_once = append

    return install


variant(
    "log_trimmed_at_once", "The log keeps only the events that were logged last.", install=_trim_log(True)
)
variant(
    "no_log", "The server keeps only the state of a job and `done`, and no log.", install=_trim_log(False)
)


def _always_cut(hooks):
    """Write a checkpoint with each append, and trim the log up to the checkpoint of the previous append."""
    from tidewire_server.store.database.state_checkpoints import CheckpointPlan, CheckpointSchedule

    def plan(schedule, after, block, size):
        return CheckpointPlan(True, schedule._checkpoints[-1] if schedule._checkpoints else None)

    CheckpointSchedule.plan = plan


variant(
    "log_in_a_file_trimmed_at_once",
    "The log is a file that keeps only the events that were logged last.",
    has_durable_log=True,
    install=_always_cut,
)


EXTENSION = {
    "size": 1.5,
    "row": 0.5,
    "status": 2.5,
    "gpu_ms": 0.25,
    "billed_at": "never",
    "parts": [{"on": 1.5}],
}
"""Members with the names of integers, times and durations of the protocol, which have other meanings here."""


@benign_variant()
def extensions_with_the_names_of_members(hooks):
    """In `usage` and in extensions, members with the names of integers and times of the protocol have other types."""
    schema = {
        "properties": {"size": {"minimum": 0.5}, "status": {"default": None}, "ended_at": {"type": "string"}}
    }

    def extend(exchange, status, body):
        found = json.loads(body) if body[:1] == b"{" and b"vocabulary" not in exchange.path.encode() else {}
        for each in [found, *found.get("jobs", [])]:
            if isinstance(each.get("done"), dict):
                each["done"]["usage"] |= EXTENSION
                each.get("state", {}).get("usage", {}).update(EXTENSION)
        return (
            (
                status,
                json.dumps(found | {"x.cost": EXTENSION, "x.schema": schema}, ensure_ascii=False).encode(),
            )
            if found
            else None
        )

    def extend_done(exchange, kind, data):
        return data | {"usage": data["usage"] | EXTENSION, "x.cost": EXTENSION} if kind == "done" else data

    hooks.bodies.append(extend)
    hooks.frames.append(change_data(extend_done))


@benign_variant()
def tokens_of_one_character(hooks):
    """Each token of the model is a single character."""
    from proof.servers import table_engine

    table_engine.WORDS[:] = "abcdefgh né😀,.mnopqrst"


@benign_variant()
def tokens_of_one_byte(hooks):
    """Each token of the model is a single byte, and the text consists of characters of four bytes."""
    from proof.servers import table_engine

    start = "😀".encode()[:3]
    table_engine.WORDS = [bytes([each]) for each in (*start, *range(0x80, 0x90))]
    inner = table_engine.logits_after

    def logits_after(token):
        allowed = {token + 1} if token < 2 else {*range(3, 19)} if token == 2 else {0}
        return [logit - 40 * (each not in allowed) for each, logit in enumerate(inner(token))]

    table_engine.logits_after = logits_after


@benign_variant()
def responses_without_date(hooks):
    """No response has the header `Date`."""
    import uvicorn

    inner = uvicorn.Config.__init__
    hooks.settings["stream_token_ttl"] = 2

    def init(config, *args, **options):
        inner(config, *args, **options | {"date_header": False})

    uvicorn.Config.__init__ = init


@benign_variant()
def json_escaped_to_ascii(hooks):
    """JSON escapes all non-ASCII characters and some ASCII characters."""

    def escape(text):
        ascii_only = "".join(each if each.isascii() else json.dumps(each)[1:-1] for each in text)
        return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", ascii_only)

    # An escaped character may have three times as many bytes.
    for name in ("max_event_bytes", "max_state_bytes"):
        limit = SETTINGS[name]
        hooks.settings[name] = limit // 3
        hooks.bodies.append(
            rewrite_body(
                b'"%b":%d' % (name.encode(), limit // 3), b'"%b":%d' % (name.encode(), limit), at="/v1"
            )
        )
    hooks.frames.append(lambda exchange, frame: escape(frame.decode()).encode())
    hooks.bodies.append(lambda exchange, status, body: (status, escape(body.decode()).encode()))
