"""A plain client, written from the specification alone with the standard library: what a scenario can ask for, and no
more. It is right; the faulty ones (`proof.clients`) each change one thing. As a program it speaks lines of JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import urljoin

sys.path.insert(0, __file__.rpartition("/proof/")[0])

from proof.reimplementations.plain_requests import PROTOCOL, Answer, CutError, EndError, PlainRequests
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
]


def key_of(cursor: str) -> tuple[int, int]:
    epoch, _, seq = cursor.partition("-")
    return int(epoch), int(seq)


def text_of(value: Any) -> str | None:
    value = value.get("text") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 and true are not."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class PlainClient(PlainRequests):
    decoder: type[Decoder] = Decoder
    state_type: type[State] = State
    json: type[Json] = Json
    text_of = staticmethod(text_of)
    same = staticmethod(same)
    reasons: Collection[str] = frozenset({"start", "compacted", "restart", "rewound"})
    greets_within = 10.0

    def __init__(self, command: dict[str, Any], tell: Callable[[dict[str, Any]], None], until: float) -> None:
        self.command, self.tell_report, self.until = command, tell, until
        self.base = command["base_url"]
        self.credentials = [*command.get("credentials", ())]
        self.values: list[Any] = []
        self.answers: list[Answer] = []
        self.cancelled = False

    # ---- what it is told to do ---------------------------------------------------------------------------------

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
            for answer in self.answers:
                self.hang_up(answer)
        self.tell_report({"id": command["id"], "kept": self.values, **end})

    def start(self, job: str) -> None:
        self.job = job
        self.stream_url = f"{self.base}/v1/jobs/{job}/events"
        self.state: State | None = None
        self.cursor: str | None = None
        self.given: dict[int, Any] = {}
        self.failures = self.faults = self.resyncs = self.applied = 0
        self.retry, self.heartbeat = 1.0, 15.0
        self.batch = "inputs" in self.command

    def restore(self, saved: Any) -> None:
        if saved is not None:
            if saved["job"] != self.job:
                raise EndError("usage_error", detail="a checkpoint of another job")
            self.cursor = saved["cursor"]
            self.state = self.state_type(saved["state"], saved["columns"])
            self.given = {i: item["value"] for i, item in enumerate(saved["state"]["items"])}

    def checkpoint(self) -> Any:
        held = self.state
        assert held is not None
        return {"job": self.job, "cursor": self.cursor, "state": held.value, "columns": held.columns}

    def last(self) -> Any:
        return self.given.get(0)

    def discover(self) -> None:
        answer = self.ask("GET", f"{self.base}/v1")
        found = answer.json()
        answer.close()
        if found["protocol"] != PROTOCOL:
            raise EndError("unsupported", detail=found["protocol"])
        raise EndError("discovered", incomplete=False)

    # ---- the stream --------------------------------------------------------------------------------------------

    def follow(self, opened: Answer | None) -> dict[str, Any]:
        while True:
            try:
                answer, opened = opened or self.open(), None
                try:
                    return self.read(answer)
                finally:
                    self.hang_up(answer)
            except CutError as cut:
                self.fail(cut)
            except MalformedError as breach:
                self.resync(breach)
                self.fail(CutError(str(breach)))

    def hang_up(self, answer: Answer) -> None:
        answer.close()

    def resync(self, breach: MalformedError) -> None:
        self.cursor = None
        self.applied = 0
        self.resyncs += 1
        if self.resyncs > 3:
            unknown = isinstance(breach, UnknownError)
            raise EndError("unsupported" if unknown else "protocol_error", detail=str(breach))

    def open(self) -> Answer:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if cursor := self.cursor_to_send():
            headers["Last-Event-ID"] = cursor
        answer = self.ask("GET", self.stream_url, headers)
        if answer.is_stream() or answer.status == 204:
            return answer
        wait = self.retry_after(answer)
        try:
            self.judge_status(answer, wait)
        finally:
            answer.close()
        raise CutError(f"an answer {answer.status}", least=wait)

    def cursor_to_send(self) -> str | None:
        return self.cursor

    def judge_status(self, answer: Answer, wait: float) -> None:
        status = answer.status
        if status == 400 and self.cursor is not None:
            raise MalformedError("the cursor is refused")
        if status in {429, 503}:
            raise CutError("wait", least=wait)
        if 400 <= status < 500:
            self.refuse(answer)
        self.faults += 1
        if self.faults > 10:
            self.refuse(answer)

    def read(self, answer: Answer) -> dict[str, Any]:
        if answer.status == 204:
            return self.read_job()
        self.faults = self.pings = 0
        self.greeted, self.opening, self.progress = False, True, False
        self.url = answer.url
        decoder = self.new_decoder(answer)
        hello_by = time.monotonic() + self.greets_within
        while True:
            limit = self.silence() if self.greeted else hello_by - time.monotonic()
            chunk = answer.read(self.at_most(limit))
            events = decoder.feed(chunk) if chunk else decoder.end()
            if decoder.retry is not None:
                self.retry = max(decoder.retry, 1) / 1000
            for event in events:
                if end := self.receive(event):
                    self.hang_up(answer)
                    return end
            if not chunk:
                self.at_eof()

    def new_decoder(self, answer: Answer) -> Decoder:
        return self.decoder(self.cursor or "")

    def silence(self) -> float:
        return 2.5 * self.heartbeat

    def at_eof(self) -> None:
        raise CutError("the end of the body")

    def read_job(self) -> dict[str, Any]:
        answer = self.ask("GET", f"{self.base}/v1/jobs/{self.job}")
        job = answer.json()
        answer.close()
        self.problem = job
        if answer.status != 200:
            self.judge_read(answer)
            raise CutError("no job", least=self.wait_of_read(answer))
        if not isinstance(job, dict) or not {"state", "columns", "cursor"} <= job.keys():
            raise EndError("protocol_error", detail="no job")
        if job.get("done") is None:
            self.cursor = None
            raise CutError("204, and it still runs")
        status = job["state"].pop("status")
        self.state = self.state_type({**job["state"], "status": "running"}, job["columns"])
        self.state.value["status"] = status
        self.verify(job["done"])
        self.hand_over()
        return self.finish(job["done"])

    def judge_read(self, answer: Answer) -> None:
        if 400 <= answer.status < 500 and answer.status != 429:
            raise EndError("refused", status=answer.status, problem=self.problem)

    def wait_of_read(self, answer: Answer) -> float:
        return self.retry_after(answer)

    # ---- events ------------------------------------------------------------------------------------------------

    def about(self, text: str, **members: type) -> Any:
        """The data of an event, with the members that it has to have."""
        data = self.json.parse(text)
        demand(isinstance(data, dict), "data that is no object")
        for name, kind in members.items():
            demand(type(data.get(name)) is kind, f"a member {name}")
        return data

    def receive(self, event: Event) -> dict[str, Any] | None:
        match event.type:
            case "snapshot" | "message" | "done":
                return self.logged(event)
            case "hello":
                self.hello(
                    self.about(event.data, protocol=str, job=str, events=str, head=str, heartbeat_ms=int)
                )
            case "ping":
                self.ping(self.about(event.data, head=str))
            case "goaway":
                self.goaway(self.about(event.data, reason=str, retry_ms=int))
            case "problem":
                data = self.about(event.data, code=str, title=str, status=int)
                if data.get("retryable"):
                    raise CutError("a problem", least=data.get("retry_after_ms", 0) / 1000)
                raise EndError("refused", status=data["status"], problem=data)
            case "queue":
                demand(self.about(event.data, position=int)["position"] >= 1, "a position")
            case "progress":
                data = self.about(event.data)
                demand({type(data.get(name, 0)) for name in ("current", "total")} <= {int, float}, "a number")
            case _:
                self.unknown(event)
        return None

    def goaway(self, data: Any) -> None:
        demand(data["retry_ms"] >= 0, "a wait")
        raise CutError("goaway", least=max(0.1, data["retry_ms"] / 1000), counts=not self.progress)

    def unknown(self, event: Event) -> None:
        if event.own_id:
            raise UnknownError("an unknown logged event")

    def hello(self, data: Any) -> None:
        if data["protocol"] != PROTOCOL:
            raise EndError("unsupported", detail=data["protocol"])
        if data["job"] != self.job:
            raise EndError("protocol_error", detail="another job")
        demand(data["heartbeat_ms"] >= 1, "a heartbeat")
        self.heartbeat = data["heartbeat_ms"] / 1000
        self.stream_url = urljoin(self.url, data["events"])
        self.greeted = True

    def ping(self, data: Any) -> None:
        demand(ID.fullmatch(data["head"]), "a head")
        above = self.cursor is None or key_of(data["head"]) > key_of(self.cursor)
        self.pings = self.pings + 1 if above else 0
        if self.pings == 2:
            raise CutError("a deaf subscription")

    def logged(self, event: Event) -> dict[str, Any] | None:
        data = self.json.parse(event.data)
        if not ID.fullmatch(event.id):
            raise MalformedError("an id")
        if not self.is_greeted():
            raise MalformedError("a logged event before hello")
        if event.type == "snapshot":
            self.snapshot(event.id, data, has_id=event.own_id)
            return None
        seq = key_of(event.id)[1]
        named = event.type == "message" and isinstance(data, dict) and "on" in data
        on = self.base_named(data, seq) if named else seq - 1
        if self.is_repeat(event.id):
            return None
        state = self.base_of(event.id, on)
        if event.type == "done":
            self.verify(data)
            self.cursor = event.id
            return self.finish(data)
        self.moved(state.apply(data), event.id)
        return None

    def base_named(self, data: Any, seq: int) -> int:
        demand(is_count(data["on"]) and data["on"] < seq, "on")
        return int(data["on"])

    def is_greeted(self) -> bool:
        return self.greeted

    def is_repeat(self, name: str) -> bool:
        return self.cursor is not None and key_of(name) <= key_of(self.cursor)

    def base_of(self, name: str, on: int) -> State:
        held = self.state
        if self.cursor is None or held is None or key_of(self.cursor) != (key_of(name)[0], on):
            raise MalformedError(f"{name} does not continue from {self.cursor}")
        return held

    def snapshot(self, name: str, data: Any, *, has_id: bool) -> None:
        if not isinstance(data, dict) or not {"state", "columns", "reason"} <= data.keys():
            raise MalformedError("a snapshot that lacks a member")
        demand(data["reason"] in self.reasons, "a reason")
        if data["reason"] == "rewound" and not has_id:
            raise MalformedError("a rewound snapshot without an id")
        state = self.state_type(data["state"], data["columns"])
        if data["reason"] != "rewound" and self.is_repeat(name):
            return
        opening, self.opening = self.opening, False
        self.moved(state, name, forward=not opening)

    def moved(self, state: State, name: str, *, forward: bool = True) -> None:
        if forward and (self.cursor is None or key_of(name) > key_of(self.cursor)):
            self.progress, self.failures = True, 0
        self.opening = False
        self.pings = 0
        self.applied += 1
        if self.applied >= 256:
            self.applied = self.resyncs = 0
        self.state, self.cursor = state, name
        self.hand_over()

    def verify(self, done: Any) -> None:
        if not isinstance(done, dict) or done.get("status") not in ENDS or "digest" not in done:
            raise MalformedError("done")
        if done["status"] == "failed" and "error" not in done:
            raise MalformedError("a failed job without an error")
        assert self.state is not None
        self.state.verify(done.get("check") or [])
        if self.state.digest() != done["digest"]:
            raise MalformedError("the digest")

    # ---- its user ----------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        assert self.state is not None
        for index, item in enumerate(self.state.value["items"]):
            value, before = item.get("value"), self.given.get(index)
            if not self.same(value, before):
                self.given[index] = value
                self.give(index, value, before)

    def give(self, index: int, value: Any, before: Any) -> None:
        report: dict[str, Any] = {"id": self.command["id"], "saw": "value", "value": value}
        if self.batch:
            report["index"] = index
        old, new = self.text_of(before), self.text_of(value)
        if old or new is not None:
            report["deleted"], report["text"] = self.difference(old or "", new or "")
        self.values.append(value)
        self.tell_report(report)
        if "stop_at" in self.command and value == self.command["stop_at"]:
            raise EndError("stopped", checkpoint=self.checkpoint())
        if "cancel_at" in self.command and value == self.command["cancel_at"] and not self.cancelled:
            self.cancelled = True
            self.cancel()

    def cancel(self) -> None:
        self.ask("POST", f"{self.base}/v1/jobs/{self.job}/cancel").close()

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
    client: type[PlainClient], command: dict[str, Any], tell: Callable[[dict[str, Any]], None], seconds: float
) -> None:
    client(command, tell, time.monotonic() + seconds).run()


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
