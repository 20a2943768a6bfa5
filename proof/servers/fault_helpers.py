"""Hooks shared by many faulty servers: changes to requests, responses and events."""

import json
import re

from proof.servers.fault_proxy import problem

DONE = b"event:done\n"
PING = b"event:ping\n"


# ---- callers ---------------------------------------------------------------------------------------------------------


def serve_anonymous_callers(hooks, principal, *, lists_jobs=False):
    """Serve all anonymous callers as one principal, whose jobs are listed only if `lists_jobs` is true."""

    def name(exchange):
        if exchange.header("authorization") or re.search(b"token=|key=", exchange.query):
            return
        exchange.own["anonymous"] = True
        exchange.set_header("authorization", f"Bearer {principal}")
        if exchange.path == "/v1/jobs" and not lists_jobs:
            exchange.path = "/v1/nothing"

    def hide_list(exchange, status, body):
        hidden = exchange.path == "/v1" and exchange.own.get("anonymous") and not lists_jobs
        return (status, body.replace(b'"list",', b"")) if hidden else None

    hooks.requests.append(name)
    hooks.bodies.append(hide_list)


# ---- requests --------------------------------------------------------------------------------------------------------


def rewrite_query(hooks, pattern, by):
    """Rewrite the query of each request before it reaches the server."""

    def change(exchange):
        exchange.query = re.sub(pattern, by, exchange.query)

    hooks.requests.append(change)


def set_request_header(hooks, name, value, condition=lambda exchange: True):
    """Set a header of each request before the request reaches the server. The value None removes the header."""
    hooks.requests.append(lambda exchange: condition(exchange) and exchange.set_header(name, value))


def rewrite_request_body(hooks, pattern, by):
    """Rewrite the body of each request before it reaches the server."""

    def rewrite(exchange):
        exchange.body = re.sub(pattern, by, exchange.body)

    hooks.requests.append(rewrite)


def change_submits(hooks, change):
    """Change the body of each request to submit a job, if the body is a JSON object."""

    def hook(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and (found := change(exchange.json)):
            exchange.body = json.dumps(found).encode()

    hooks.requests.append(hook)


def drop_member(hooks, member, is_invalid):
    """Remove a member from the body of a request to submit a job, if the value of the member is invalid."""

    def drop(exchange):
        found = exchange.json
        if exchange.is_submit and isinstance(found, dict) and member in found and is_invalid(found[member]):
            exchange.body = json.dumps(
                {name: value for name, value in found.items() if name != member}
            ).encode()

    hooks.requests.append(drop)


def change_input(hooks, *names, change=lambda input_value, name: input_value.pop(name)):
    """Change the named members of each input of the endpoint `generate`. By default, remove these members."""

    def hook(exchange):
        found = exchange.json if exchange.is_submit and "generate" in exchange.path else None
        input_value = found.get("input") if isinstance(found, dict) else None
        known = [name for name in names if isinstance(input_value, dict) and name in input_value]
        for name in known:
            change(input_value, name)
        exchange.body = json.dumps(found).encode() if known else exchange.body

    hooks.requests.append(hook)


def take_samples(exchange):
    """Convert a request to submit a job with `n` samples to a request to submit a batch of `n` inputs."""
    input_value = (
        (exchange.json or {}).get("input")
        if exchange.is_submit and "generate" in exchange.path and b'"n":' in exchange.body
        else None
    )
    if isinstance(input_value, dict) and (count := input_value.pop("n", 1)) > 1:
        exchange.body = json.dumps(
            {"inputs": [input_value | {"seed": seed} for seed in range(count)]}
        ).encode()


# ---- responses -------------------------------------------------------------------------------------------------------


def refuse(hooks, condition, status, code, **more):
    """Refuse requests that satisfy a condition."""
    hooks.instead.append(lambda exchange: problem(status, code, **more) if condition(exchange) else None)


def set_header(hooks, name, value, condition=lambda exchange, status: True):
    """Set a response header."""

    def set_value(exchange, status, headers):
        if condition(exchange, status):
            headers[name] = value

    hooks.heads.append(set_value)


def drop_header(hooks, name, statuses=range(600)):
    """Remove a header from responses with the given statuses."""

    def remove(exchange, status, headers):
        if status in statuses:
            headers.pop(name, None)

    hooks.heads.append(remove)


def rewrite_body(hooks, pattern, by, *, at=".*"):
    """Rewrite response bodies for paths that match `at`."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (status, re.sub(pattern, by, body)) if re.fullmatch(at, exchange.path) else None
        )
    )


def gone_is_unknown(hooks, *, at=".*"):
    """Replace responses with status 410 by 404, for paths that match `at`."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            problem(404, "job_not_found")[::2] if status == 410 and re.fullmatch(at, exchange.path) else None
        )
    )


# ---- events ----------------------------------------------------------------------------------------------------------


def seq_of(frame):
    """Return the sequence number of a logged event, or 0 for an event that is not logged."""
    found = re.match(rb"id:\d+-(\d+)\n", frame)
    return int(found[1]) if found else 0


def replace_events(hooks, mark, change):
    """Replace each event that contains the bytes `mark` by the result of `change`."""
    hooks.frames.append(lambda exchange, frame: change(frame) if mark in frame else frame)


def rewrite_events(hooks, pattern, by, *, within=b""):
    """Rewrite events that contain the bytes `within`."""
    replace_events(hooks, within, lambda frame: re.sub(pattern, by, frame))


def change_data(hooks, change):
    """Replace the JSON data of each logged event by the result of `change`."""

    def apply(exchange, frame):
        head, _, data = frame.partition(
            b"\ndata:"
        )  # the data may contain "data:", but no line break before it
        if not head.startswith(b"id:"):
            return frame
        kind = re.search(rb"event:(\w+)", head)
        value = change(exchange, kind[1].decode() if kind else "message", json.loads(data))
        return head + b"\ndata:" + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

    hooks.frames.append(apply)
