"""Plain client for the scenario player, written from the specification alone with the standard library.

It implements only the parts of the protocol that scenarios need, and has no known fault. Each faulty client in
`proof.clients` changes one method or part of it. If this module is run as a program, it exchanges lines of JSON with the
scenario player.
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import urljoin

sys.path.insert(0, __file__.rpartition("/proof/")[0])

from proof.reimplementations.plain_requests import PROTOCOL, CutError, EndError, PlainRequests, Response
from proof.reimplementations.plain_state import (
    ENDS,
    ID,
    Decoder,
    Event,
    Json,
    MalformedError,
    State,
    UnknownError,
    demand,
    is_count,
)

TRAITS = [
    "submit",
    "batch",
    "checkpoint",
    "cancel",
    "discover",
    "credentials",
    "attempts",
    "in_turn",
    "exact_json",
    "digests",
    "id_fields",
]


def id_key(cursor: str) -> tuple[int, int]:
    epoch, _, seq = cursor.partition("-")
    return int(epoch), int(seq)


def text_of(value: Any) -> str | None:
    value = value.get("text") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON, in which 1 and true are different values."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class PlainClient(PlainRequests):
    decoder: type[Decoder] = Decoder
    state_type: type[State] = State
    json: type[Json] = Json
    text_of = staticmethod(text_of)
    same = staticmethod(same)
    reasons: Collection[str] = frozenset({"start", "compacted", "restart", "rewound"})
    hello_timeout = 10.0

    def __init__(
        self, command: dict[str, Any], on_report: Callable[[dict[str, Any]], None], until: float
    ) -> None:
        self.command, self.send_report, self.until = command, on_report, until
        self.base = command["base_url"]
        self.credentials = [*command.get("credentials", ())]
        self.values: list[Any] = []
        self.responses: list[Response] = []
        self.cancelled = False

    # ---- commands ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        command = self.command
        try:
            self.start(command.get("job", ""))
            if command["do"] == "discover":
                self.discover()
            opened = self.submit() if command["do"] == "submit" else None
            self.restore(command.get("checkpoint"))
            end = self.follow(opened)
            if "then_job" in command:
                self.start(command["then_job"])
                end = self.follow(None)
        except EndError as error:
            end = {"value": self.last(), "incomplete": True, **error.report}
        finally:
            for response in self.responses:
                self.close_response(response)
        self.send_report({"id": command["id"], "kept": self.values, **end})

    def start(self, job: str) -> None:
        self.job = job
        self.stream_url = f"{self.base}/v1/jobs/{job}/events"
        self.state: State | None = None
        self.cursor: str | None = None
        self.delivered: dict[int, Any] = {}
        self.failures = self.resyncs = self.applied = 0
        self.silent = 0
        self.got_hello = self.delivered_nothing = False
        self.retry, self.heartbeat = 1.0, 15.0
        self.batch = "inputs" in self.command

    def restore(self, saved: Any) -> None:
        if saved is not None:
            if saved["job"] != self.job:
                raise EndError("usage_error", detail="the checkpoint belongs to another job")
            self.cursor = saved["cursor"]
            self.state = self.state_type(saved["state"], saved["columns"])
            self.delivered = {i: item["value"] for i, item in enumerate(saved["state"]["items"])}

    def checkpoint(self) -> Any:
        state = self.state
        assert state is not None
        return {"job": self.job, "cursor": self.cursor, "state": state.value, "columns": state.columns}

    def last(self) -> Any:
        return self.delivered.get(0)

    def discover(self) -> None:
        response = self.request("GET", f"{self.base}/v1")
        found = response.json()
        response.close()
        if found["protocol"] != PROTOCOL:
            raise EndError("unsupported", detail=found["protocol"])
        raise EndError("discovered", incomplete=False)

    # ---- the stream --------------------------------------------------------------------------------------------

    def follow(self, opened: Response | None) -> dict[str, Any]:
        while True:
            try:
                if self.is_held_back():
                    return self.read_job(instead=True)
                response, opened = opened or self.open(), None
                try:
                    return self.read(response)
                finally:
                    self.close_response(response)
            except CutError as cut:
                self.silent += str(cut).startswith("TimeoutError") and self.delivered_nothing
                self.fail(cut)
            except MalformedError as breach:
                self.resync(breach)
                self.fail(CutError(str(breach)))

    def is_held_back(self) -> bool:
        return self.silent >= 2

    def close_response(self, response: Response) -> None:
        response.close()

    def resync(self, breach: MalformedError) -> None:
        self.cursor = None
        self.applied = 0
        self.resyncs += 1
        if self.resyncs > 3:
            unknown = isinstance(breach, UnknownError)
            raise EndError("unsupported" if unknown else "protocol_error", detail=str(breach))

    def open(self) -> Response:
        self.delivered_nothing = True
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if cursor := self.cursor_to_send():
            headers["Last-Event-ID"] = cursor
        response = self.request("GET", self.stream_url, headers)
        if response.is_stream() or response.status == 204:
            return response
        wait = self.retry_after(response)
        try:
            self.judge_status(response, wait)
        finally:
            response.close()
        raise CutError(f"a response {response.status}")

    def cursor_to_send(self) -> str | None:
        return self.cursor

    def judge_status(self, response: Response, wait: float) -> None:
        status = response.status
        if status == 400 and self.cursor is not None:
            raise MalformedError("the server refused the cursor")
        if status in {408, 429, 503}:
            raise CutError("wait", min_wait=wait, counts=not wait)
        if 400 <= status < 500:
            self.refuse(response)

    def read(self, response: Response) -> dict[str, Any]:
        if response.status == 204:
            return self.read_job()
        self.pings = 0
        self.hello_head = None
        self.got_hello, self.opening, self.progress = False, True, False
        self.url = response.url
        decoder = self.new_decoder(response)
        hello_by = time.monotonic() + self.hello_timeout
        while True:
            limit = self.silence() if self.got_hello else hello_by - time.monotonic()
            chunk = response.read(self.at_most(limit))
            events = decoder.feed(chunk) if chunk else decoder.end()
            if decoder.retry is not None:
                self.retry = max(decoder.retry, 1) / 1000
            for event in events:
                if end := self.receive(event):
                    self.close_response(response)
                    return end
            if not chunk:
                self.at_eof()

    def new_decoder(self, response: Response) -> Decoder:
        return self.decoder(self.cursor or "")

    def silence(self) -> float:
        return 2.5 * self.heartbeat

    def at_eof(self) -> None:
        raise CutError("the body ended before done")

    def read_job(self, *, instead: bool = False) -> dict[str, Any]:
        response = self.request("GET", f"{self.base}/v1/jobs/{self.job}")
        job = response.json()
        response.close()
        self.problem = job
        if response.status != 200:
            self.judge_read(response)
            wait = self.wait_of_read(response)
            raise CutError("the read of the job failed", min_wait=wait, counts=not wait)
        if not isinstance(job, dict) or not {"state", "columns", "cursor"} <= job.keys():
            raise EndError("protocol_error", detail="the response is not a job")
        if job.get("done") is None and instead:
            self.failures = 0
            if self.cursor is None or id_key(job["cursor"]) > id_key(self.cursor):
                silent = self.silent
                self.advance(self.state_type(job["state"], job["columns"]), job["cursor"])
                self.silent = silent
            raise CutError("the job is still running")
        if job.get("done") is None:
            self.cursor = None
            raise CutError("204, but the job is still running")
        status = job["state"].pop("status")
        self.state = self.state_type({**job["state"], "status": "running"}, job["columns"])
        self.state.value["status"] = status
        self.verify(job["done"])
        self.deliver()
        return self.finish(job["done"])

    def judge_read(self, response: Response) -> None:
        if 400 <= response.status < 500 and response.status not in {408, 429}:
            raise EndError("refused", status=response.status, problem=self.problem)

    def wait_of_read(self, response: Response) -> float:
        return self.retry_after(response)

    # ---- events ------------------------------------------------------------------------------------------------

    def parse_object(self, text: str, **members: type) -> Any:
        """Parse the data of an event and check the types of its required members."""
        data = self.json.parse(text)
        demand(isinstance(data, dict), "the data is not an object")
        for name, kind in members.items():
            demand(type(data.get(name)) is kind, f"a member {name}")
        return data

    def receive(self, event: Event) -> dict[str, Any] | None:
        match event.type:
            case "snapshot" | "message" | "done":
                return self.logged(event)
            case "hello":
                self.hello(
                    self.parse_object(
                        event.data, protocol=str, job=str, events=str, head=str, heartbeat_ms=int
                    )
                )
            case "ping":
                self.ping(self.parse_object(event.data, head=str))
            case "goaway":
                self.goaway(self.parse_object(event.data, reason=str, retry_ms=int))
            case "problem":
                data = self.parse_object(event.data, code=str, title=str, status=int)
                if data.get("retryable"):
                    wait = data.get("retry_after_ms", 0) / 1000
                    raise CutError("a problem", min_wait=wait, counts=not wait)
                raise EndError("refused", status=data["status"], problem=data)
            case "queue":
                demand(self.parse_object(event.data, position=int)["position"] >= 1, "a position")
            case "progress":
                data = self.parse_object(event.data)
                demand({type(data.get(name, 0)) for name in ("current", "total")} <= {int, float}, "a number")
            case _:
                self.unknown(event)
        return None

    def goaway(self, data: Any) -> None:
        demand(data["retry_ms"] >= 0, "a wait")
        raise CutError("goaway", min_wait=max(0.1, data["retry_ms"] / 1000), counts=not self.progress)

    def unknown(self, event: Event) -> None:
        if event.own_id:
            raise UnknownError("an unknown logged event")

    def hello(self, data: Any) -> None:
        if data["protocol"] != PROTOCOL:
            raise EndError("unsupported", detail=data["protocol"])
        if data["job"] != self.job:
            raise EndError("protocol_error", detail="another job")
        demand(data["heartbeat_ms"] >= 1, "a heartbeat")
        demand(ID.fullmatch(data["head"]), "a head")
        self.hello_head = data["head"]
        self.heartbeat = data["heartbeat_ms"] / 1000
        self.stream_url = urljoin(self.url, data["events"])
        self.got_hello = True

    def ping(self, data: Any) -> None:
        demand(ID.fullmatch(data["head"]), "a head")
        head = max(id_key(data["head"]), id_key(self.hello_head or data["head"]))
        above = self.cursor is None or head > id_key(self.cursor)
        self.pings = self.pings + 1 if above else 0
        if self.pings == 2:
            raise CutError("two pings, and the head is ahead of the cursor")

    def logged(self, event: Event) -> dict[str, Any] | None:
        data = self.json.parse(event.data)
        if not self.has_id(event) or not ID.fullmatch(event.id):
            raise MalformedError("an invalid event id")
        if not self.has_hello():
            raise MalformedError("a logged event arrived before hello")
        if event.type == "snapshot":
            self.snapshot(event.id, data, has_id=event.own_id)
            return None
        seq = id_key(event.id)[1]
        named = event.type == "message" and isinstance(data, dict) and "on" in data
        on = self.named_base(data, seq) if named else seq - 1
        if self.is_repeat(event.id):
            return None
        state = self.base_of(event.id, on)
        if event.type == "done":
            self.verify(data)
            self.cursor = event.id
            return self.finish(data)
        self.advance(state.apply(data), event.id)
        return None

    def has_id(self, event: Event) -> bool:
        return event.own_id

    def named_base(self, data: Any, seq: int) -> int:
        demand(is_count(data["on"]) and data["on"] < seq, "on")
        return int(data["on"])

    def has_hello(self) -> bool:
        return self.got_hello

    def is_repeat(self, name: str) -> bool:
        return self.cursor is not None and id_key(name) <= id_key(self.cursor)

    def base_of(self, name: str, on: int) -> State:
        state = self.state
        if self.cursor is None or state is None or id_key(self.cursor) != (id_key(name)[0], on):
            raise MalformedError(f"{name} does not continue from {self.cursor}")
        return state

    def snapshot(self, name: str, data: Any, *, has_id: bool) -> None:
        if not isinstance(data, dict) or not {"state", "columns", "reason"} <= data.keys():
            raise MalformedError("a snapshot lacks a member")
        demand(data["reason"] in self.reasons, "a reason")
        if data["reason"] == "rewound" and not has_id:
            raise MalformedError("a rewound snapshot has no id")
        state = self.state_type(data["state"], data["columns"])
        if data["reason"] != "rewound" and self.is_repeat(name):
            return
        opening, self.opening = self.opening, False
        self.advance(state, name, forward=not opening)

    def advance(self, state: State, name: str, *, forward: bool = True) -> None:
        if forward and (self.cursor is None or id_key(name) > id_key(self.cursor)):
            self.progress, self.failures = True, 0
        self.opening = self.delivered_nothing = False
        self.silent = 0
        self.pings = 0
        self.applied += 1
        if self.applied >= 256:
            self.applied = self.resyncs = 0
        self.state, self.cursor = state, name
        self.deliver()

    def verify(self, done: Any) -> None:
        if not isinstance(done, dict) or done.get("status") not in ENDS or "digest" not in done:
            raise MalformedError("done lacks a member or has an invalid status")
        if done["status"] == "failed" and "error" not in done:
            raise MalformedError("done of a failed job has no error")
        assert self.state is not None
        self.state.verify(done.get("check") or [])
        if self.state.digest() != done["digest"]:
            raise MalformedError("the digest does not match")

    # ---- reports -----------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        assert self.state is not None
        for index, item in enumerate(self.state.value["items"]):
            value, before = item.get("value"), self.delivered.get(index)
            if not self.same(value, before):
                self.delivered[index] = value
                self.deliver_value(index, value, before)

    def deliver_value(self, index: int, value: Any, before: Any) -> None:
        report: dict[str, Any] = {"id": self.command["id"], "saw": "value", "value": value}
        if self.batch:
            report["index"] = index
        old, new = self.text_of(before), self.text_of(value)
        if old or new is not None:
            report["deleted"], report["text"] = self.difference(old or "", new or "")
        self.values.append(value)
        self.send_report(report)
        if "stop_at" in self.command and value == self.command["stop_at"]:
            raise EndError("stopped", checkpoint=self.checkpoint())
        if "cancel_at" in self.command and value == self.command["cancel_at"] and not self.cancelled:
            self.cancelled = True
            self.cancel()

    def cancel(self) -> None:
        self.request("POST", f"{self.base}/v1/jobs/{self.job}/cancel").close()

    def difference(self, old: str, new: str) -> tuple[int, str]:
        common = 0
        while common < min(len(old), len(new)) and old[common] == new[common]:
            common += 1
        return len(old) - common, new[common:]

    def finish(self, done: Any) -> dict[str, Any]:
        assert self.state is not None
        items = self.state.value["items"]
        value, status = items[0].get("value"), done["status"]
        end = {"end": status, "value": value, "incomplete": status != "succeeded"}
        errors = [item["error"] for item in items if "error" in item]
        if problem := done.get("error") or next(iter(errors), None):
            end["problem"] = problem
        if self.batch:
            end["items"] = [
                {"status": item["status"], **({"code": item["error"]["code"]} if "error" in item else {})}
                for item in items
            ]
        return end


def run(
    client: type[PlainClient],
    command: dict[str, Any],
    on_report: Callable[[dict[str, Any]], None],
    seconds: float,
) -> None:
    client(command, on_report, time.monotonic() + seconds).run()


def commands() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "bye":
            return
        yield command


if __name__ == "__main__":

    def write(report: dict[str, Any]) -> None:
        print(json.dumps(report), flush=True)

    write({"client": "plain client", "can": TRAITS})
    for one in commands():
        run(PlainClient, one, write, 3600.0)
