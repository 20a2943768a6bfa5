"""Job of a fake server (`FakeJob`). Its events are generated while a client reads them."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidewire.protocol import messages
from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire.protocol.diff import diff
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest, text_check
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import Done, Hello, SnapshotReason
from tidewire.protocol.problems import Problem, to_json
from tidewire.testing import generation_values
from tidewire.testing.endpoint_script import (
    Answer,
    AppendText,
    ConnectionFault,
    FailItem,
    FakeToken,
    RestartJob,
    SendEvent,
    SetValue,
)
from tidewire.testing.generation_values import TokenIds

CREATED = "2026-01-01T00:00:00Z"
RETRY_MS = 1
"""Reconnection time that the fake server sends to clients, in milliseconds. It is short, so that tests do not wait."""


class Signal(Enum):
    """Connection fault.

    The response body yields this value instead of bytes at the position where the connection breaks or stalls.
    """

    CUT = "cut"
    STALL = "stall"


@dataclass(frozen=True, slots=True)
class Logged:
    """A logged event, with the job's state after the event."""

    cursor: Cursor
    frame: bytes
    view: View
    columns: tuple[str, ...]
    done: Done | None = None


class FakeJob:
    """A job of a fake server. It advances only while a client reads its events."""

    def __init__(
        self,
        job_id: str,
        endpoint: str,
        items: Sequence[Answer],
        inputs: Sequence[Any],
        *,
        batch: bool,
        ids: TokenIds,
        base_path: str,
    ) -> None:
        self.id = job_id
        self.path: str = f"{base_path}/v1/jobs/{job_id}"
        """Path of the job's URL, with the path of the server's URL."""
        self.endpoint = endpoint
        self.batch = batch
        self.cancelled: set[int] = set()
        """Indexes of the items that were cancelled. They end with the status `cancelled` before their next step."""
        self._answers = items
        self._inputs = inputs
        self._ids = ids
        for token in [step for answer in items for step in answer.steps if isinstance(step, FakeToken)]:
            # Assign all token ids now, because a client may request the vocabulary before the first token.
            ids.assign(token)
        self._document = Document(self._initial_state("queued"), self._columns)
        self._cursor = Cursor(1, 0)
        self._lock = threading.Lock()
        # Elements are logged events, encoded events without an id, and faults.
        self._script: list[Logged | bytes | ConnectionFault] = []
        self._entries = self._run()
        self._advance()

    # ---- requests ----------------------------------------------------------------------------------------------

    @property
    def latest(self) -> Logged:
        """The logged event that was generated last."""
        return next(entry for entry in reversed(self._script) if isinstance(entry, Logged))

    @property
    def status(self) -> str:
        done = self.latest.done
        return str(self.latest.view.value("/status")) if done is None else done.status

    def resource(self, *, state: bool = True) -> dict[str, Any]:
        """Return the body of the response to `GET /v1/jobs/{id}`.

        If `state` is False, return an entry of the job list instead.
        """
        latest = self.latest
        body: dict[str, Any] = {
            "id": self.id,
            "endpoint": self.endpoint,
            "status": self.status,
            "batch": self.batch,
            "columns": [*latest.columns],
            "cursor": str(latest.cursor),
            "attempt": 1,
            "created_at": CREATED,
            "done": None if latest.done is None else messages.to_json(latest.done),
            "links": {"self": self.path, "events": f"{self.path}/events", "cancel": f"{self.path}/cancel"},
        }
        if self.status != "queued":
            body["started_at"] = CREATED
        if latest.done is not None:
            body["ended_at"] = CREATED
        if not state:
            return body
        whole: Any = latest.view.value()
        # In the log, the status of an ended job is set by `done` and not by a diff. Therefore set the status in the
        # state here.
        return body | {"state": whole | {"status": self.status}}

    def cancel(self, items: Sequence[int] | None) -> None:
        """Cancel the items with the indexes in `items`, unless they have ended.

        If `items` is None, cancel all items, and run the job to its end.

        Raises:
            IndexError: The job has no item with one of the indexes.
        """
        all_items = range(len(self._answers))
        if unknown := {*(items or ())} - {*all_items}:
            raise IndexError(f"/items: the job has {len(all_items)} items, and none at {min(unknown)}")
        self.cancelled.update(all_items if items is None else items)
        if items is None:
            while self._advance():
                pass

    def ended_at(self, cursor: Cursor | None) -> bool:
        """Whether the job has ended and the cursor is the id of its last event."""
        return self.latest.done is not None and cursor == self.latest.cursor

    def frames(self, cursor: Cursor | None, heartbeat_ms: int) -> Iterator[bytes | Signal]:
        """Yield the encoded events after a cursor, and a signal at each scripted fault of the connection."""
        hello = Hello(
            protocol=messages.PROTOCOL,
            job=self.id,
            events=f"{self.path}/events",
            head=str(self.latest.cursor),
            heartbeat_ms=heartbeat_ms,
        )
        yield messages.ephemeral_frame("hello", hello, retry_ms=RETRY_MS)
        at, opening = self._after(cursor)
        yield opening
        fault: ConnectionFault | None = None
        while at < len(self._script) or self._advance():
            entry = self._script[at]
            at += 1
            if isinstance(entry, ConnectionFault):
                fault = None if entry.fired else entry
                entry.fired = True
                continue
            frame = entry if isinstance(entry, bytes) else entry.frame
            if fault is not None:
                yield frame[: len(frame) // 2]
                yield Signal.STALL if fault.stalls else Signal.CUT
            yield frame

    def _after(self, cursor: Cursor | None) -> tuple[int, bytes]:
        """Return the index of the first entry to send after a cursor, and an encoded snapshot to send before it.

        If the client can continue from its cursor, no snapshot is needed, and the bytes are empty.
        """
        if cursor == BEGINNING:
            return 0, b""
        for at, entry in enumerate(self._script):
            if isinstance(entry, Logged) and entry.cursor == cursor:
                return at + 1, b""
        reason: SnapshotReason = "compacted" if cursor is None else "rewound"
        at, latest = max(
            (at, entry)
            for at, entry in enumerate(self._script)
            if isinstance(entry, Logged) and entry.done is None
        )
        state: Any = latest.view.value()
        return at + 1, messages.snapshot_frame(latest.cursor, state, [*latest.columns], reason)

    def _advance(self) -> bool:
        """Generate the next event or fault of the job. Returns False at the end of the job."""
        with self._lock:
            made = next(self._entries, None)
            if made is None:
                return False
            self._script.append(made)
            return True

    # ---- running -----------------------------------------------------------------------------------------------

    def _run(self) -> Iterator[Logged | bytes | ConnectionFault]:
        yield self._snapshot("start")
        for index in range(len(self._answers)):
            yield from self._item(index)
        items: Any = self._document.value("/items")
        ends = [item["status"] for item in items]
        if all(end == "succeeded" for end in ends):
            status: Any = "succeeded"
        elif "succeeded" in ends:
            status = "partially_failed"
        else:
            status = "failed" if "failed" in ends else "cancelled"
        errors = [item["error"] for item in items if "error" in item]
        error = Problem.model_validate(errors[0]) if status == "failed" else None
        done = Done(status=status, error=error, digest=digest(items), expires_at="2036-01-01T00:00:00Z")
        self._next()
        yield self._logged(messages.done_frame(self._cursor, done), done)

    def _item(self, index: int) -> Iterator[Logged | bytes | ConnectionFault]:
        root = f"/items/{index}"
        begun = False
        for step in self._answers[index].steps:
            if index in self.cancelled:
                break
            if isinstance(step, ConnectionFault):
                yield step
                continue
            if isinstance(step, SendEvent):
                kind = type(step.message).__name__.lower()
                yield messages.ephemeral_frame(kind, step.message)
                continue
            if not begun:
                begun = True
                yield self._diff([["s", f"{root}/status", "running"], *self._job_runs()])
            if isinstance(step, RestartJob):
                yield self._restart()
                begun = False
                continue
            if isinstance(step, FailItem):
                status = [["s", f"{root}/status", "failed"], ["s", f"{root}/error", to_json(step.problem)]]
                yield self._diff(status)
                return
            yield self._diff(self._change(index, step))
        if index in self.cancelled:
            yield self._diff([["s", f"{root}/status", "cancelled"]])
            return
        if not begun:
            yield self._diff([["s", f"{root}/status", "running"], *self._job_runs()])
        yield self._succeed(index)

    def _succeed(self, index: int) -> Logged:
        answer = self._answers[index]
        ops: list[Any] = [["s", f"/items/{index}/status", "succeeded"]]
        if answer.finish_reason is not None:
            ops.insert(0, ["s", f"/items/{index}/value/finish_reason", answer.finish_reason])
        view = self._document.view()
        pointers = [column for column in self._document.columns if column.startswith(f"/items/{index}/")]
        texts = [(pointer, view.value(pointer)) for pointer in pointers if _exists(view, pointer)]
        checks = [text_check(pointer, text) for pointer, text in texts if isinstance(text, str)]
        return self._diff({"ops": ops, "check": checks})

    def _change(self, index: int, step: AppendText | SetValue | FakeToken) -> Any:
        root = f"/items/{index}/value"
        if isinstance(step, AppendText):
            return step.text if len(self._answers) == 1 else [["a", root, step.text]]
        if isinstance(step, FakeToken):
            names = generation_values.columns(self._inputs[index])
            row = generation_values.row(names, step, self._inputs[index], self._ids)
            if len(self._answers) == 1:
                return [["r", *row]]
            return [
                ["a", f"{root}/{name}", x if name == "text" else [x]]
                for name, x in zip(names, row, strict=True)
            ]
        view = self._document.view()
        if not _exists(view, root):
            return [["s", root, step.value]]
        changes: list[Any] = diff(view.value(root), step.value)
        return [[op, root + path, *rest] for op, path, *rest in changes]

    def _restart(self) -> Logged:
        self._document = Document(self._initial_state("running"), self._columns)
        self._cursor = Cursor(self._cursor.epoch + 1, self._cursor.seq)
        return self._snapshot("restart")

    # ---- the log -----------------------------------------------------------------------------------------------

    def _next(self) -> None:
        self._cursor = Cursor(self._cursor.epoch, self._cursor.seq + 1)

    def _snapshot(self, reason: SnapshotReason) -> Logged:
        self._next()
        state, columns = self._document.value(), [*self._document.columns]
        return self._logged(messages.snapshot_frame(self._cursor, state, columns, reason))

    def _diff(self, change: Any) -> Logged:
        self._next()
        self._document.apply(change)
        return self._logged(messages.diff_frame(self._cursor, change))

    def _logged(self, frame: bytes, done: Done | None = None) -> Logged:
        return Logged(self._cursor, frame, self._document.view(), self._document.columns, done)

    def _job_runs(self) -> list[list[str]]:
        running = self._document.value("/status") == "running"
        return [] if running else [["s", "/status", "running"]]

    def _initial_state(self, status: str) -> dict[str, Any]:
        items: list[dict[str, Any]] = []
        for index, answer in enumerate(self._answers):
            item: dict[str, Any] = {"status": "queued"}
            initial = (
                answer.initial
                if answer.finish_reason is None
                else generation_values.initial(generation_values.columns(self._inputs[index]))
            )
            items.append(item if initial is None else item | {"value": initial})
        return {"status": status, "items": items, "usage": {}, "notes": []}

    @property
    def _columns(self) -> list[str]:
        return [
            f"/items/{index}/value{column}"
            for index, answer in enumerate(self._answers)
            for column in (
                answer.columns
                if answer.finish_reason is None
                else [f"/{name}" for name in generation_values.columns(self._inputs[index])]
            )
        ]


def _exists(view: View, pointer: str) -> bool:
    try:
        view.value(pointer)
    except LookupError:
        return False
    return True
