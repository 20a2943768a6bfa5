"""Event streams, states and diffs for the plain client: the chapters on framing and on diffs, in as few lines as they
take. It shares nothing with the package, so that what both do is not one mistake made twice.
"""

import copy
import hashlib
import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any

BOUND = 17 * 2**20
"""Bytes of an unfinished event: what a snapshot may have, and a little more."""
ENDS = {"succeeded", "partially_failed", "failed", "cancelled"}
ITEM = {"queued", "running", "succeeded", "failed", "cancelled"}
ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}", re.ASCII)


class MalformedError(Exception):
    pass


class UnknownError(MalformedError):
    """What a later edition of the protocol may bring."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise MalformedError(what)


# ---- event streams ---------------------------------------------------------------------------------------------


@dataclass
class Event:
    type: str
    data: str
    id: str
    """The last event id."""
    own_id: bool
    """Whether this event had one itself."""


class Decoder:
    line_end = re.compile(rb"\r\n|\r|\n")

    def __init__(self, last_id: str = "") -> None:
        self.retry: int | None = None
        self.last_id = last_id
        self.pieces: list[bytes] = []
        self.after_cr = False
        self.at_start = True
        self.size = 0
        self.forget()

    def forget(self) -> None:
        self.type, self.data, self.new_id, self.held = "", [], None, 0

    def feed(self, chunk: bytes) -> list[Event]:
        events: list[Event] = []
        if self.after_cr and chunk:
            self.after_cr = False
            chunk = chunk.removeprefix(b"\n")
        at = 0
        for end in self.line_end.finditer(chunk):
            self.pieces.append(chunk[at : end.start()])
            line, self.pieces = b"".join(self.pieces), []
            at = end.end()
            self.after_cr = end[0] == b"\r" and at == len(chunk)
            events += self.line(line)
        self.pieces.append(chunk[at:])
        self.size = self.held + (self.size if not at else 0) + len(chunk) - at
        self.bound()
        return events

    def bound(self) -> None:
        demand(self.size <= BOUND, "an event that is too long")

    def end(self) -> list[Event]:
        return []

    def line(self, line: bytes) -> list[Event]:
        if self.at_start:
            self.at_start = False
            line = self.without_mark(line)
        if not line:
            return self.dispatch()
        name, colon, value = line.partition(b":")
        if colon and not name:
            return []
        self.field(name.decode("utf-8", "replace"), value.removeprefix(b" "))
        return []

    def without_mark(self, line: bytes) -> bytes:
        return line.removeprefix(b"\xef\xbb\xbf")

    def field(self, name: str, value: bytes) -> None:
        self.held += len(value)
        match name:
            case "event":
                self.type = self.text(value)
            case "data":
                self.data.append(value)
            case "id":
                if b"\0" not in value:
                    self.new_id = self.text(value)
            case "retry":
                self.take_retry(value)

    def text(self, value: bytes) -> str:
        return value.decode("utf-8", "replace")

    def take_retry(self, value: bytes) -> None:
        if value.isdigit():
            self.retry = min(int(value), 2**31 - 1)

    def dispatch(self) -> list[Event]:
        own_id = self.new_id is not None
        if self.new_id is not None:
            self.last_id = self.new_id
        event = Event(self.type or "message", self.text(b"\n".join(self.data)), self.last_id, own_id)
        found = [event] if self.data else []
        self.forget()
        return found


# ---- JSON ------------------------------------------------------------------------------------------------------


def parse(text: str) -> Any:
    try:
        value = json.loads(
            text, parse_constant=_refuse, parse_float=_float, parse_int=_int, object_pairs_hook=_object
        )
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"no JSON: {error}") from None
    _walk(value, 0)
    return value


def _refuse(word: str) -> None:
    raise ValueError(word)


def _float(text: str) -> float:
    demand(math.isfinite(float(text)), "a number that is not finite")
    return float(text)


def _int(text: str) -> int:
    demand(len(text) < 20 and abs(int(text)) <= 2**53, "an integer that is too large")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    demand(len(dict(pairs)) == len(pairs), "two members of one name")
    return dict(pairs)


def _walk(value: Any, depth: int) -> None:
    demand(depth <= 64 or not isinstance(value, dict | list), "nested too deep")
    match value:
        case str():
            demand(not re.search("[\ud800-\udfff]", value), "a lone surrogate")
        case list():
            demand(depth < 64, "nested too deep")
            for one in value:
                _walk(one, depth + 1)
        case dict():
            demand(depth < 64, "nested too deep")
            for name, one in value.items():
                _walk(name, depth + 1)
                _walk(one, depth + 1)


# ---- states ----------------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_state(state: Any) -> None:
    demand(isinstance(state, dict) and state.get("status") in {"queued", "running"}, "the job's status")
    items = state.get("items")
    demand(isinstance(items, list) and items, "items")
    for item in items:
        demand(isinstance(item, dict) and item.get("status") in ITEM and "value" in item, "an item")
        stable = item.get("stable", {})
        demand(isinstance(stable, dict) and all(map(is_count, stable.values())), "stable")
    demand(isinstance(state.get("usage", {}), dict), "usage")
    demand(isinstance(state.get("notes", []), list), "notes")


def tokens(path: Any) -> list[str]:
    demand(isinstance(path, str) and (not path or path[0] == "/"), "a pointer")
    demand(not re.search("~(?![01])", path), "a pointer")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]


def index(token: str) -> int:
    demand(re.fullmatch("0|[1-9][0-9]{0,8}", token, re.ASCII), "an index")
    return int(token)


def get(root: Any, path: Any) -> Any:
    for token in tokens(path):
        if isinstance(root, dict):
            demand(token in root, "no such member")
            root = root[token]
        else:
            demand(isinstance(root, list) and index(token) < len(root), "no such element")
            root = root[int(token)]
    return root


def put(root: Any, path: str, value: Any) -> None:
    parent = get(root, path.rpartition("/")[0])
    token = tokens(path)[-1]
    parent[token if isinstance(parent, dict) else int(token)] = value


def length(text: str) -> int:
    return len(text)


class State:
    """A state and its columns. Changes make a copy: all of a diff, or nothing of it."""

    length = staticmethod(length)

    def __init__(self, state: Any, columns: list[str]) -> None:
        check_state(state)
        demand(isinstance(columns, list) and all(isinstance(one, str) for one in columns), "columns")
        self.value, self.columns = state, columns

    def apply(self, diff: Any) -> "State":
        ops, checks = diff, []
        if isinstance(diff, dict):
            if "ops" not in diff:
                raise UnknownError("a diff of an unknown shape")
            ops, checks = diff["ops"], diff.get("check", [])
            demand(isinstance(ops, list) and isinstance(checks, list), "ops and check")
        elif isinstance(diff, str):
            demand(len(self.columns) == 1, "a bare string needs one column")
            demand(isinstance(get(self.value, self.columns[0]), str), "a bare string needs a text")
            ops = [["a", self.columns[0], diff]]
        elif not isinstance(diff, list):
            raise UnknownError("a diff of an unknown shape")
        root = {"": self.copied()}
        for op in ops:
            self.op(root, op)
        after = type(self)(root[""], self.columns)
        after.verify(checks)
        self.keep_stable(after)
        return after

    def copied(self) -> Any:
        return copy.deepcopy(self.value)

    def op(self, root: dict[str, Any], op: Any) -> None:
        demand(isinstance(op, list) and op, "an op")
        match op:
            case ["r", *row]:
                demand(len(row) == len(self.columns), "a row of another length")
                for path, one in zip(self.columns, row, strict=True):
                    text = isinstance(get(root[""], path), str)
                    self.append(root, path, one if text else [one])
            case ["a", path, more]:
                self.append(root, path, more)
            case ["t", path, n]:
                old = get(root[""], path)
                demand(isinstance(old, str | list) and is_count(n), "what can be truncated")
                demand(n <= self.length(old), "more than there is")
                put(root, f"/{path}", old[: self.length(old) - n])
            case ["s", path, value]:
                parent, token = self.place(root, path)
                if isinstance(parent, dict):
                    parent[token] = value
                else:
                    demand(index(token) <= len(parent), "past the end")
                    parent[int(token) : int(token) + 1] = [value]
            case ["i", path, value]:
                parent, token = self.place(root, path)
                demand(isinstance(parent, list) and index(token) <= len(parent), "past the end")
                parent.insert(int(token), value)
            case ["d", path]:
                demand(path, "the whole state")
                parent, token = self.place(root, path)
                get(root[""], path)
                del parent[token if isinstance(parent, dict) else int(token)]
            case [name, *_] if name in list("ratsid"):
                raise MalformedError("an op of another length")
            case _:
                raise UnknownError("an unknown op")

    def append(self, root: dict[str, Any], path: str, more: Any) -> None:
        old = get(root[""], path)
        demand(isinstance(old, str | list) and type(old) is type(more), "what can be appended to")
        put(root, f"/{path}", old + more)

    def place(self, root: dict[str, Any], path: str) -> tuple[Any, str]:
        names = tokens(path)
        parent = get(root[""], path.rpartition("/")[0]) if names else root
        demand(isinstance(parent, dict | list), "a place that holds others")
        return parent, names[-1] if names else ""

    def verify(self, checks: list[Any]) -> None:
        for check in checks:
            demand(isinstance(check, list) and len(check) in {2, 3}, "a check")
            found = get(self.value, check[0])
            kind = str if len(check) == 3 else list
            demand(isinstance(found, kind) and len(found) == check[1], "a failed check: length")
            if kind is str:
                demand(zlib.crc32(found.encode()) == check[2], "a failed check: CRC")

    def keep_stable(self, after: "State") -> None:
        for item, new in zip(self.value["items"], after.value["items"], strict=False):
            for path, n in item.get("stable", {}).items():
                text = get(item["value"], path)
                now = get(new["value"], path)
                demand(isinstance(now, str) and now[:n] == text[:n], "a breach of stable")

    def digest(self) -> str:
        # For what the scenarios hold this is the form of RFC 8785: no fractions, no names beyond ASCII.
        form = json.dumps(self.value["items"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(form.encode()).hexdigest()[:16]
