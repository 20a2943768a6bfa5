"""Discovery: what a server says of itself, and what its own examples show of it.

Nothing is required but a description. The examples of each endpoint are run once, and what is seen of them (grows,
lasts, has items, gives log-probabilities) decides which checks they serve. An endpoint `tidewire.script`, whose input
is its behaviour, serves them all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve
from tidewire_conformance.wire.recording_client import NoAnswerError, Wire

SCRIPT: Final = "tidewire.script"
EXAMPLES: Final = 2
"""Examples of one endpoint that are run to learn its traits."""
EXAMPLE_SECONDS: Final = 60.0
"""How long an example may take; times `patience`."""
CLOSE_SECONDS: Final = 2.0
"""How long the end of an answer may take after `done`, before the suite goes its way; times `patience`."""
LASTS_SECONDS: Final = 0.2
"""How long work takes, at least, of which one can see the middle."""
GROWS_EVENTS: Final = 5
"""Logged events, at least, of work in which there is something to cut."""

LONG_TOKENS: Final = 256
"""Tokens of a generation of which one can see the middle."""
LONG_SECONDS: Final = 30.0
"""How long it may take."""


class ProbeError(Exception):
    """There is no server of this protocol at the URL: nothing can be checked."""


@dataclass(frozen=True)
class Work:
    """Something to ask of a server, and what is known of it."""

    endpoint: str
    submit_to: str
    body: dict[str, Any]
    seconds: float = 0.0
    """How long it took."""
    events: int = 0
    """Logged events of its history."""
    ended: str = "succeeded"
    """The status it ended with."""
    grows: bool = False
    """Whether a diff changed its value while it ran."""

    @property
    def inputs(self) -> list[Any]:
        return self.body["inputs"] if "inputs" in self.body else [self.body["input"]]

    def with_input(self, value: Any) -> "Work":
        """The same endpoint with another input, of which nothing is known."""
        return Work(self.endpoint, self.submit_to, {"input": value})

    def with_inputs(self, values: Sequence[Any], **more: Any) -> "Work":
        """The same endpoint with several inputs."""
        seconds = self.seconds * len(values)
        return Work(self.endpoint, self.submit_to, {"inputs": [*values], **more}, seconds)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as it describes itself."""

    name: str
    described: RecordedExchange
    submit_to: str

    @property
    def description(self) -> dict[str, Any]:
        found: dict[str, Any] = self.described.json
        return found

    def capability(self, name: str) -> Any:
        """What it declares; None or false where it does not."""
        return self.description.get("capabilities", {}).get(name)

    @property
    def examples(self) -> list[Any]:
        found: list[Any] = self.description.get("examples", [])
        return found


@dataclass
class Server:
    """What is known of a server."""

    discovery: RecordedExchange
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    seen: list[Work] = field(default_factory=list)
    """The examples that ran."""
    refused: list[tuple[str, RecordedExchange]] = field(default_factory=list)
    """Examples that were not taken, with their endpoint."""

    @property
    def says(self) -> dict[str, Any]:
        found: dict[str, Any] = self.discovery.json
        return found

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self.says.get("capabilities", ()))

    @property
    def limits(self) -> dict[str, int]:
        found: dict[str, int] = self.says.get("limits", {})
        return found

    @property
    def has_script(self) -> bool:
        return SCRIPT in self.endpoints

    @property
    def heartbeat(self) -> float:
        """Seconds."""
        return float(self.says.get("heartbeat_ms", 15_000)) / 1000

    # ---- work by traits ----------------------------------------------------------------------------------------

    def script(self, *steps: dict[str, Any], **members: Any) -> Work | None:
        """Work that does as it is told; None where the server has no such endpoint."""
        if not self.has_script:
            return None
        given = {"script": [*steps], **members}
        seconds = sum(step.get("sleep_ms", 0) for step in steps) / 1000
        return Work(
            SCRIPT, self.endpoints[SCRIPT].submit_to, {"input": given}, seconds, len(steps) + 3, grows=True
        )

    def any_work(self) -> Work | None:
        """Work that ends well, the shortest that is known."""
        return self.script({"append": "Hel"}, {"append": "lo"}) or self._seen(lambda _: True)

    def growing(self) -> Work | None:
        """Work whose history has several events in which its value changes."""
        steps = [step for n in range(6) for step in ({"append": f"{n} né 😀 "}, {"sleep_ms": 12})]
        return self.script(*steps) or self._seen(lambda work: work.grows and work.events >= GROWS_EVENTS)

    def lasting(self, seconds: float = 0.5) -> Work | None:
        """Work that grows at once, and can be watched, cut and cancelled before it ends."""
        steps = ({"append": "Hel"}, {"sleep_ms": int(seconds * 1000)}, {"append": "lo"})
        return self.script(*steps) or self._seen(
            lambda work: work.grows and work.seconds >= LASTS_SECONDS, longest=True
        )

    def failing(self) -> Work | None:
        """Work that fails after it gave something."""
        return self.script({"append": "so far"}, {"fail": "no further"}) or next(
            (work for work in self.seen if work.ended == "failed"), None
        )

    def batching(self) -> Work | None:
        """Work of an endpoint that takes several inputs."""
        if self.has_script and self.endpoints[SCRIPT].capability("batch"):
            return self.any_work()
        return self._seen(lambda work: bool(self.endpoints[work.endpoint].capability("batch")))

    def uneven(self, *shorter: int) -> Work | None:
        """Work of several inputs, of which the last takes long, and the others as many tokens as are given, or few."""
        if self.has_script and self.endpoints[SCRIPT].capability("batch"):
            quick = {"script": [{"append": "a"}]}
            slow = {"script": [{"append": "b"}, {"sleep_ms": 1500}, {"append": "c"}]}
            return Work(SCRIPT, self.endpoints[SCRIPT].submit_to, {"inputs": [quick, slow]}, 1.5)
        work = self.with_logprobs()
        if work is None or not self.endpoints[work.endpoint].capability("batch"):
            return None
        counts = (*(shorter or (1,)), LONG_TOKENS)
        found = work.with_inputs([{**work.inputs[0], "max_tokens": count, "stop": []} for count in counts])
        return replace(found, seconds=LONG_SECONDS)

    def with_logprobs(self) -> Work | None:
        """Work of an endpoint that gives log-probabilities."""
        return self._seen(lambda work: bool(self.endpoints[work.endpoint].capability("logprobs")))

    def _seen(self, holds: Callable[[Work], bool], *, longest: bool = False) -> Work | None:
        found = [work for work in self.seen if work.ended == "succeeded" and holds(work)]
        return (max if longest else min)(found, key=lambda work: work.seconds, default=None)

    def limits_of_batch(self, work: Work) -> int:
        """How many inputs a job of this endpoint may have."""
        own = int((self.endpoints[work.endpoint].capability("batch") or {}).get("max_items", 1))
        return min(own, self.limits.get("max_inputs", own))


async def probe(wire: Wire, only: Iterable[str] = (), given: Sequence[tuple[str, Any]] = ()) -> Server:
    """Ask a server what it is, and run its examples.

    Args:
        wire: The caller.
        only: Endpoints to look at; all by default.
        given: Endpoints and inputs of them, where the descriptions have no examples.

    Raises:
        ProbeError: It is no server of this protocol.
    """
    wire = wire.as_check("discovery")
    try:
        discovery = await wire.ask("GET", "/v1")
    except NoAnswerError as error:
        raise ProbeError(f"cannot reach {wire.base_url}: {error}{_why_not_reached(str(error))}") from None
    says = discovery.json
    if discovery.status != 200 or not isinstance(says, dict) or says.get("protocol") != "tidewire/1":
        shown = discovery.body[:200].decode("utf-8", "replace")
        raise ProbeError(
            f"{discovery} was answered with {discovery.status} and {shown!r}; "
            f'a server of this protocol answers it with 200 and {{"protocol": "tidewire/1", …}}{_why_no_server(discovery)}'
        )
    server = Server(discovery)
    wanted = set(only)
    listed = [
        each for each in says.get("endpoints", ()) if not wanted or each.get("name") in wanted | {SCRIPT}
    ]
    for each in listed:
        await _describe(wire, server, each)
    for endpoint in server.endpoints.values():
        own = [example for name, example in given if name == endpoint.name]
        for example in own or endpoint.examples[:EXAMPLES]:
            await _try(wire, server, endpoint, example)
    return server


_REACHED: Final = (
    ("ConnectionRefusedError", "nothing listens there; is the server started?"),
    ("gaierror", "there is no such host"),
    ("CERTIFICATE_VERIFY_FAILED", "SSL_CERT_FILE=ca.pem makes an authority of your own trusted"),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS there; try http://"),
    ("ConnectionResetError", "it closed the connection; does it speak TLS, and want https://?"),
    ("peer unexpectedly closed", "what it sent is no HTTP"),
)
"""What tells why there was no answer, and what to look at."""


def _why_not_reached(fault: str) -> str:
    return next((f" ({hint})" for sign, hint in _REACHED if sign in fault), "")


def _why_no_server(discovery: RecordedExchange) -> str:
    """What to do about a first answer that is none of this protocol; empty where that does not show."""
    if discovery.status in {401, 403}:
        return "; give credentials with --header 'Authorization: …'"
    if discovery.path.endswith("/v1/v1"):
        return "; give the URL without /v1"
    if location := discovery.response_header("location"):
        return f"; it leads to {location}, and the suite follows no redirect: give the URL where it ends"
    if discovery.media_type == "text/html":
        return "; this is a web page: give the URL below which the server has /v1"
    return ""


async def _describe(wire: Wire, server: Server, listed: dict[str, Any]) -> None:
    name = str(listed.get("name", ""))
    href = listed.get("href")
    place = resolve(server.discovery, href) if isinstance(href, str) else f"/v1/endpoints/{quote(name)}"
    described = await wire.ask("GET", place)
    if described.status == 200 and isinstance(described.json, dict):
        server.endpoints[name] = Endpoint(name, described, f"/v1/endpoints/{quote(name)}/jobs")


async def _try(wire: Wire, server: Server, endpoint: Endpoint, example: Any) -> None:
    """Run an example, and note what is seen of it."""
    body = {"input": example}
    accept = {"Accept": "text/event-stream"}
    async with wire.open("POST", endpoint.submit_to, json=body, header=accept) as stream:
        await stream.until(lambda seen: seen.ended or seen.of_type("done"), EXAMPLE_SECONDS)
        ran = await stream.to_end(CLOSE_SECONDS) if stream.exchange.of_type("done") else stream.exchange
    done = ran.of_type("done")
    if ran.status != 200:
        server.refused.append((endpoint.name, ran))
    if not done or not isinstance(done[0].json, dict):
        return
    diffs = [block for block in ran.of_type("message") if b"/value" in block.data or block.data[:1] in b'"']
    server.seen.append(
        Work(
            endpoint.name,
            endpoint.submit_to,
            body,
            seconds=ran.finished - ran.began,
            events=len(ran.logged),
            ended=str(done[0].json.get("status")),
            grows=len(list(_growth(diffs))) > 1,
        )
    )


def _growth(diffs: Sequence[Any]) -> Iterator[Any]:
    for block in diffs:
        ops = block.json.get("ops") if isinstance(block.json, dict) else block.json
        pairs = [op for op in ops if isinstance(op, list) and len(op) > 1] if isinstance(ops, list) else []
        if isinstance(ops, str) or any(str(op[0]) in "rati" or "/value" in str(op[1]) for op in pairs):
            yield block
