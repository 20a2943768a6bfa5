"""Builders of hooks that many faulty servers share: changes to requests, responses and events.

A builder returns a hook for the attribute of `FaultProxy` that names the section of this file. The arguments `where` and
`condition` of a builder are functions of the exchange, and select every exchange by default.
"""

import asyncio
import functools
import json
import re

from proof.servers.fault_proxy import problem

DONE = b"event:done\n"
PING = b"event:ping\n"


def everywhere(exchange):
    return True


def after_a_restart(hook):
    """Return a hook that has an effect only after the first restart of the server."""

    @functools.wraps(hook)
    def later(exchange, *rest):
        unchanged = rest[0] if len(rest) == 1 else None  # only a hook for events must return the event
        return hook(exchange, *rest) if exchange.shared["life"] > 1 else unchanged

    return later


def serve_anonymous_callers(token_of, *, lists_jobs=False):
    """Return hooks that add the token that `token_of` returns to each request of an anonymous caller.

    The jobs of anonymous callers are listed only if `lists_jobs` is true.
    """

    def name(exchange):
        has_stream_token = exchange.path.endswith("/events") and b"token=" in exchange.query
        if exchange.header("authorization") or has_stream_token:
            return
        exchange.own["anonymous"] = True
        exchange.set_header("authorization", f"Bearer {token_of(exchange)}")
        if exchange.path == "/v1/jobs" and not lists_jobs:
            exchange.path = "/v1/nothing"

    def hide_list(exchange, status, body):
        hidden = exchange.path == "/v1" and exchange.own.get("anonymous") and not lists_jobs
        return (status, body.replace(b'"list",', b"")) if hidden else None

    return {"requests": name, "bodies": hide_list}


# ---- requests --------------------------------------------------------------------------------------------------------


def rewrite_query(pattern, by):
    """Rewrite the query of each request before it reaches the server."""

    def rewrite(exchange):
        exchange.query = re.sub(pattern, by, exchange.query)

    return rewrite


def set_request_header(name, value, where=everywhere):
    """Set a header of each request before the request reaches the server. The value None removes the header."""
    return lambda exchange: where(exchange) and exchange.set_header(name, value)


def change_key(change, where=everywhere):
    """Replace the idempotency key of each request that has one by the result of `change`."""
    return lambda exchange: (
        exchange.key and where(exchange) and exchange.set_header("idempotency-key", change(exchange))
    )


def rewrite_request_body(pattern, by):
    """Rewrite the body of each request before it reaches the server."""

    def rewrite(exchange):
        exchange.body = re.sub(pattern, by, exchange.body)

    return rewrite


def change_submits(change):
    """Change the body of each request to submit a job, if the body is a JSON object."""

    @functools.wraps(change)
    def hook(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and (found := change(exchange.json)):
            exchange.body = json.dumps(found).encode()

    return hook


def drop_member(member, is_invalid):
    """Remove a member from the body of a request to submit a job, if the value of the member is invalid."""

    def drop(body):
        if member in body and is_invalid(body[member]):
            return {name: value for name, value in body.items() if name != member}
        return None

    return change_submits(drop)


def change_input(*names, change=lambda input_value, name: input_value.pop(name)):
    """Change the named members of each input of the endpoint `generate`. By default, remove these members."""

    def hook(exchange):
        found = exchange.json if exchange.is_submit and "generate" in exchange.path else None
        input_value = found.get("input") if isinstance(found, dict) else None
        known = [name for name in names if isinstance(input_value, dict) and name in input_value]
        for name in known:
            change(input_value, name)
        exchange.body = json.dumps(found).encode() if known else exchange.body

    return hook


def take_samples(exchange):
    """Convert the submission of a job with `n` samples to the submission of a batch with `n` inputs."""
    input_value = (
        (exchange.json or {}).get("input")
        if exchange.is_submit and "generate" in exchange.path and b'"n":' in exchange.body
        else None
    )
    if isinstance(input_value, dict) and (count := input_value.pop("n", 1)) > 1:
        exchange.body = json.dumps(
            {"inputs": [input_value | {"seed": seed} for seed in range(count)]}
        ).encode()


# ---- instead ---------------------------------------------------------------------------------------------------------


def refuse(condition, status, code, **more):
    """Refuse requests that satisfy a condition."""
    return lambda exchange: problem(status, code, **more) if condition(exchange) else None


# ---- heads -----------------------------------------------------------------------------------------------------------


def set_header(name, value, condition=lambda exchange, status: True):
    """Set a response header, if the exchange and the status satisfy a condition."""

    def set_value(exchange, status, headers):
        if condition(exchange, status):
            headers[name] = value

    return set_value


def drop_header(name, statuses=range(600), where=everywhere):
    """Remove a header from responses with the given statuses."""

    def remove(exchange, status, headers):
        if status in statuses and where(exchange):
            headers.pop(name, None)

    return remove


# ---- bodies ----------------------------------------------------------------------------------------------------------


def rewrite_body(pattern, by, *, at=".*"):
    """Rewrite response bodies for paths that match `at`."""
    return lambda exchange, status, body: (
        (status, re.sub(pattern, by, body)) if re.fullmatch(at, exchange.path) else None
    )


def change_json(at, change):
    """Replace the JSON bodies of responses with status 200, for paths that match `at`, by the result of `change`."""

    def apply(exchange, status, body):
        if status != 200 or not re.fullmatch(at, exchange.path):
            return None
        return status, json.dumps(change(json.loads(body)), ensure_ascii=False).encode()

    return apply


def gone_is_unknown(*, at=".*"):
    """Replace responses with status 410 by 404, for paths that match `at`."""
    return lambda exchange, status, body: (
        problem(404, "job_not_found")[::2] if status == 410 and re.fullmatch(at, exchange.path) else None
    )


# ---- frames ----------------------------------------------------------------------------------------------------------


def seq_of(frame):
    """Return the sequence number of a logged event, or 0 for an event that is not logged."""
    found = re.match(rb"id:\d+-(\d+)\n", frame)
    return int(found[1]) if found else 0


def replace_events(mark, change, where=everywhere):
    """Replace each event that contains the bytes `mark` by the result of `change`."""
    return lambda exchange, frame: change(frame) if mark in frame and where(exchange) else frame


def rewrite_events(pattern, by, *, within=b"", where=everywhere):
    """Rewrite events that contain the bytes `within`."""
    return replace_events(within, lambda frame: re.sub(pattern, by, frame), where)


def drop_events(mark, where=everywhere):
    """Drop events that contain the bytes `mark`."""
    return replace_events(mark, lambda frame: b"", where)


def change_data(change):
    """Replace the JSON data of each logged event by the result of `change`."""

    @functools.wraps(change)
    def apply(exchange, frame):
        # The data may contain "data:", but no line break before it.
        head, _, data = frame.partition(b"\ndata:")
        if not head.startswith(b"id:"):
            return frame
        kind = re.search(rb"event:(\w+)", head)
        value = change(exchange, kind[1].decode() if kind else "message", json.loads(data))
        return (
            head
            + b"\ndata:"
            + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
            + b"\n\n"
        )

    return apply


# ---- install ---------------------------------------------------------------------------------------------------------


def rotate_streams(seconds):
    """Return a hook that ends each stream when its connection has reached an age."""

    def install(hooks):
        from tidewire_server.http.event_stream import EventStream

        inner = EventStream._respond

        async def respond(stream, *args):
            timer = asyncio.get_running_loop().call_later(seconds, stream.go_away, "rotate")
            try:
                await inner(stream, *args)
            finally:
                timer.cancel()

        EventStream._respond = respond

    return install
