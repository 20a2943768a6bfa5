"""Discovery of a server's endpoints, and of the jobs that their examples start.

The suite needs only the URL of the server. The suite runs examples of each endpoint once and observes the jobs: whether
the value grows in several events, how long the job runs, and whether it succeeds. These properties decide which checks
can use an example. The input of the endpoint `tidewire.script` describes the behavior of its job, so all checks can use
this endpoint if the server has it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

from tidewire_conformance.judging.leftover_jobs import cancel_leftover_jobs
from tidewire_conformance.judging.state_history import grows
from tidewire_conformance.schema_violations import json_text, schema_violation, usable, violation_of
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

SCRIPT: Final = "tidewire.script"
EXAMPLES_PER_ENDPOINT: Final = 2
"""Maximum number of examples of each endpoint that the suite runs."""
EXAMPLE_SECONDS: Final = 60.0
"""Timeout for one example, in seconds. The option `--patience` multiplies it."""
FURTHER_EXAMPLE_SECONDS: Final = 15.0
"""Timeout for one example, in seconds, if jobs of earlier examples timed out and none has ended."""
ANNOUNCED_SECONDS: Final = 10.0
"""Time, in seconds, after which the user is informed that the suite still waits for an example."""
CLOSE_SECONDS: Final = 2.0
"""Time, in seconds, that a response may take to end after `done`. The option `--patience` multiplies it."""
MIN_OBSERVABLE_SECONDS: Final = 0.2
"""Minimum duration, in seconds, of a job that a check observes while the job runs."""
MIN_GROWTH_EVENTS: Final = 5
"""Minimum number of logged events of a job whose stream a check interrupts between events."""

MAX_HEARTBEAT: Final = 15.0
"""Longest permitted heartbeat interval, in seconds (TW-FRM-071)."""
SHORT_TOKENS: Final = 16
"""Number of tokens of a text generation in checks for which any job is suitable. A run has about 90 such jobs."""
LONG_TEXT: Final = "Hello"
"""Text that the script of a long job appends: one part before a pause, and the rest after the pause."""
MAX_TESTED_CONCURRENCY: Final = 100
"""Maximum number of streams or jobs that the suite opens at the same time on a server under test."""
LONG_TOKENS: Final = 256
"""Number of tokens of a text generation that runs long enough to be observed."""
LONG_SECONDS: Final = 30.0
"""Time, in seconds, that a text generation with `LONG_TOKENS` tokens may take."""


class ProbeError(Exception):
    """Raised if no Tidewire server responds at the URL, so that no check can run."""


class UnknownEndpointError(ProbeError):
    """Raised if the user selected an endpoint, or passed an example for one, that the server does not have."""


@dataclass(frozen=True)
class SampleRequest:
    """Sample request for an endpoint, with the observed properties of its job."""

    endpoint: str
    submit_to: str
    body: dict[str, Any]
    seconds: float = 0.0
    """Observed duration of the job, in seconds."""
    events: int = 0
    """Number of events in the log of the job."""
    ended: str = "succeeded"
    """Final status of the job."""
    grows: bool = False
    """Whether more than one diff changed the value of the job."""

    @property
    def inputs(self) -> list[Any]:
        return self.body["inputs"] if "inputs" in self.body else [self.body["input"]]

    def with_input(self, value: Any) -> "SampleRequest":
        """Return a request for the same endpoint with another input. The properties of the resulting job are unknown."""
        return SampleRequest(self.endpoint, self.submit_to, {"input": value})

    def with_inputs(self, values: Sequence[Any], **more: Any) -> "SampleRequest":
        """Return a request for the same endpoint with several inputs."""
        seconds = self.seconds * len(values)
        return SampleRequest(self.endpoint, self.submit_to, {"inputs": [*values], **more}, seconds)


@dataclass
class Endpoint:
    """Endpoint of the server, with its description."""

    name: str
    described: RecordedExchange
    submit_to: str

    @cached_property
    def description(self) -> dict[str, Any]:
        """Description of the endpoint, without the members that violate the schema. Any member may be absent."""
        found: dict[str, Any] = usable("endpoint", self.described.json)
        return found

    def input_violation(self, value: Any) -> str:
        """Describe how a value violates the `input_schema`. The text is empty if the value is valid."""
        return violation_of(self.description.get("input_schema", {}), value)

    def value_violation(self, value: Any) -> str:
        """Describe how a value violates the `value_schema`. The text is empty if the value is valid."""
        return violation_of(self.description.get("value_schema", {}), value)

    def capability(self, name: str) -> Any:
        """Return a capability that the endpoint declares. The result is None or false if it is not declared."""
        return self.description.get("capabilities", {}).get(name)

    @property
    def continues(self) -> bool:
        """Whether a job that runs again after a server restart keeps the values of its unfinished items (section 4.5)."""
        return bool(self.description.get("on_restart") == "continue")

    @property
    def examples(self) -> list[Any]:
        found: list[Any] = self.description.get("examples", [])
        return found

    def inputs_to_run(self, own: Sequence[Any] = ()) -> list[Any]:
        """Return the inputs whose jobs the suite observes: the examples and, for a text generation, a copy of the first example
        with fewer tokens.

        Args:
            own: Inputs that the user passed instead of the examples.
        """
        inputs = [*(own or self.examples[:EXAMPLES_PER_ENDPOINT])]
        features = (self.capability("model") or {}).get("features", ())
        if "max_tokens" in features and inputs and isinstance(inputs[0], dict):
            tokens = inputs[0].get("max_tokens")
            if not (isinstance(tokens, int) and tokens <= SHORT_TOKENS):
                inputs.append({**inputs[0], "max_tokens": SHORT_TOKENS})
        return inputs


@dataclass(frozen=True)
class FailedExample:
    """Example in an endpoint description that started no job, or whose job did not end."""

    request: SampleRequest
    why: str
    exchange: RecordedExchange | None = None
    """Response that shows the failure, or None if there was no response."""
    is_endless: bool = False
    """Whether the stream was still open, without `done`, when the suite stopped to wait for it."""


DEFAULT_SIZES = {"max_state_bytes": 16 * 2**20, "max_event_bytes": 2**20}
"""Limits, in bytes, that apply to the data of events if the server declares no others (section 2.4)."""


@dataclass
class Server:
    """Server under test, with its endpoints and the results of their examples."""

    discovery: RecordedExchange
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    samples: list[SampleRequest] = field(default_factory=list)
    """Sample requests whose jobs ended, one for each example that ran."""
    failed_examples: list["FailedExample"] = field(default_factory=list)
    """Examples whose jobs did not end, in the order in which they were submitted."""

    @cached_property
    def discovery_body(self) -> dict[str, Any]:
        """Discovery document, without the members that violate the schema. Any member may be absent."""
        found: dict[str, Any] = usable("discovery", self.discovery.json)
        return found

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self.discovery_body.get("capabilities", ()))

    @property
    def limits(self) -> dict[str, int]:
        """Limits that the server declares, with the default sizes of events and states if it declares none."""
        # The schema accepts 64.0 as an integer, and limits of later versions may be of any type.
        declared = self.discovery_body.get("limits", {})
        found = {name: int(value) for name, value in declared.items() if isinstance(value, int | float)}
        return DEFAULT_SIZES | found

    @property
    def survives_restarts(self) -> bool:
        """Whether the server declares that jobs survive a restart."""
        return self.discovery_body.get("durability") in {"host", "replicated"}

    @property
    def has_script(self) -> bool:
        return SCRIPT in self.endpoints

    @property
    def heartbeat(self) -> float:
        """Heartbeat interval in seconds, at most `MAX_HEARTBEAT`."""
        declared: float = self.discovery_body.get("heartbeat_ms", 1000 * MAX_HEARTBEAT)
        return min(declared / 1000, MAX_HEARTBEAT)

    @property
    def endless_example(self) -> FailedExample | None:
        """An example whose job did not end, or None if the job of any other example ended. If it is set, checks wait for no job."""
        endless = (each for each in self.failed_examples if each.is_endless)
        return None if self.samples else next(endless, None)

    # ---- sample requests by the properties of their jobs; None if no endpoint or example is suitable -----------------

    def script_sample(self, *steps: dict[str, Any], **members: Any) -> SampleRequest | None:
        """Return a request for `tidewire.script` with these steps, or None if the server lacks that endpoint or ends no
        job.
        """
        if not self.has_script or self.endless_example is not None:
            return None
        script_input = {"script": [*steps], **members}
        seconds = sum(step.get("sleep_ms", 0) for step in steps) / 1000
        return SampleRequest(
            SCRIPT,
            self.endpoints[SCRIPT].submit_to,
            {"input": script_input},
            seconds,
            len(steps) + 3,
            grows=True,
        )

    def any_sample(self) -> SampleRequest | None:
        """Return a request for the shortest known job that succeeds."""
        return self.script_sample({"append": "Hel"}, {"append": "lo"}) or self._find_sample(lambda _: True)

    def any_request(self) -> SampleRequest | None:
        """Return a request for a job that may fail, with the input of `any_sample` or of any other example."""
        tried = [*self.samples, *(each.request for each in self.failed_examples)]
        return self.any_sample() or next(iter(tried), None)

    def growing_sample(self) -> SampleRequest | None:
        """Return a request for a job whose value changes in several logged events."""
        return next(iter(self.growing_samples()), None)

    def growing_samples(self) -> list[SampleRequest]:
        """Return requests for jobs whose values change in several logged events, the shortest of the examples first."""
        steps = [step for n in range(6) for step in ({"append": f"{n} né 😀 "}, {"sleep_ms": 12})]
        script = self.script_sample(*steps)
        found = [
            sample
            for sample in self.samples
            if sample.ended == "succeeded" and sample.grows and sample.events >= MIN_GROWTH_EVENTS
        ]
        others = sorted((each for each in found if each.endpoint != SCRIPT), key=lambda each: each.seconds)
        return [*([script] if script else []), *others]

    def long_running_sample(self, seconds: float = 0.5) -> SampleRequest | None:
        """Return a request for a job that has immediate output and runs long enough to be observed and cancelled."""
        steps = ({"append": LONG_TEXT[:3]}, {"sleep_ms": int(seconds * 1000)}, {"append": LONG_TEXT[3:]})
        return self.script_sample(*steps) or self._find_sample(
            lambda sample: sample.grows and sample.seconds >= MIN_OBSERVABLE_SECONDS, longest=True
        )

    def continuing_sample(self, seconds: float = 1.5) -> SampleRequest | None:
        """Return a request for a job that a restart can interrupt, at an endpoint that `continues` such jobs."""
        sample = self.long_running_sample(seconds)
        if sample is not None and self.endpoints[sample.endpoint].continues:
            return sample
        return self._find_sample(
            lambda sample: (
                self.endpoints[sample.endpoint].continues
                and sample.grows
                and sample.seconds >= MIN_OBSERVABLE_SECONDS
            ),
            longest=True,
        )

    def failing_sample(self) -> SampleRequest | None:
        """Return a request for a job that fails after it has produced output."""
        return self.script_sample({"append": "so far"}, {"fail": "no further"}) or next(
            (sample for sample in self.samples if sample.ended == "failed"), None
        )

    def batch_sample(self) -> SampleRequest | None:
        """Return a request for an endpoint that accepts several inputs."""
        if self.has_script and self.endpoints[SCRIPT].capability("batch"):
            return self.any_sample()
        return self._find_sample(lambda sample: bool(self.endpoints[sample.endpoint].capability("batch")))

    def uneven_batch_sample(self, *shorter: int) -> SampleRequest | None:
        """Return a request with several inputs, of which the last one takes longest.

        Args:
            *shorter: Number of tokens to generate for each of the other inputs. By default, there is one other input,
                and one token is generated for it.
        """
        if self.has_script and self.endpoints[SCRIPT].capability("batch"):
            quick = {"script": [{"append": "a"}]}
            slow = {"script": [{"append": "b"}, {"sleep_ms": 1500}, {"append": "c"}]}
            return SampleRequest(SCRIPT, self.endpoints[SCRIPT].submit_to, {"inputs": [quick, slow]}, 1.5)
        sample = self.logprobs_sample()
        if sample is None or not self.endpoints[sample.endpoint].capability("batch"):
            return None
        counts = (*(shorter or (1,)), LONG_TOKENS)
        found = sample.with_inputs(
            [{**sample.inputs[0], "max_tokens": count, "stop": []} for count in counts]
        )
        return replace(found, seconds=LONG_SECONDS)

    def logprobs_sample(self) -> SampleRequest | None:
        """Return a request with an input that is an object, for an endpoint that returns log-probabilities."""
        return self._find_sample(
            lambda sample: (
                bool(self.endpoints[sample.endpoint].capability("logprobs"))
                and isinstance(sample.inputs[0], dict)
            )
        )

    def _find_sample(
        self, holds: Callable[[SampleRequest], bool], *, longest: bool = False
    ) -> SampleRequest | None:
        found = [sample for sample in self.samples if sample.ended == "succeeded" and holds(sample)]
        return (max if longest else min)(found, key=lambda sample: sample.seconds, default=None)

    def max_inputs(self, sample: SampleRequest) -> int:
        """Return the maximum number of inputs per job at the endpoint of the request."""
        own = int((self.endpoints[sample.endpoint].capability("batch") or {}).get("max_items", 1))
        return min(own, self.limits.get("max_inputs", own))


async def probe(
    wire: Wire,
    only: Iterable[str] = (),
    cli_examples: Sequence[tuple[str, Any]] = (),
    before_examples: Callable[[Server], None] = lambda _: None,
    announce: Callable[[str], None] = lambda _: None,
) -> Server:
    """Read the discovery document and the endpoint descriptions of a server, and run its examples.

    Args:
        wire: HTTP client for the server.
        only: Names of the endpoints to use. By default, all endpoints are used.
        cli_examples: Pairs of endpoint name and input that replace the examples in the descriptions.
        before_examples: Callback that is called with the server before the first example starts a job.
        announce: Callback that is called with a message if an example takes long.

    Raises:
        UnknownEndpointError: The server lacks an endpoint in `only` or `cli_examples`.
        ProbeError: No Tidewire server responds at the URL.
    """
    wire = wire.as_check("discovery")
    try:
        discovery = await wire.request("GET", "/v1")
    except IncompleteResponseError as error:
        raise ProbeError(f"cannot reach {wire.base_url}: {error}{_connection_hint(str(error))}") from None
    discovery_body = discovery.json
    if (
        discovery.status != 200
        or not isinstance(discovery_body, dict)
        or discovery_body.get("protocol") != "tidewire/1"
    ):
        shown = discovery.body[:200].decode("utf-8", "replace")
        raise ProbeError(
            f"{discovery} returned {discovery.status} and {json_text(shown)}; "
            f'a Tidewire server returns 200 and {{"protocol": "tidewire/1", …}}{_discovery_hint(discovery)}'
        )
    server = Server(discovery)
    wanted = set(only)
    listed = {each["name"]: each for each in server.discovery_body.get("endpoints", ()) if "name" in each}
    unknown = sorted((wanted | {name for name, _ in cli_examples}) - listed.keys())
    if unknown and not schema_violation("discovery", discovery_body):
        raise UnknownEndpointError(
            f"the server has no endpoint {', '.join(unknown)}; it has {', '.join(listed) or 'none'}"
        )
    for name, each in listed.items():
        if not wanted or name in wanted | {SCRIPT}:
            await _describe(wire, server, each)
    before_examples(server)
    for endpoint in server.endpoints.values():
        own = [example for name, example in cli_examples if name == endpoint.name]
        for value in endpoint.inputs_to_run(own):
            seconds = EXAMPLE_SECONDS if server.endless_example is None else FURTHER_EXAMPLE_SECONDS
            late = (
                f"An example of {endpoint.name} has not reached `done` after {ANNOUNCED_SECONDS:g} s. "
                f"The suite waits for at most {seconds * wire.patience:g} s."
            )
            timer = asyncio.get_running_loop().call_later(ANNOUNCED_SECONDS, announce, late)
            try:
                await _run_example(wire, server, endpoint, value, seconds)
            finally:
                timer.cancel()
    return server


_CONNECTION_HINTS: Final = (
    ("ConnectionRefusedError", "nothing listens there; start the server or check the port"),
    ("gaierror", "the host name cannot be resolved"),
    ("CERTIFICATE_VERIFY_FAILED", "set SSL_CERT_FILE=ca.pem to trust your own certificate authority"),
    ("WRONG_VERSION_NUMBER", "the server does not use TLS at this port; try http://"),
    ("ConnectionResetError", "the server closed the connection; if it expects TLS, use https://"),
    ("violates HTTP/1.1", "the server there may not use HTTP"),
)
"""Texts that occur in connection errors, each with a hint for the user."""


def _connection_hint(fault: str) -> str:
    return next((f" ({hint})" for sign, hint in _CONNECTION_HINTS if sign in fault), "")


def _discovery_hint(discovery: RecordedExchange) -> str:
    """Return a hint why the response to `GET /v1` is not from a Tidewire server. The hint is empty if no reason is likely."""
    if discovery.status in {401, 403}:
        return "; pass credentials with --header 'Authorization: …'"
    if discovery.path.endswith("/v1/v1"):
        return "; pass the URL without /v1"
    if location := discovery.response_header("location"):
        return f"; the suite does not follow the redirect to {location}, so pass the final URL"
    if discovery.is_stream:
        return (
            "; the response is an event stream, not JSON, so pass the base URL below which the server has /v1"
        )
    if discovery.media_type == "text/html":
        return "; the response is a web page, so pass the base URL below which the server has /v1"
    return ""


async def _describe(wire: Wire, server: Server, listed: dict[str, Any]) -> None:
    name, own = listed["name"], f"/v1/endpoints/{quote(listed['name'])}"
    try:
        described = await wire.request("GET", resolve(server.discovery, listed.get("href", own)))
    except IncompleteResponseError:
        return  # A check requests the description again, and reports this.
    if described.status == 200 and isinstance(described.json, dict):
        server.endpoints[name] = Endpoint(name, described, f"{own}/jobs")


async def _run_example(wire: Wire, server: Server, endpoint: Endpoint, example: Any, seconds: float) -> None:
    """Run an example, whose job has `seconds` to end, and record the properties of its job."""
    request = SampleRequest(endpoint.name, endpoint.submit_to, {"input": example})
    try:
        submit = ran = await _read_stream(wire, "POST", endpoint.submit_to, seconds, request.body)
        if submit.status == 201 and submit.member("id") is not None:
            # The server responded with JSON although the request asks for a stream. A check reports that.
            ran = await _read_stream(wire, "GET", f"/v1/jobs/{quote(submit.member('id'))}/events", seconds)
    except IncompleteResponseError as error:
        server.failed_examples.append(FailedExample(request, str(error)))
        return
    done = ran.of_type("done")
    if not done or not done[0].members:
        await cancel_leftover_jobs(wire)  # The job may be endless, and other jobs may wait for it.
        code = f" {ran.code}" if ran.code else ""
        media = f" {ran.media_type or 'without a Content-Type'}" if ran.status < 400 else ""
        why = "an event stream without a valid done" if ran.is_stream else f"{ran.status}{code}{media}"
        endless = ran.is_stream and bool(ran.logged) and ran.ended == "left"
        why += f" within {seconds * wire.patience:g} s" if endless else ""
        server.failed_examples.append(FailedExample(request, f"{ran} returned {why}", ran, endless))
        return
    changes = sum(map(grows, ran.of_type("message"))) + max(0, len(ran.of_type("snapshot")) - 1)
    server.samples.append(
        replace(
            request,
            seconds=ran.finished - submit.began,
            events=len(ran.logged),
            ended=str(done[0].member("status")),
            grows=changes > 1,
        )
    )


async def _read_stream(
    wire: Wire, method: str, place: str, seconds: float, body: Any = None
) -> RecordedExchange:
    """Send a request for a stream, and read the stream until `done`, the end of the response, or the timeout."""
    async with wire.open(method, place, header={"Accept": "text/event-stream"}, json=body) as stream:
        # A stream without `hello` is not that of a job, and may be endless.
        if await stream.until(lambda seen: seen.ended or seen.of_type("hello")):
            await stream.until(lambda seen: seen.ended or seen.of_type("done"), seconds)
        return await stream.to_end(CLOSE_SECONDS) if stream.exchange.of_type("done") else stream.exchange
