"""Checks for chapter 3: response headers of event streams, framing, `hello`, and the end of a stream."""

import math
import re

from tidewire_conformance.judging.server_probe import CLOSE_SECONDS
from tidewire_conformance.judging.state_history import Key, id_text, job_of, key, value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, READ_INTERVAL, Job, Session
from tidewire_conformance.wire.event_stream_decoder import CLOSING_TYPES, Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve, without_query
from tidewire_conformance.wire.recording_client import Stream
from tidewire_conformance.wire.typed_json import EVENT_SCHEMAS

HELLO_SECONDS = 1.0
"""Maximum delay of `hello`, in seconds (TW-FRM-005)."""
MIN_HELD_BACK = 3
"""Number of events that must arrive only together with the next event before the suite reports that events are held back."""
MAX_RETRY_MS = 30_000
_ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}", re.ASCII)
_STRICT_BLOCK = re.compile(
    rb"(?:id:[^\n]+\n|event:[A-Za-z][A-Za-z0-9_]*\n|retry:[0-9]{1,7}\n|data:[^\n]+\n|:[\x20-\x7e]*\n)*\n"
)


@check("TW-FRM-001", "TW-FRM-002", "TW-FRM-003", whole_run=True)
async def streams_have_required_headers(s: Session) -> None:
    """Each event stream has the required media type, cache directives and `X-Accel-Buffering` header."""
    for each in s.streams():
        media = each.response_header("content-type").lower().replace(" ", "").replace('"', "")
        sound = media in {"text/event-stream", "text/event-stream;charset=utf-8"}
        s.at(each).expect("TW-FRM-001", sound, "Content-Type: text/event-stream", media)
        directives = each.response_words("cache-control")
        sound = {"no-store", "no-transform"} <= directives
        s.at(each).expect("TW-FRM-002", sound, "Cache-Control: no-store, no-transform", sorted(directives))
        s.at(each).equal(
            "TW-FRM-003", each.response_header("x-accel-buffering"), "no", "X-Accel-Buffering: no"
        )


@check("TW-FRM-001")
async def stream_request_returns_an_event_stream(s: Session) -> None:
    """A request for the stream of a job gets status 200 and an event stream."""
    sample = s.any_request()
    job = await s.submit(sample)
    async with s.follow(job) as stream:
        await stream.until(lambda now: now.ended or now.events)
    answer = stream.exchange
    got = f"{answer.status} with {json_text(answer.response_header('content-type'))}"
    s.at(answer).expect("TW-FRM-001", answer.is_stream, "200 with Content-Type: text/event-stream", got)


@check("TW-FRM-004")
async def streams_have_no_content_coding(s: Session) -> None:
    """A stream has no content coding, even if the `Accept-Encoding` of the request allows one."""
    sample = s.any_sample()
    job = await s.submit(sample)
    answer = await s.stream(job, header={"Accept-Encoding": "gzip, br, deflate, zstd"})
    s.skip_unless(answer.is_stream, f"{answer} returned {answer.status} {answer.code or answer.media_type}")
    coding = answer.response_header("content-encoding")
    s.at(answer).expect("TW-FRM-004", coding in {"", "identity"}, "no Content-Encoding", coding)
    s.at(answer).expect(
        "TW-FRM-004", answer.events, "an event stream that has no content coding", answer.body[:40].hex(" ")
    )


@check(
    "TW-FRM-009", "TW-FRM-010", "TW-FRM-011", "TW-FRM-012", "TW-FRM-013", "TW-FRM-016", "TW-FRM-080", whole_run=True
)  # fmt: skip
async def streams_follow_the_grammar(s: Session) -> None:
    """Streams are UTF-8, with one line of JSON in each event, an empty line after each event, no empty `id` field, and
    no `id` field without data.
    """
    for each in s.streams():
        _judge_text(s, each)
        for block in each.blocks:
            _judge_block(s, each, block)


def _judge_text(s: Session, each: RecordedExchange) -> None:
    try:
        each.body.decode("utf-8")
        fault = ""
    except UnicodeDecodeError as error:
        cut_inside = not each.is_whole and error.end >= len(each.body) - 3
        fault = "" if cut_inside else str(error)
    s.at(each).empty("TW-FRM-009", fault, "UTF-8")
    rest = each.reader.unfinished if each.is_whole else b""
    s.at(each).expect(
        "TW-FRM-013", not rest.strip(b"\r\n"), "an empty line after the last event", json_text(rest[-80:])
    )
    strict = not each.reader.marks and all(block.line_ends == {b"\n"} for block in each.blocks)
    s.at(each).expect("TW-FRM-010", strict, "LF line endings only, and no byte order mark")


def _judge_block(s: Session, each: RecordedExchange, block: Block) -> None:
    fields = [name for name, _ in block.fields]
    if not block.is_event:
        s.at(each, block).expect(
            "TW-FRM-080", "id" not in fields, "no id field without data", json_text(block.raw[:80])
        )
    if not set(fields) <= {"retry", "id"}:
        s.at(each, block).expect("TW-FRM-011", fields.count("data") == 1, "exactly one data field", fields)
    if block.is_event:
        s.at(each, block).expect(
            "TW-FRM-012", block.reading.is_json, "a JSON text", json_text(block.data[:200])
        )
        sound = _STRICT_BLOCK.fullmatch(block.raw) or b": " in block.raw
        s.at(each, block).expect(
            "TW-FRM-010", sound, "an event that matches the grammar", json_text(block.raw[:200])
        )
    s.at(each, block).expect(
        "TW-FRM-016", b"" not in block.values("id"), "no empty id field", json_text(block.raw[:80])
    )


@check(
    "TW-FRM-014",
    "TW-FRM-015",
    "TW-FRM-043",
    "TW-FRM-044",
    "TW-RES-001",
    "TW-RES-008",
    whole_run=True,
    after="json_and_times",
)
async def events_match_their_schemas(s: Session) -> None:
    """The data of each event fits the schema of its type, each logged event has an id, and ephemeral events have no id."""
    for each in s.streams():
        for block in each.events:
            if block.type in EVENT_SCHEMAS and block.reading.is_json:
                wanted = f"data that fits the schema of {block.type}"
                s.at(each, block).empty("TW-FRM-043", block.typed.violation, wanted)
            if block.is_logged:
                s.at(each, block).expect("TW-FRM-015", block.values("id"), "an id", json_text(block.raw[:80]))
                if block.values("id"):
                    value = block.values("id")[-1].decode("utf-8", "replace")
                    s.at(each, block).expect(
                        "TW-RES-001", _ID.fullmatch(value), "an id of the form epoch-seq", json_text(value)
                    )
                    s.at(each, block).expect(
                        "TW-RES-008", value not in {"0-0", "0-1"}, "an id that is not reserved", value
                    )
            elif block.values("id"):
                fatal = block.type == "problem" and block.id == "0-1"
                known = block.type in EVENT_SCHEMAS
                requirement = "TW-FRM-014" if known else "TW-FRM-044"
                s.at(each, block).expect(
                    requirement, fatal, "no id on an ephemeral event", json_text(block.raw[:80])
                )
            else:
                s.expect("TW-FRM-014", True, "no id on an ephemeral event")
                s.expect("TW-FRM-044", True, "no id on an event of an unknown type")


@check(
    "TW-FRM-057",
    "TW-FRM-058",
    "TW-FRM-059",
    "TW-FRM-060",
    "TW-FRM-061",
    whole_run=True,
    after="cursors_in_urls",
)
async def streams_begin_with_hello(s: Session) -> None:
    """Each stream begins with a `retry` field and a `hello` event.

    The `hello` event names the job of the stream, links to the stream, and has a valid `head`.
    """
    received_ids: dict[str, list[tuple[float, Key]]] = {}
    ends = {job_of(each): key(block.id) for each in s.wire.record for block in each.of_type("done")}
    for each in s.streams():
        known = _received_before(received_ids.setdefault(job_of(each), []), each)
        first = each.events[0] if each.events else None
        if first is None or first.type == "problem":
            continue
        if not s.at(each, first).equal("TW-FRM-057", first.type, "hello", "hello as the first event"):
            continue
        hello = first.members
        s.at(each, first).expect("TW-FRM-058", hello.get("job") == job_of(each), f"job {job_of(each)}", hello)
        link = resolve(each, str(hello.get("events", "")))
        sound = without_query(link).endswith(f"/v1/jobs/{job_of(each)}/events")
        s.at(each, first).expect("TW-FRM-059", sound, "a link to the stream of this job", link)
        opening = each.blocks[: each.blocks.index(first) + 1]
        states_retry = any(block.retry is not None for block in opening)
        s.at(each, first).expect("TW-FRM-061", states_retry, "a retry field before or in hello")
        head = key(hello.get("head"))
        # A snapshot with the reason `compacted` is not in the log. Its id may be greater than the `head` in `hello`.
        at_once = [key(block.id) for block in each.logged[:1] if block.snapshot_reason != "compacted"]
        if head and at_once and at_once[0] and not each.cursor:
            s.at(each, first).expect(
                "TW-FRM-060", head >= at_once[0], f"a head at or after {id_text(at_once[0])}", hello
            )
        else:
            s.at(each, first).expect("TW-FRM-060", head, "an event id as the head", hello.get("head"))
        end = ends.get(job_of(each))
        if head and end:
            s.at(each, first).expect(
                "TW-FRM-060",
                head <= end,
                f"a `head` of at most {id_text(end)}, the last id in the log",
                hello,
            )
        if head and known:
            wanted = f"a `head` of at least {id_text(known)}, which the server had already sent"
            s.at(each, first).expect("TW-FRM-060", head >= known, wanted, hello)


def _received_before(seen: list[tuple[float, Key]], each: RecordedExchange) -> Key | None:
    """Return the highest id of a job that was received before a request, and then add the ids in the response to `seen`.

    Returns None for durability checks. These checks restart the server and use several replicas, so they judge `head`
    themselves.
    """
    if each.check.startswith("durable."):
        return None
    found = max((own for at, own in seen if at < each.began), default=None)
    seen += [(block.at, own) for block in each.logged if (own := key(block.id))]
    return found


@check("TW-FRM-018", "TW-FRM-062", whole_run=True)
async def retry_is_jittered(s: Session) -> None:
    """Each `retry` field is at most 30 s, and different connections get different values."""
    found = []
    for each in s.streams():
        for block in (block for block in each.blocks if block.values("retry")):
            value = block.values("retry")[-1]
            sound = bool(re.fullmatch(rb"[0-9]{1,7}", value)) and int(value) <= MAX_RETRY_MS
            s.at(each, block).expect("TW-FRM-018", sound, "retry of at most 30000", json_text(value))
            found.append(value)
    if len(found) >= 8 and any(len(value) > 2 for value in found):
        s.expect(
            "TW-FRM-062",
            len(set(found)) > 1,
            "different retry values",
            f"{len(found)} times {json_text(found[0])}",
        )


@check("TW-FRM-054", "TW-FRM-007", whole_run=True, after="framing")
async def closing_event_is_last(s: Session) -> None:
    """No event follows a `done`, `goaway` or `problem` event in a stream."""
    for each in s.streams():
        kinds = [block.type for block in each.events]
        ends = [at for at, kind in enumerate(kinds) if kind in CLOSING_TYPES]
        if not ends:
            continue
        kind, after = kinds[ends[0]], kinds[ends[0] + 1 :]
        s.at(each).empty("TW-FRM-054" if kind == "done" else "TW-FRM-007", after, f"no event after {kind}")


@check("TW-FRM-007", "TW-FRM-013")
async def stream_closes_after_done(s: Session) -> None:
    """After `done`, the server ends the response within one and a half heartbeat intervals plus one second."""
    sample = s.any_sample()
    job = await s.submit(sample)
    async with s.follow(job) as stream:
        s.skip_unless(
            await stream.until(lambda seen: seen.of_type("done"), 60 + sample.seconds), "the job did not end"
        )
        seconds = 1.5 * s.server.heartbeat + 1
        await stream.until(lambda _: False, seconds)
        still = f"still open {seconds:g} s later"
        if s.at(stream.exchange).expect(
            "TW-FRM-007", stream.exchange.ended, "the end of the response", still
        ):
            s.at(stream.exchange).expect(
                "TW-FRM-013",
                stream.exchange.ended == "whole",
                "a response that is complete by its framing",
                stream.exchange.fault or stream.exchange.ended,
            )


@check("TW-FRM-005", after="cursors_in_urls")
async def hello_arrives_within_one_second(s: Session) -> None:
    """In the fastest of three attempts, the `hello` event arrives within one second after the request."""
    sample = s.server.long_running_sample() or s.any_sample()
    job = await s.submit(sample)
    waits = []
    for _ in range(3):
        async with s.follow(job) as stream:
            waits.append(await _hello_delay(stream))
    _judge_hello(s, stream.exchange, waits, "in the stream of a job")
    waits = []
    for _ in range(3):
        async with s.wire.open("POST", sample.submit_to, json=sample.body, header=EVENT_STREAM) as stream:
            waits.append(await _hello_delay(stream))
            if not stream.exchange.is_stream:
                return  # Another check judges the media type (TW-JOB-017).
        if waits[-1] <= HELLO_SECONDS:
            break
    _judge_hello(s, stream.exchange, waits, "in the response to a new job")


async def _hello_delay(stream: Stream) -> float:
    """Wait for `hello`, and return its delay in seconds, which is infinite if it does not arrive."""
    await stream.until(lambda seen: seen.of_type("hello"))
    hello = stream.exchange.of_type("hello")
    return hello[0].at - stream.exchange.began if hello else math.inf


def _judge_hello(s: Session, exchange: RecordedExchange, waits: list[float], place: str) -> None:
    """Judge the shortest of several delays of `hello`."""
    sound = min(waits) <= HELLO_SECONDS * s.wire.patience
    wanted = f"hello within {HELLO_SECONDS:g} s {place}"
    s.at(exchange).expect("TW-FRM-005", sound, wanted, [round(wait, 3) for wait in waits])


@check("TW-FRM-006", serial=True, after="cursors_in_urls")
async def events_are_sent_without_delay(s: Session) -> None:
    """The server sends each event at once, without waiting for the next event.

    The check runs up to three jobs, and one success is enough, because a busy machine can delay events.
    """
    sample = s.long_running_sample(1.5)
    for _ in range(3):
        job = await s.submit(sample)
        async with s.follow(job, "0-0") as stream:
            # Wait for the first growth of the value. A server that holds each event back until the next event fails here.
            await stream.until(lambda seen: value_has_grown(seen) or seen.of_type("done"), 60)
            s.skip_unless(stream.exchange.logged, f"{stream.exchange} returned no logged event")
            at = [block.at for block in stream.exchange.logged]
            spread = at[-1] - at[0]
            late = s.server.has_script and at[-1] - job.submit.finished > sample.seconds / 2
            got = (
                f"all events within {spread * 1000:.0f} ms, the last one {(at[-1] - job.submit.finished) * 1000:.0f} ms "
                f"after the request, but the job takes {sample.seconds:g} s"
            )
            if stream.exchange.of_type("done") or late:
                continue
            if not (held_back := await _events_held_back(s, job, stream)):
                s.at(stream.exchange).expect("TW-FRM-006", True, "events before the job has ended")
                return
            got = f"the events {', '.join(held_back)} only with the next event, although the job resource showed them before"
    s.at(stream.exchange).expect("TW-FRM-006", False, "events while the job runs", got)


async def _events_held_back(s: Session, job: Job, stream: Stream) -> list[str]:
    """Return the ids of events that the job resource showed before the stream did. If any event arrived at once, the list is empty."""
    held_back: dict[str, None] = {}
    while not stream.exchange.ended and not stream.exchange.of_type("done"):
        read = await s.read(job)
        if read.status != 200 or read.member("done"):
            break
        cursor = str(read.member("cursor"))
        await stream.until(lambda _: False, READ_INTERVAL)
        is_newest = str((await s.read(job)).member("cursor")) == cursor
        sent = max((key(block.id) or (0, 0) for block in stream.exchange.logged), default=(0, 0))
        if is_newest and sent >= (key(cursor) or (0, 0)):
            return []
        if is_newest:
            held_back[cursor] = None
    return [*held_back] if len(held_back) >= MIN_HELD_BACK else []


@check("TW-FRM-008", after="parameters")
async def unacceptable_stream_request_returns_406(s: Session) -> None:
    """A stream request gets 406 if its `Accept` header excludes event streams. Otherwise, it gets the stream."""
    sample = s.any_sample()
    job = await s.submit(sample)
    for wrong in ("application/json", "text/event-stream;q=0", "*/*, text/event-stream;q=0"):
        refused = await s.stream(job, header={"Accept": wrong})
        s.at(refused).refused("TW-FRM-008", 406, "not_acceptable", wrong)
    for accepted in (
        "text/event-stream",
        "application/json;q=0.5, */*",
        "text/*",
        "Text/Event-Stream;q=0.1",
        None,
    ):
        served = await s.stream(job, header={"Accept": accepted})
        s.at(served).response("TW-FRM-008", served.is_stream, f"the stream for Accept: {accepted}")


@check("TW-FRM-051", "TW-FRM-053", "TW-OVR-018", "TW-OVR-022")
async def log_ends_with_exactly_one_done(s: Session) -> None:
    """The log of an ended job has exactly one `done` event, as its last event. If the job failed, `done` has `error`."""
    if (endless := s.server.endless_example) is not None:
        s.at(endless.exchange).expect(
            ("TW-FRM-051", "TW-OVR-022"),
            False,
            f"a `done` event for the example of {endless.request.endpoint}",
            endless.why,
        )
        return
    samples = [s.any_request(), *([failing] if (failing := s.server.failing_sample()) else [])]
    for sample in samples:
        job = await s.submit(sample)
        history = await s.stream(job, "0-0")
        kinds = history.logged_types
        once = kinds.count("done") == 1 and kinds[-1] == "done"
        s.at(history).expect("TW-FRM-051", once, "exactly one done, as the last event", kinds[-4:])
        s.at(history).expect("TW-OVR-022", "done" in kinds, "a done event", kinds[-4:])
        done = history.of_type("done")[0].members if "done" in kinds else {}
        if s.server.has_script and sample is samples[-1]:
            failed = done.get("status") == "failed"
            s.at(history).expect("TW-OVR-018", failed, "the status failed, as the script requests", done)
        if done.get("status") == "failed":
            s.at(history).expect(
                "TW-FRM-053", isinstance(done.get("error"), dict), "the member error in done", done
            )


@check("TW-DEP-001")
async def http_1_0_requests_are_served(s: Session) -> None:
    """HTTP/1.0 requests to submit, read and stream a job get complete responses without chunked transfer coding."""
    sample = s.any_sample()
    submit = await s.post(sample, old=True)
    s.at(submit).status("TW-DEP-001", 201)
    job = Job(str(submit.member("id")), sample, submit) if submit.status == 201 else await s.submit(sample)
    read = await s.get(job.path, old=True)
    s.at(read).status("TW-DEP-001", 200)
    async with s.wire.open("GET", job.events, header=EVENT_STREAM, old=True) as stream:
        await stream.until(lambda now: now.of_type("done"), CLOSE_SECONDS + sample.seconds)
        answer = await stream.to_end(CLOSE_SECONDS)
    s.at(answer).response("TW-DEP-001", answer.is_stream, "an event stream")
    for each in (submit, read, answer):
        coding = each.response_header("transfer-encoding")
        s.at(each).empty("TW-DEP-001", coding, "no chunked transfer coding in an HTTP/1.0 response")
