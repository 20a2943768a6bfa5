"""Reference server on a real socket in this process, and raw HTTP requests to it without the Tidewire client."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import httpx2

from tidewire.protocol import strict_json
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.sse import Decoder, Event
from tidewire_server import Server

JSON = {"content-type": "application/json"}
STREAM = {**JSON, "accept": "text/event-stream"}
QUICK: dict[str, Any] = {
    "retry": 0.01,
    "queue_interval": 0.0,
    "cancel_timeout": 0.3,
    "shutdown_timeout": 0.2,
    "min_snapshot_interval": 0.02,
}
"""Settings for short tests."""


class Peer:
    """HTTP client for the reference server."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def submit(self, endpoint: str, input: Any = None, **members: Any) -> httpx2.Response:  # noqa: A002
        body = {"input": {} if input is None else input} | members
        if "inputs" in members:
            del body["input"]
        return self.http.post(f"/v1/endpoints/{endpoint}/jobs", json=body)

    def start(self, endpoint: str, input: Any = None, **members: Any) -> str:  # noqa: A002
        response = self.submit(endpoint, input, **members)
        assert response.status_code == 201, response.text
        return response.json()["id"]

    def job(self, job: str) -> dict[str, Any]:
        response = self.http.get(f"/v1/jobs/{job}")
        assert response.status_code == 200, response.text
        return response.json()

    def ended(self, job: str) -> dict[str, Any]:
        """Read the job's stream to its end, and return the job resource."""
        self.events(job)
        return self.job(job)

    def run(self, endpoint: str, input: Any = None, **members: Any) -> dict[str, Any]:  # noqa: A002
        return self.ended(self.start(endpoint, input, **members))

    def value(self, endpoint: str, input: Any = None) -> Any:  # noqa: A002
        job = self.run(endpoint, input)
        assert job["status"] == "succeeded", job
        return job["state"]["items"][0]["value"]

    @contextlib.contextmanager
    def stream(self, job: str, cursor: str | None = None, **parameters: str) -> Iterator["Reading"]:
        headers = {} if cursor is None else {"last-event-id": cursor}
        with self.http.stream(
            "GET", f"/v1/jobs/{job}/events", headers=headers, params=parameters
        ) as response:
            assert response.status_code == 200, response.read()
            yield Reading(response)

    def events(self, job: str, cursor: str | None = None, **parameters: str) -> list[Event]:
        """Return all events until the server closes the stream."""
        with self.stream(job, cursor, **parameters) as reading:
            return list(reading)

    def metrics(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        return {
            name: float(number) for name, number in (line.rsplit(" ", 1) for line in lines if line[0] != "#")
        }


class Reading:
    """One open event stream."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.decoder = Decoder()
        self._events = self._decode()

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def until(self, *types: str) -> Event:
        """Return the next event of one of these types."""
        return next(event for event in self._events if event.type in types)

    def until_text(self, text: str) -> Event:
        return next(event for event in self._events if text in event.data)

    def _decode(self) -> Iterator[Event]:
        for chunk in self.response.iter_raw():
            yield from self.decoder.feed(chunk)


@contextlib.contextmanager
def serving(server: Server, **headers: str) -> Iterator[Peer]:
    with server.running() as url, Peer(url, **headers) as peer:
        yield peer


def logged(events: list[Event]) -> list[Event]:
    return [event for event in events if event.type in {"snapshot", "message", "done"}]


def data(event: Event) -> Any:
    return strict_json.loads(event.data)


class Fold:
    """Applies events and verifies everything: consecutive ids, checks and the digest."""

    def __init__(self, *, keep_states: bool = True) -> None:
        self.keep_states = keep_states
        self.document: Document | None = None
        self.cursor: Cursor | None = None
        self.done: dict[str, Any] | None = None
        self.states: dict[str, Any] = {}
        """Items after each event, by event id."""

    def take(self, events: list[Event]) -> "Fold":
        for event in logged(events):
            cursor, content = Cursor.parse(event.id), data(event)
            if event.type == "snapshot":
                self.document = Document(content["state"], content["columns"])
            else:
                assert self.cursor is not None
                base = content.get("on", cursor.seq - 1) if type(content) is dict else cursor.seq - 1
                assert (cursor.epoch, base) == self.cursor
                assert self.document is not None
                if event.type == "done":
                    self.done = content
                    assert content["digest"] == digest(self.items)
                else:
                    self.document.apply(content)
            self.cursor = cursor
            if self.keep_states:
                self.states[event.id] = self.items
        return self

    @property
    def items(self) -> Any:
        assert self.document is not None
        return self.document.value("/items")


def eventually(what: Callable[[], Any], within: float = 10.0) -> Any:
    """Call a function until its result is true, and return the result."""
    give_up = time.monotonic() + within
    while not (found := what()):
        assert time.monotonic() < give_up, "the condition did not become true in time"
        time.sleep(0.005)
    return found


async def until(condition: Callable[[], object], within: float = 10.0) -> None:
    """Wait in a coroutine until a condition is true."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)
