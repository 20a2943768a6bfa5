"""Servers that are only unusual: nothing of theirs may be called broken."""

import asyncio
import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import benign


@benign
def crlf(hooks):
    """Lines end in CR LF."""
    hooks.frames.append(lambda talk, frame: frame.replace(b"\n", b"\r\n"))


@benign
def cr(hooks):
    """Lines end in CR."""
    hooks.frames.append(lambda talk, frame: frame.replace(b"\n", b"\r"))


@benign
def comments_between_events(hooks):
    """A comment after each event."""
    hooks.frames.append(lambda talk, frame: frame + b":padding 0000\n\n")


@benign
def a_space_after_the_colon(hooks):
    """A space after each colon."""
    hooks.frames.append(
        lambda talk, frame: re.sub(rb"^(id|event|retry|data):", rb"\1: ", frame, flags=re.MULTILINE)
    )


@benign
def one_leading_mark(hooks):
    """One byte order mark at the start of a stream."""

    def mark(talk, frame):
        return (
            frame
            if talk.own.setdefault("marked", talk.own.get("n")) or talk.own.update(n=1, marked=1)
            else b"\xef\xbb\xbf" + frame
        )

    hooks.frames.append(mark)


@benign
def unknown_ephemeral_events(hooks):
    """Events of a later edition, without an id."""
    hooks.frames.append(
        lambda talk, frame: (
            frame + b'event:weather\ndata:{"rain":true}\n\n' if b"event:hello" in frame else frame
        )
    )


@benign
def unknown_members_everywhere(hooks):
    """Members of a later edition in every event and every body."""

    def more(data):
        return data[:1] + b'"x.colour":[1,{"red":null}],' + data[1:] if data[:2] == b'{"' else data

    hooks.frames.append(
        lambda talk, frame: re.sub(rb'data:\{"', b'data:{"x.colour":[1,{"red":true}],"', frame)
    )
    hooks.bodies.append(
        lambda talk, status, body: (
            status,
            more(body).replace(b"null", b"true", 1)
            if b"vocabulary" not in talk.path.encode() and body[:2] == b'{"'
            else body,
        )
    )


@benign
def other_white_space(hooks):
    """JSON with other white space, in another order of its members."""

    def spread(talk, status, body):
        return (
            (status, json.dumps(json.loads(body), indent=2, sort_keys=True).encode())
            if body[:1] == b"{"
            else None
        )

    hooks.bodies.append(spread)
    hooks.frames.append(
        lambda talk, frame: re.sub(
            rb"data:(\{.*\})",
            lambda m: b"data:" + json.dumps(json.loads(m[1]), sort_keys=True).encode(),
            frame,
        )
    )


@benign
def ops_in_place_of_bare_strings(hooks):
    """Every append names its place."""

    def name(talk, frame):
        if found := re.search(rb'"columns":(\["[^"]*"\])', frame):
            talk.own["place"] = json.loads(found[1])[0].encode()
        place = talk.own.get("place", b"/items/0/value" + (b"/text" if b"generate" in frame else b""))
        return (
            re.sub(rb'\ndata:(".*")', lambda m: b'\ndata:[["a","%b",%b]]' % (place, m[1]), frame)
            if talk.own
            else frame
        )

    hooks.frames.append(name)


@benign
def every_token_an_event(hooks):
    """Nothing is merged."""
    hooks.settings["merge_window"] = 0.0


@benign
def much_is_merged(hooks):
    """Much is merged."""
    hooks.settings["merge_window"] = 0.1


@benign
def every_answer_is_late(hooks):
    """Every answer comes 200 ms late."""

    async def late(talk):
        await asyncio.sleep(0.2)

    hooks.requests.append(late)


@benign
def one_429(hooks):
    """One request in seven is asked to come again."""

    def busy(talk):
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        if hooks.shared["n"] % 7:
            return None
        status, headers, body = problem(429, "rate_limited", retryable=True, retry_after_ms=1000)
        return status, headers | {"retry-after": "1", "access-control-allow-origin": talk.header("origin") or "null", "vary": "Origin",
                                  "access-control-expose-headers": "Location, Content-Location, Retry-After, Idempotency-Replayed"}, body  # fmt: skip

    hooks.instead.append(busy)


@benign
def hello_in_two_blocks(hooks):
    """`retry` comes by itself, before `hello`."""
    hooks.frames.append(lambda talk, frame: re.sub(rb"^(retry:\d+\n)(event:hello)", rb"\1\n\2", frame))


@benign
def fields_in_another_order(hooks):
    """Data before the type, and the id last."""

    def turn(talk, frame):
        lines = frame[:-2].split(b"\n")
        return b"\n".join(lines[::-1]) + b"\n\n"

    hooks.frames.append(turn)


@benign
def without_the_script(hooks):
    """No `tidewire.script`: what can be checked is what the examples show."""
    hooks.has_script = False
