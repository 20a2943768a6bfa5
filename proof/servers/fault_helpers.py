"""Changes that many faulty servers share: to requests before the server sees them, to responses, and to events."""

import json
import re

from proof.servers.fault_proxy import problem

DONE = b"event:done\n"
PING = b"event:ping\n"


# ---- requests, before the server sees them ---------------------------------------------------------------------------


def rewrite_query(hooks, pattern, by):
    """Have the server see another query."""

    def change(exchange):
        exchange.query = re.sub(pattern, by, exchange.query)

    hooks.requests.append(change)


def set_request_header(hooks, name, value, holds=lambda exchange: True):
    """Have the server see another field in the header of requests; None leaves it out."""
    hooks.requests.append(lambda exchange: holds(exchange) and exchange.set_header(name, value))


def rewrite_request_body(hooks, pattern, by):
    """Have the server see another body than the one that came."""

    def mend(exchange):
        exchange.body = re.sub(pattern, by, exchange.body)

    hooks.requests.append(mend)


def change_submits(hooks, change):
    """Change submits whose body is an object."""

    def hook(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and (found := change(exchange.json)):
            exchange.body = json.dumps(found).encode()

    hooks.requests.append(hook)


def drop_member(hooks, member, is_wrong):
    """Have a member of a submit be left out where it is wrong."""

    def drop(exchange):
        found = exchange.json
        if exchange.is_submit and isinstance(found, dict) and member in found and is_wrong(found[member]):
            exchange.body = json.dumps(
                {name: value for name, value in found.items() if name != member}
            ).encode()

    hooks.requests.append(drop)


def change_input(hooks, *names, change=lambda given, name: given.pop(name)):
    """Change members of the input of `generate`, where they are there."""

    def hook(exchange):
        found = exchange.json if exchange.is_submit and "generate" in exchange.path else None
        given = found.get("input") if isinstance(found, dict) else None
        known = [name for name in names if isinstance(given, dict) and name in given]
        for name in known:
            change(given, name)
        exchange.body = json.dumps(found).encode() if known else exchange.body

    hooks.requests.append(hook)


def take_samples(exchange):
    """Make a batch of an input that asks for several samples."""
    given = (
        (exchange.json or {}).get("input")
        if exchange.is_submit and "generate" in exchange.path and b'"n":' in exchange.body
        else None
    )
    if isinstance(given, dict) and (count := given.pop("n", 1)) > 1:
        exchange.body = json.dumps({"inputs": [given | {"seed": seed} for seed in range(count)]}).encode()


# ---- answers, by the server or in place of it ------------------------------------------------------------------------


def refuse(hooks, holds, status, code, **more):
    """Refuse requests of which something holds."""
    hooks.instead.append(lambda exchange: problem(status, code, **more) if holds(exchange) else None)


def set_header(hooks, name, value, holds=lambda exchange, status: True):
    """Have a field of the header of answers say something else."""

    def put(exchange, status, headers):
        if holds(exchange, status):
            headers[name] = value

    hooks.heads.append(put)


def drop_header(hooks, name, statuses=range(600)):
    """Leave a header out of answers with these statuses."""

    def leave_out(exchange, status, headers):
        if status in statuses:
            headers.pop(name, None)

    hooks.heads.append(leave_out)


def rewrite_body(hooks, pattern, by, *, at=".*"):
    """Change what stands in bodies of answers, of URLs with such a path."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            (status, re.sub(pattern, by, body)) if re.fullmatch(at, exchange.path) else None
        )
    )


def gone_is_unknown(hooks, *, at=".*"):
    """Answer requests for jobs that are gone as if they had never been."""
    hooks.bodies.append(
        lambda exchange, status, body: (
            problem(404, "job_not_found")[::2] if status == 410 and re.fullmatch(at, exchange.path) else None
        )
    )


# ---- events ----------------------------------------------------------------------------------------------------------


def seq_of(frame):
    """The seq of a logged event; 0 of any other."""
    found = re.match(rb"id:\d+-(\d+)\n", frame)
    return int(found[1]) if found else 0


def replace_events(hooks, mark, change):
    """Have something take the place of each event in which a mark stands."""
    hooks.frames.append(lambda exchange, frame: change(frame) if mark in frame else frame)


def rewrite_events(hooks, pattern, by, *, within=b""):
    """Change what stands in events, of those in which a mark stands."""
    replace_events(hooks, within, lambda frame: re.sub(pattern, by, frame))


def change_data(hooks, change):
    """Change the JSON of each logged event; what `change` gives takes its place."""

    def apply(exchange, frame):
        head, _, data = frame.partition(b"\ndata:")  # data may hold the word, but no line break
        if not head.startswith(b"id:"):
            return frame
        kind = re.search(rb"event:(\w+)", head)
        value = change(exchange, kind[1].decode() if kind else "message", json.loads(data))
        return head + b"\ndata:" + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

    hooks.frames.append(apply)
