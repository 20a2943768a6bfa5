"""What many mutants change: requests before the server sees them, answers, and events."""

import json
import re

from conformance.suite.meddling import problem

DONE = b"event:done\n"
PING = b"event:ping\n"


def seq_of(frame):
    """The seq of a logged event; 0 of any other."""
    found = re.match(rb"id:\d+-(\d+)\n", frame)
    return int(found[1]) if found else 0


def on_data(hooks, change):
    """Change the JSON of each logged event; what `change` gives takes its place."""

    def apply(talk, frame):
        head, _, data = frame.partition(b"\ndata:")  # data may hold the word, but no line break
        if not head.startswith(b"id:"):
            return frame
        kind = re.search(rb"event:(\w+)", head)
        value = change(talk, kind[1].decode() if kind else "message", json.loads(data))
        return head + b"\ndata:" + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"

    hooks.frames.append(apply)


def on_query(hooks, pattern, by):
    """Have the server see another query."""

    def change(talk):
        talk.scope["query_string"] = re.sub(pattern, by, talk.scope["query_string"])

    hooks.requests.append(change)


def without(hooks, name, status):
    """Leave a header out of the answers of one status."""
    hooks.heads.append(
        lambda talk, found, headers: headers.pop(name, None) and None if found == status else None
    )


def dropped(hooks, member, is_wrong):
    """Have a member of a submit be left out where it is wrong."""

    def drop(talk):
        found = talk.json
        if talk.is_submit and isinstance(found, dict) and member in found and is_wrong(found[member]):
            talk.body = json.dumps({name: value for name, value in found.items() if name != member}).encode()

    hooks.requests.append(drop)


def mended(hooks, pattern, by):
    """Have the server see another body than the one that came."""

    def mend(talk):
        talk.body = re.sub(pattern, by, talk.body)

    hooks.requests.append(mend)


def refusing(hooks, holds, status, code, **more):
    """Refuse requests of which something holds."""
    hooks.instead.append(lambda talk: problem(status, code, **more) if holds(talk) else None)


def told_otherwise(hooks, pattern, by, *, below="/"):
    """Change what stands in bodies of answers."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, re.sub(pattern, by, body)) if talk.path.startswith(below) else None
        )
    )


def of_the_input(hooks, *names, change=lambda given, name: given.pop(name)):
    """Change members of the input of `generate`, where they are there."""

    def hook(talk):
        found = talk.json if talk.is_submit and "generate" in talk.path else None
        given = found.get("input") if isinstance(found, dict) else None
        known = [name for name in names if isinstance(given, dict) and name in given]
        for name in known:
            change(given, name)
        talk.body = json.dumps(found).encode() if known else talk.body

    hooks.requests.append(hook)


def submits(hooks, change):
    """Change submits whose body is an object."""

    def hook(talk):
        if talk.is_submit and isinstance(talk.json, dict) and (found := change(talk.json)):
            talk.body = json.dumps(found).encode()

    hooks.requests.append(hook)


def take_samples(talk):
    """Make a batch of an input that asks for several samples."""
    given = (
        (talk.json or {}).get("input")
        if talk.is_submit and "generate" in talk.path and b'"n":' in talk.body
        else None
    )
    if isinstance(given, dict) and (count := given.pop("n", 1)) > 1:
        talk.body = json.dumps({"inputs": [given | {"seed": seed} for seed in range(count)]}).encode()
        talk.set_header("content-length", str(len(talk.body)))
