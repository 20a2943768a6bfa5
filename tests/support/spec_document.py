"""The specification as data: extracted requirements, schemas, and events and exchanges of its examples."""

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tidewire.protocol.sse import Decoder, Event

SPEC = Path(__file__).resolve().parents[2] / "spec"


def load_extractor() -> ModuleType:
    found = importlib.util.spec_from_file_location("tidewire_spec_extract", SPEC / "extract.py")
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


extract = load_extractor()
document = extract.read()

SCHEMAS: dict[str, Any] = {
    file.name.removesuffix(".schema.json"): json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((SPEC / "schema").glob("*.schema.json"))
}
REGISTRY = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS.values()
)

SCHEMA_OF_EVENT = {
    "snapshot": "snapshot",
    "message": "diff",
    "done": "done",
    "hello": "hello",
    "queue": "queue",
    "progress": "progress",
    "ping": "ping",
    "goaway": "goaway",
    "problem": "problem",
}

BOUND = {
    "{job}": "2yJq8sVbT1mHkP0dXw4RcA",
    "{id}": "1-1",
    "{int}": "1000",
    "{time}": "2026-03-01T13:00:00Z",
    "{left}": "2yJq8sVbT1mHkP0dXw4RcA",
    "{two}": "2yJq8sVbT1mHkP0dXw4RcA",
    "{ended}": "2yJq8sVbT1mHkP0dXw4RcA",
    "{report}": "2yJq8sVbT1mHkP0dXw4RcA",
    "{textdigest}": "0123456789abcdef",
    '"{error}"': '{"code":"worker_lost","title":"The worker that ran the job was lost","status":500}',
    "{digest}": "0123456789abcdef",
    '"{checks}"': "[]",
}
"""Values of the placeholders in a transcript that is read without a server."""


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"{name}.schema.json"}, registry=REGISTRY)


def breaches(name: str, instance: Any) -> list[str]:
    """Return the validation errors of an instance against a schema; empty for a valid instance."""
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(instance)]


def events_of(text: str) -> list[Event]:
    return list(Decoder().feed(text.encode()))


def fill(text: str) -> str:
    for name, value in BOUND.items():
        text = text.replace(name, value)
    return text


class Answer(NamedTuple):
    """One request and its response in a transcript."""

    request: str
    """Request line, header fields, empty line and body."""
    status: int
    headers: dict[str, str]
    body: str
    cut: bool

    @property
    def is_stream(self) -> bool:
        return "\ndata:" in self.body


def exchanges(transcript: str) -> Iterator[Answer]:
    """Yield the exchanges of a transcript; lines with `>>` and `<<` are on a second connection."""
    requests: dict[str, list[str]] = {">": [], ">>": []}
    responses: dict[str, list[str]] = {"<": [], "<<": []}
    for line in [*fill(transcript).splitlines(), "> END", ">> END"]:
        mark = re.match(r">>|<<|>|<|#", line)
        assert mark, f"a transcript line must begin with >, >>, <, << or #: {line!r}"
        text = line[mark.end() :].removeprefix(" ")
        if mark[0].startswith(">"):
            response = responses[mark[0].replace(">", "<")]
            if response:
                yield _parse_exchange("\n".join(requests[mark[0]]), response)
                requests[mark[0]].clear()
                response.clear()
            requests[mark[0]].append(text)
        elif mark[0] != "#":
            responses[mark[0]].append(text)


def _parse_exchange(request: str, lines: list[str]) -> Answer:
    cut = lines[-1] == "CUT"
    kept = [line for line in lines if line not in {"CUT", "EOF"}]
    head, _, body = "\n".join(kept).partition("\n\n")
    status, *fields = head.splitlines()
    headers = dict(field.split(": ", 1) for field in fields)
    return Answer(request, int(status), headers, f"{body}\n", cut)
