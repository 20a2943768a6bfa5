"""Benign variants: unusual servers that conform to the specification. No check may fail."""

import asyncio
import json
import re

from proof.servers.fault_helpers import PING, replace_events, rewrite_body, rewrite_events, take_samples
from proof.servers.fault_proxy import problem
from proof.servers.faults import benign_variant
from proof.servers.faults.slow_readers import merge_text_and_check


@benign_variant
def crlf_line_ends(hooks):
    """Lines end in CR LF."""
    rewrite_events(hooks, b"\n", b"\r\n")


@benign_variant
def cr_line_ends(hooks):
    """Lines end in CR."""
    rewrite_events(hooks, b"\n", b"\r")


@benign_variant
def comments_between_events(hooks):
    """Each event is followed by a comment."""
    hooks.frames.append(lambda exchange, frame: frame + b":padding 0000\n\n")


@benign_variant
def space_after_colon(hooks):
    """Each colon of a field is followed by a space."""
    hooks.frames.append(
        lambda exchange, frame: re.sub(rb"^(id|event|retry|data):", rb"\1: ", frame, flags=re.MULTILINE)
    )


@benign_variant
def leading_byte_order_mark(hooks):
    """A stream starts with a byte order mark."""

    def mark(exchange, frame):
        return (
            frame
            if exchange.own.setdefault("marked", exchange.own.get("n")) or exchange.own.update(n=1, marked=1)
            else b"\xef\xbb\xbf" + frame
        )

    hooks.frames.append(mark)


@benign_variant
def unknown_ephemeral_events(hooks):
    """`hello` is followed by an unknown event without an id."""
    replace_events(hooks, b"event:hello", lambda frame: frame + b'event:weather\ndata:{"rain":true}\n\n')


@benign_variant
def unknown_members_everywhere(hooks):
    """Every event and every body has unknown members."""

    def more(data):
        return data[:1] + b'"x.colour":[1,{"red":null}],' + data[1:] if data[:2] == b'{"' else data

    rewrite_events(hooks, rb'data:\{"', b'data:{"x.colour":[1,{"red":true}],"')
    hooks.bodies.append(
        lambda exchange, status, body: (
            status,
            more(body).replace(b"null", b"true", 1)
            if b"vocabulary" not in exchange.path.encode() and body[:2] == b'{"'
            else body,
        )
    )


@benign_variant
def other_white_space_and_member_order(hooks):
    """JSON has unusual white space and an unusual order of members."""

    def spread(exchange, status, body):
        return (
            (status, json.dumps(json.loads(body), indent=2, sort_keys=True).encode())
            if body[:1] == b"{"
            else None
        )

    hooks.bodies.append(spread)
    rewrite_events(
        hooks, rb"data:(\{.*\})", lambda m: b"data:" + json.dumps(json.loads(m[1]), sort_keys=True).encode()
    )


@benign_variant
def ops_instead_of_bare_strings(hooks):
    """Every append is an operation with a path, instead of a diff that is only a string."""

    def name(exchange, frame):
        if found := re.search(rb'"columns":(\["[^"]*"\])', frame):
            exchange.own["place"] = json.loads(found[1])[0].encode()
        place = exchange.own.get("place", b"/items/0/value" + (b"/text" if b"generate" in frame else b""))
        return (
            re.sub(rb'\ndata:(".*")', lambda m: b'\ndata:[["a","%b",%b]]' % (place, m[1]), frame)
            if exchange.own
            else frame
        )

    hooks.frames.append(name)


@benign_variant
def diffs_never_merged(hooks):
    """Diffs are never merged."""
    hooks.settings["merge_window"] = 0.0


@benign_variant
def diffs_merged_over_100_ms(hooks):
    """The diffs of 100 ms are merged to one diff."""
    hooks.settings["merge_window"] = 0.1


@benign_variant
def responses_delayed_by_300_ms(hooks):
    """Every response is delayed by 300 ms."""

    async def late(exchange):
        await asyncio.sleep(0.3)

    hooks.requests.append(late)


@benign_variant
def every_seventh_request_gets_429(hooks):
    """Every seventh request is answered with 429."""

    def busy(exchange):
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        if hooks.shared["n"] % 7:
            return None
        status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=1000)
        return status, headers | {"retry-after": "1", "access-control-allow-origin": exchange.header("origin") or "null", "vary": "Origin",
                                  "access-control-expose-headers": "Location, Content-Location, Retry-After, Idempotency-Replayed"}, body  # fmt: skip

    hooks.instead.append(busy)


@benign_variant
def retry_in_separate_block(hooks):
    """`retry` is sent before `hello`, in a separate block of the stream."""
    rewrite_events(hooks, rb"^(retry:\d+\n)(event:hello)", rb"\1\n\2")


@benign_variant
def fields_in_reverse_order(hooks):
    """The fields of an event are sent in reverse order, so that the id is the last field."""

    def turn(exchange, frame):
        lines = frame[:-2].split(b"\n")
        return b"\n".join(lines[::-1]) + b"\n\n"

    hooks.frames.append(turn)


@benign_variant
def no_script_endpoint(hooks):
    """The server has a durable log but no endpoint `tidewire.script`, so checks have to use the endpoints' examples."""
    hooks.has_script = False
    hooks.has_durable_log = True


@benign_variant
def log_in_a_file(hooks):
    """The log is a file, and the server declares a higher durability than `process`."""
    hooks.has_durable_log = True


@benign_variant
def one_byte_chunks(hooks):
    """Each chunk of a body has one byte."""
    hooks.piece = 1


@benign_variant
def http_1_0_responses(hooks):
    """Responses use HTTP/1.0, in which the body ends when the connection is closed."""
    hooks.speaks_http_1_0 = True


@benign_variant
def snapshots_instead_of_diffs(hooks):
    """Every diff is logged as a snapshot."""
    from tidewire.protocol.cursor import Cursor
    from tidewire_server.log_writer.pending_events import PendingEvents
    from tidewire_server.log_writer.snapshot_events import snapshot_frame
    from tidewire_server.store.interfaces import Block

    inner = PendingEvents.take

    def take(pending, after):
        found = inner(pending, after)
        if found is None:
            return None
        at = found.state._replace(cursor=Cursor(after.epoch, after.seq + 1))
        return Block([snapshot_frame(at.cursor, at.view.value(), at.columns, "compacted")], at)

    PendingEvents.take = take


@benign_variant
def no_capabilities(hooks):
    """The server declares none of the capabilities that section 2.3 defines."""
    hooks.instead.append(_without_capabilities)
    hooks.bodies.append(_declares_none)


def _without_capabilities(exchange):
    query = exchange.query
    if exchange.path == "/v1/jobs" or exchange.path.endswith("/stream-token"):
        return problem(404, "not_found")
    if exchange.method == "DELETE" and exchange.path.startswith("/v1/jobs/"):
        status, headers, body = problem(405, "method_not_allowed")
        return status, headers | {"allow": "GET"}, body
    if b"diffs=0" in query or b"errors=inband" in query:
        return problem(400, "bad_parameter")
    batch = isinstance(exchange.json, dict) and "inputs" in exchange.json and "input" not in exchange.json
    return problem(422, "invalid_input", pointer="/inputs") if batch else None


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


@benign_variant
def samples_become_batch_items(hooks):
    """If an input asks for `n` samples, the samples become the items of a batch."""
    hooks.requests.append(take_samples)


@benign_variant
def json_escaped_to_ascii(hooks):
    """JSON escapes all non-ASCII characters and some ASCII characters."""

    def escape(text):
        return "".join(
            each
            if each.isascii() and each not in "<>&"
            else json.dumps(each)[1:-1]
            if not each.isascii()
            else f"\\u{ord(each):04x}"
            for each in text
        )

    hooks.frames.append(lambda exchange, frame: escape(frame.decode()).encode())
    hooks.bodies.append(lambda exchange, status, body: (status, escape(body.decode()).encode()))


@benign_variant
def times_with_nine_fractional_digits(hooks):
    """Times have nine fractional digits."""
    longer = lambda found: b'%b%b"' % (found[1], (found[2] or b".").ljust(10, b"0") + b"Z")  # noqa: E731
    pattern = rb'(_at":"[^".]+?)(\.\d+)?Z"'
    rewrite_events(hooks, pattern, longer)
    rewrite_body(hooks, pattern, longer)


@benign_variant
def merged_diff_at_each_resume(hooks):
    """A resumed stream begins with a diff that merges several events."""
    merge_text_and_check(hooks, lambda data: None)


@benign_variant
def comments_instead_of_pings(hooks):
    """A comment is sent before each heartbeat is due, so that no ping is needed."""
    replace_events(hooks, PING, lambda frame: b":awake\n\n")
    longer = lambda body: body.replace(b'"heartbeat_ms":400', b'"heartbeat_ms":600')  # noqa: E731
    hooks.frames.append(lambda exchange, frame: longer(frame))
    hooks.bodies.append(lambda exchange, status, body: (status, longer(body)))
