"""Event streams, states and diffs of the plain client, as the chapters on framing and diffs describe them.

The plain client shares no code with `tidewire`, so that a mistake in one of the two implementations makes their results
differ.
"""

import copy
import hashlib
import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any

MAX_UNFINISHED_BYTES = 17 * 2**20
"""Maximum size of an unfinished event: the largest allowed snapshot and a margin."""
ENDS = {"succeeded", "partially_failed", "failed", "cancelled"}
ITEM = {"queued", "running", "succeeded", "failed", "cancelled"}
ID = re.compile(r"[1-9][0-9]{0,9}-[1-9][0-9]{0,14}", re.ASCII)


class MalformedError(Exception):
    pass


class UnknownError(MalformedError):
    """The server sent a construct that a later version of the protocol may define."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise MalformedError(what)


# ---- event streams ---------------------------------------------------------------------------------------------


@dataclass
class Event:
    type: str
    data: str
    id: str
    """Last event id of the stream at this event."""
    own_id: bool
    """Whether the event itself has an id field."""


class Decoder:
    line_end = re.compile(rb"\r\n|\r|\n")

    def __init__(self, last_id: str = "") -> None:
        self.retry: int | None = None
        self.last_id = last_id
        self.pieces: list[bytes] = []
        self.after_cr = False
        self.at_start = True
        self.size = 0
        self.reset()

    def reset(self) -> None:
        self.type, self.data, self.new_id, self.event_size = "", [], None, 0

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
        self.size = self.event_size + (self.size if not at else 0) + len(chunk) - at
        self.bound()
        return events

    def bound(self) -> None:
        demand(self.size <= MAX_UNFINISHED_BYTES, "an event is too long")

    def end(self) -> list[Event]:
        return []

    def line(self, line: bytes) -> list[Event]:
        if self.at_start:
            self.at_start = False
            line = self.strip_bom(line)
        if not line:
            return self.dispatch()
        name, colon, value = line.partition(b":")
        if colon and not name:
            return []
        self.field(name.decode("utf-8", "replace"), value.removeprefix(b" "))
        return []

    def strip_bom(self, line: bytes) -> bytes:
        return line.removeprefix(b"\xef\xbb\xbf")

    def field(self, name: str, value: bytes) -> None:
        self.event_size += len(value)
        match name:
            case "event":
                self.type = self.text(value)
            case "data":
                self.data.append(value)
            case "id":
                if b"\0" not in value:
                    self.new_id = self.text(value)
            case "retry":
                self.set_retry(value)

    def text(self, value: bytes) -> str:
        return value.decode("utf-8", "replace")

    def set_retry(self, value: bytes) -> None:
        if value.isdigit():
            self.retry = min(int(value), 2**31 - 1)

    def dispatch(self) -> list[Event]:
        own_id = self.new_id is not None
        if self.new_id is not None:
            self.last_id = self.new_id
        event = Event(self.type or "message", self.text(b"\n".join(self.data)), self.last_id, own_id)
        found = [event] if self.data else []
        self.reset()
        return found


# ---- JSON ------------------------------------------------------------------------------------------------------


class Json:
    """JSON parser that rejects everything the protocol forbids."""

    max_depth = 64
    """Maximum nesting of arrays and objects."""

    @classmethod
    def parse(cls, text: str) -> Any:
        try:
            value = json.loads(
                text,
                parse_constant=cls.constant,
                parse_float=cls.number,
                parse_int=cls.integer,
                object_pairs_hook=cls.members,
            )
        except (ValueError, RecursionError) as error:
            raise MalformedError(f"invalid JSON: {error}") from None
        cls.walk(value, 0)
        return value

    @staticmethod
    def constant(word: str) -> Any:
        raise ValueError(word)

    @staticmethod
    def number(text: str) -> float:
        demand(math.isfinite(float(text)), "a number is not finite")
        return float(text)

    @staticmethod
    def integer(text: str) -> int:
        demand(len(text) < 20 and abs(int(text)) <= 2**53, "an integer is too large")
        return int(text)

    @staticmethod
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        demand(len(dict(pairs)) == len(pairs), "two members have the same name")
        return dict(pairs)

    @staticmethod
    def text(value: str) -> None:
        demand(not re.search("[\ud800-\udfff]", value), "a lone surrogate")

    @classmethod
    def walk(cls, value: Any, depth: int) -> None:
        match value:
            case str():
                cls.text(value)
            case list() | dict():
                demand(depth < cls.max_depth, "nested too deep")
                for item in value:
                    cls.walk(item, depth + 1)
                for item in value.values() if isinstance(value, dict) else ():
                    cls.walk(item, depth + 1)


parse = Json.parse


# ---- states ----------------------------------------------------------------------------------------------------


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_problem(value: Any) -> bool:
    return isinstance(value, dict) and {"code", "title", "status"} <= value.keys()


class State:
    """A job's state with its columns.

    A diff is applied to a copy of the state, so that it takes effect completely or not at all.
    """

    length = staticmethod(len)
    is_problem = staticmethod(is_problem)
    running = frozenset({"queued", "running"})

    def __init__(self, state: Any, columns: list[str]) -> None:
        self.check(state)
        demand(isinstance(columns, list) and all(isinstance(item, str) for item in columns), "columns")
        self.value, self.columns = state, columns

    def check(self, state: Any) -> None:
        demand(isinstance(state, dict) and state.get("status") in self.running, "the job's status")
        items = state.get("items")
        demand(isinstance(items, list) and items, "items")
        for item in items:
            demand(isinstance(item, dict) and item.get("status") in ITEM, "an item")
            demand("error" not in item or self.is_problem(item["error"]), "an error")
            stable = item.get("stable", {})
            demand(isinstance(stable, dict) and all(map(is_count, stable.values())), "stable")
        demand(isinstance(state.get("usage", {}), dict), "usage")
        demand(isinstance(state.get("notes", []), list), "notes")

    # ---- pointers ------------------------------------------------------------------------------------------------

    def tokens(self, path: Any) -> list[str]:
        demand(isinstance(path, str) and (not path or path[0] == "/"), "a pointer")
        demand(not re.search("~(?![01])", path), "a pointer")
        return [self.unescaped(token) for token in path.split("/")[1:]]

    def unescaped(self, token: str) -> str:
        return token.replace("~1", "/").replace("~0", "~")

    def index(self, token: str) -> int:
        demand(re.fullmatch("0|[1-9][0-9]{0,8}", token, re.ASCII), "an index")
        return int(token)

    def get(self, root: Any, path: Any) -> Any:
        for token in self.tokens(path):
            if isinstance(root, dict):
                demand(token in root, "no such member")
                root = root[token]
            else:
                demand(isinstance(root, list) and self.index(token) < len(root), "no such element")
                root = root[self.index(token)]
        return root

    def put(self, root: Any, path: str, value: Any) -> None:
        parent = self.get(root, path.rpartition("/")[0])
        token = self.tokens(path)[-1]
        parent[token if isinstance(parent, dict) else self.index(token)] = value

    def place(self, root: dict[str, Any], path: str) -> tuple[Any, str]:
        names = self.tokens(path)
        parent = self.get(root[""], path.rpartition("/")[0]) if names else root
        demand(isinstance(parent, dict | list), "the parent is neither an object nor an array")
        return parent, names[-1] if names else ""

    # ---- diffs ---------------------------------------------------------------------------------------------------

    def apply(self, diff: Any) -> "State":
        ops, checks = self.ops_of(diff)
        root = {"": self.copied()}
        for op in ops:
            self.op(root, op)
        after = type(self)(root[""], self.columns)
        after.verify(checks)
        self.verify_stable(after)
        return after

    def ops_of(self, diff: Any) -> tuple[list[Any], list[Any]]:
        match diff:
            case {"ops": ops}:
                checks = diff.get("check", [])
                demand(isinstance(ops, list) and isinstance(checks, list), "ops and check")
                return ops, checks
            case str():
                return self.bare(diff), []
            case list():
                return diff, []
        raise UnknownError("a diff of an unknown shape")

    def bare(self, text: str) -> list[Any]:
        demand(len(self.columns) == 1, "a bare string needs one column")
        demand(isinstance(self.get(self.value, self.columns[0]), str), "a bare string needs a text")
        return [["a", self.columns[0], text]]

    def copied(self) -> Any:
        return copy.deepcopy(self.value)

    def op(self, root: dict[str, Any], op: Any) -> None:
        demand(isinstance(op, list) and op, "an op")
        match op:
            case ["r", *row]:
                self.row(root, row)
            case ["a", path, more]:
                self.append(root, path, more)
            case ["t", path, n]:
                self.truncate(root, path, n)
            case ["s", path, value]:
                self.set(*self.place(root, path), value)
            case ["i", path, value]:
                self.insert(*self.place(root, path), value)
            case ["d", path]:
                demand(path, "the whole state cannot be deleted")
                self.delete(*self.place(root, path))
            case [name, *_] if name in list("ratsid"):
                raise MalformedError("an operation has the wrong length")
            case _:
                raise UnknownError("an unknown operation")

    def row(self, root: dict[str, Any], row: list[Any]) -> None:
        demand(len(row) == len(self.columns), "a row has the wrong length")
        for path, item in zip(self.columns, row, strict=True):
            text = isinstance(self.get(root[""], path), str)
            self.append(root, path, item if text else [item])

    def append(self, root: dict[str, Any], path: str, more: Any) -> None:
        old = self.get(root[""], path)
        demand(
            isinstance(old, str | list) and type(old) is type(more),
            "the append does not match the type of its target",
        )
        self.put(root, f"/{path}", old + more)

    def truncate(self, root: dict[str, Any], path: str, n: Any) -> None:
        old = self.get(root[""], path)
        demand(isinstance(old, str | list) and is_count(n), "the target cannot be truncated")
        demand(n <= self.length(old), "the truncation is longer than its target")
        self.put(root, f"/{path}", old[: self.length(old) - n])

    def set(self, parent: Any, token: str, value: Any) -> None:
        if isinstance(parent, dict):
            parent[token] = value
        else:
            demand(self.index(token) <= len(parent), "past the end")
            parent[self.index(token) : self.index(token) + 1] = [value]

    def insert(self, parent: Any, token: str, value: Any) -> None:
        demand(isinstance(parent, list) and self.index(token) <= len(parent), "past the end")
        parent.insert(self.index(token), value)

    def delete(self, parent: Any, token: str) -> None:
        if isinstance(parent, dict):
            demand(token in parent, "no such member")
            del parent[token]
        else:
            demand(self.index(token) < len(parent), "no such element")
            del parent[self.index(token)]

    # ---- verification --------------------------------------------------------------------------------------------

    def verify(self, checks: list[Any]) -> None:
        for check in checks:
            demand(isinstance(check, list) and len(check) in {2, 3}, "a check")
            found = self.checked(check[0])
            demand(
                isinstance(found, str if len(check) == 3 else list), "a failed check: the type of its target"
            )
            self.verify_length(found, check[1])
            if isinstance(found, str):
                self.verify_crc(found, check[2])

    def checked(self, path: str) -> Any:
        return self.get(self.value, path)

    def verify_length(self, found: Any, n: Any) -> None:
        demand(is_count(n) and len(found) == n, "a failed check: length")

    def verify_crc(self, found: str, crc: Any) -> None:
        demand(zlib.crc32(found.encode()) == crc, "a failed check: CRC")

    def verify_stable(self, after: "State") -> None:
        for item, new in zip(self.value["items"], after.value["items"], strict=False):
            for path, n in item.get("stable", {}).items():
                text = self.get(item["value"], path)
                now = self.get(new["value"], path)
                demand(isinstance(now, str) and now[:n] == text[:n], "a breach of stable")
                self.verify_not_lowered(new, path, n)

    def verify_not_lowered(self, new: Any, path: str, n: int) -> None:
        demand(new.get("stable", {}).get(path, -1) >= n, "a breach of stable")

    def digest(self) -> str:
        return hashlib.sha256(self.form(self.value["items"]).encode()).hexdigest()[:16]

    def form(self, value: Any) -> str:
        """Canonical JSON by RFC 8785."""
        match value:
            case dict():
                names = sorted(value, key=self.order)
                return "{" + ",".join(f"{self.form(name)}:{self.form(value[name])}" for name in names) + "}"
            case list():
                return "[" + ",".join(map(self.form, value)) + "]"
            case float():
                return self.number(value)
        return json.dumps(value, ensure_ascii=False)

    def order(self, name: str) -> Any:
        return name.encode("utf-16-be")

    def number(self, value: float) -> str:
        if value.is_integer() and abs(value) < 1e21:
            return str(int(value))  # RFC 8785 writes 1.0 as 1
        return re.sub("e([-+])0", r"e\1", repr(value))
