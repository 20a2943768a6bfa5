"""One request and its answer, asked again where the table of answers says so.

A server that has not answered once yet gets few and quick attempts, since an address with nothing behind it is more
often a mistake than a restart; what is no answer of this protocol is then told at once. Later, the same is
taken as a fault between, which passes.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, cast
from urllib.parse import quote

import anyio
from pydantic import BaseModel

from tidewire.errors import (
    NotATidewireServerError,
    ProtocolError,
    TidewireError,
    TotalTimeoutError,
    TransportError,
    UnsupportedProtocolError,
    Where,
)
from tidewire.hooks import Hooks, watched
from tidewire.http import status_errors
from tidewire.http.auth_refresh import Auth, Credentials
from tidewire.http.connection_diagnosis import fault_of, no_http
from tidewire.http.response import UNREAD_STREAMS, Connection, Response
from tidewire.http.transport import ANSWER_TIMEOUT, WHOLE_ANSWER_TIMEOUT, Transport, origin
from tidewire.http.urls import apart, resolve, same_origin
from tidewire.options import Options, overlaid
from tidewire.protocol import messages
from tidewire.protocol.backoff import Backoff
from tidewire.protocol.follower import HELLO_TIMEOUT
from tidewire.protocol.messages import PROTOCOL
from tidewire.protocol.request_policy import RequestPolicy
from tidewire.protocol.resources import API_ROOT, Discovery, EndpointDescription
from tidewire.protocol.status_table import Action, RequestKind, retry_after

log: Final = logging.getLogger("tidewire")

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Timing:
    """Time and chance, so that a test can hold them."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    rng: random.Random = field(default_factory=random.Random)
    hello_timeout: float = HELLO_TIMEOUT
    answer_timeout: float = ANSWER_TIMEOUT
    whole_answer_timeout: float = WHOLE_ANSWER_TIMEOUT


@dataclass(slots=True)
class _Request:
    """What is asked for, as often as it takes. A redirect changes its URL."""

    method: str
    url: str
    asked: RequestKind
    headers: Mapping[str, str] | None
    body: bytes | None
    job_id: str | None
    stream: bool = False
    """Whether a stream is asked for as the answer of a submit."""
    credentials: Mapping[str, str] | None = None
    """Those that went with it."""


class ApiSession:
    """One server, as its client talks to it: base URL, pool, credentials, and whether it has answered yet."""

    def __init__(
        self, url: str, transport: Transport, *, auth: Auth | None, timing: Timing, hooks: Hooks | None = None
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"the server's address is a text such as 'http://127.0.0.1:8000', not {url!r}")
        if not isinstance(hooks, Hooks | None):
            raise TypeError(f"hooks is a Hooks, not {hooks!r}")
        self.base: str
        self.base, self._of_url = apart(url)
        self.transport = transport
        self.timing = timing
        self.hooks: Hooks = hooks or Hooks()
        self.contacted: bool = False
        self.credentials: Credentials = Credentials(auth)
        self._discovery: Discovery | None = None
        self._descriptions: dict[str, EndpointDescription] = {}

    # ---- asking ------------------------------------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        url: str,
        options: Options,
        *,
        asked: RequestKind = RequestKind.REQUEST,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        job_id: str | None = None,
        since: float | None = None,
    ) -> Response:
        """Make a request, again where that is safe and may help, and return the answer that is to be used.

        Args:
            method: GET; or POST or DELETE, which must be safe to repeat (a submit is by its key).
            url: Absolute, on this server's origin.
            options: Their retry policy and headers.
            asked: The column of the table of answers.
            headers: Beside those of the options.
            body: JSON.
            job_id: For errors.
            since: When the call began that this is a part of, by the event loop's clock; None: now.

        Raises:
            TidewireError: What the answer means, or why there is none.
            TotalTimeoutError: The options' timeout passed.
        """
        request = _Request(method, url, asked, headers, body, job_id)
        return cast("Response", await self._bounded(request, options, since))

    async def submit(
        self,
        url: str,
        options: Options,
        *,
        headers: Mapping[str, str],
        body: bytes,
        since: float | None = None,
    ) -> Response | Connection:
        """Submit a job: the answer is its stream where that may be, or the job.

        It asks for the stream while fewer than `UNREAD_STREAMS` of those that answered earlier submits are unread. It
        asks for JSON otherwise, and where the job is to be cancelled when nobody reads it: an open stream would count
        as a reader.

        Args:
            url: Where the endpoint takes jobs.
            options: See `ask`.
            headers: An idempotency key among them.
            body: JSON.
            since: See `ask`.

        Raises:
            TidewireError: What the answer means, or why there is none.
            TotalTimeoutError: The options' timeout passed.
        """
        request = _Request("POST", url, RequestKind.SUBMIT, headers, body, None)
        request.stream = options.on_disconnect == "continue" and self.transport.unread < UNREAD_STREAMS
        return await self._bounded(request, options, since)

    async def _bounded(
        self, request: "_Request", options: Options, since: float | None
    ) -> Response | Connection:
        if options.timeout is None:
            return await self._ask(request, options)
        with anyio.CancelScope(deadline=(anyio.current_time() if since is None else since) + options.timeout):
            return await self._ask(request, options)
        what = f"the timeout of {options.timeout:g} s passed"
        advice = MAY_RUN if request.asked is RequestKind.SUBMIT else None
        where = Where(request.method, request.url, request.job_id)
        raise TotalTimeoutError(what, where=where, advice=advice)

    async def _ask(self, request: "_Request", options: Options) -> Response | Connection:
        backoff = Backoff(options.retry, self.timing.rng)
        policy = RequestPolicy(request.asked, backoff, is_get=request.method == "GET")
        while True:
            at_least: float | None = None
            try:
                answer = await self._once(request, options)
            except (TransportError, NotATidewireServerError) as error:
                fault: TidewireError = error
                fatal = policy.fault(fault_of(error), contacted=self.contacted) is Action.FATAL
                sent = isinstance(error, TransportError) and error.sent
                if not fatal and request.asked is RequestKind.SUBMIT and sent:
                    fatal = not await self._keeps_keys(options)
                    error.advice = _UNKEPT if fatal else error.advice
                if fatal:
                    await self.raise_fault(error)
            else:
                action = policy.action(answer.status)
                if action is Action.USE or isinstance(answer, Connection):
                    return answer
                if action is Action.REFRESH and await self.credentials.renew(request.credentials):
                    continue
                if action is Action.REDIRECT:
                    request.url = self.redirected(answer)
                    continue
                fault = self.refused(answer, request.job_id)
                if action not in {Action.WAIT, Action.CUT} or isinstance(fault, NotATidewireServerError):
                    raise fault
                if request.stream and fault.code == "too_many_streams":
                    request.stream = False
                    continue
                # A response without a problem comes from a gateway: the server behind it may run the job. [TW-JOB-037]
                unknown = request.asked is RequestKind.SUBMIT and action is Action.CUT and fault.code is None
                if unknown and not await self._keeps_keys(options):
                    fault.advice = _UNKEPT
                    raise fault
                at_least = retry_after(answer.headers.get("retry-after"))
            pause = policy.wait(at_least=at_least)
            if pause is None:
                raise fault.placed(job_id=request.job_id)
            log.info("%s %s: %s; again in %.2f s", request.method, request.url, fault.what, pause)
            await self.timing.sleep(pause)

    async def _once(self, request: "_Request", options: Options) -> Response | Connection:
        method, url, body, timing = request.method, request.url, request.body, self.timing
        headers = await self.headers(options, request.headers, body)
        request.credentials = self.credentials.now
        limits: dict[str, Any] = {
            "connect_timeout": options.connect_timeout,
            "max_state_bytes": options.max_state_bytes,
            "answer_timeout": timing.answer_timeout,
            "whole_timeout": timing.whole_answer_timeout,
        }
        work: Awaitable[Response | Connection]
        if request.stream:
            work = self.transport.submit(url, headers=headers, body=body or b"", **limits)
        else:
            work = self.transport.request(method, url, headers=headers, body=body, **limits)
        return await watched(self.hooks.on_request, method, url, work)

    async def headers(
        self, options: Options, more: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> dict[str, str]:
        """All headers of a request, credentials included."""
        self.transport.loop.check()
        content = {"Content-Type": "application/json"} if body is not None else {}
        own = {"Accept": "application/json", **content}
        return overlaid(own, self._of_url, options.headers, await self.credentials.given(), more or {})

    def redirected(self, answer: Any) -> str:
        """Where a redirect leads.

        Raises:
            ProtocolError: To another origin, or nowhere.
        """
        place = resolve(answer.url, answer.headers.get("location", ""))
        if not same_origin(place, self.base) or "location" not in answer.headers:
            where = Where("GET", answer.url, status_code=answer.status)
            advice = "Credentials never leave their origin: give the client the new address."
            raise ProtocolError(
                f"redirected to {place!r}, which is another origin", where=where, advice=advice
            )
        return place

    def here(self, base: str, reference: str, otherwise: str) -> str:
        """A link that an answer carried, where it stays on this origin; else the place that the protocol names."""
        url = resolve(base, reference)
        if same_origin(url, self.base):
            return url
        log.warning("ignored a link to another origin: %s", url)
        return otherwise

    # ---- reading answers ---------------------------------------------------------------------------------------

    def read(self, model: type[M], answer: Response, *, what: str, job_id: str | None = None) -> M:
        """Read an answer's body as a model.

        Raises:
            NotATidewireServerError: It is not, and nothing before was an answer of this protocol.
            ProtocolError: It is not.
        """
        try:
            body: M = messages.read(model, answer.body, what=what)
        except messages.MessageError as error:
            where = answer.where(job_id=job_id)
            if self.contacted:
                raise ProtocolError(f"not an answer of this protocol: {error}", where=where) from None
            raise self.not_tidewire(answer) from None
        self.contacted = True
        return body

    def refused(
        self, answer: Response, job_id: str | None = None, last_event_id: str | None = None
    ) -> TidewireError:
        """What an answer that is not to be used means."""
        problem = status_errors.problem_in(answer)
        if problem is not None:
            self.contacted = True
        elif not self.contacted and not status_errors.may_be_of_a_gateway(answer):
            # At first contact, everything else is another server.
            return self.not_tidewire(answer)
        return status_errors.refused(
            answer, problem, answer.where(job_id=job_id, last_event_id=last_event_id)
        )

    def not_tidewire(self, answer: Response) -> NotATidewireServerError:
        """The error for an answer that no server of this protocol gives."""
        return status_errors.not_tidewire(self.base, answer)

    async def raise_fault(self, error: TransportError | NotATidewireServerError) -> NoReturn:
        """Raise a fault of a request that is not repeated, or what it means at first contact.

        Raises:
            NotATidewireServerError: The server has never answered, and does not speak HTTP.
            TidewireError: The fault itself, in all other cases.
        """
        if isinstance(error, TransportError) and error.sent and not self.contacted:
            said = await self.transport.sniff(self.base)
            if said[:5] != b"HTTP/"[: len(said)]:
                _, host, port = origin(self.base)
                instead = f"it said {said.decode('utf-8', 'replace')!r}"
                raise no_http(f"{host}:{port}", instead, error.where) from error
        raise error

    # ---- what the server says of itself ------------------------------------------------------------------------

    async def discover(self, options: Options, since: float | None = None) -> Discovery:
        """The server's discovery, asked for once."""
        if self._discovery is None:
            answer = await self.ask("GET", self.base + API_ROOT, options, since=since)
            discovery = self.read(Discovery, answer, what="discovery")
            if discovery.protocol != PROTOCOL:
                what = f"the server speaks {discovery.protocol!r}, this client {PROTOCOL!r}"
                raise UnsupportedProtocolError(what, where=Where("GET", answer.url))
            self._discovery = discovery
        return self._discovery

    async def describe(
        self, endpoint: str, options: Options, since: float | None = None
    ) -> EndpointDescription:
        """One endpoint's description, asked for once."""
        if endpoint not in self._descriptions:
            answer = await self.ask("GET", self.endpoint_url(endpoint), options, since=since)
            self._descriptions[endpoint] = self.read(EndpointDescription, answer, what="endpoint")
        return self._descriptions[endpoint]

    def endpoint_url(self, endpoint: str) -> str:
        return f"{self.base}{API_ROOT}/endpoints/{quote(endpoint, safe='')}"

    def job_url(self, job_id: str) -> str:
        return f"{self.base}{API_ROOT}/jobs/{quote(job_id, safe='')}"

    async def _keeps_keys(self, options: Options) -> bool:
        """Whether a submit whose answer was lost may be repeated: its key must be known to the server."""
        if self.credentials.now or self._of_url or _names_credentials(options.headers):
            return True
        try:
            return "idempotency" in (await self.discover(options)).capabilities
        except NotATidewireServerError:
            raise
        except TidewireError:
            return False


MAY_RUN: Final = (
    "The job may or may not have started: submit again with the same idempotency_key, or see client.jobs()."
)
_UNKEPT = (
    "The job may or may not have started: without credentials this server keeps no idempotency keys, so nothing was "
    "repeated. client.jobs() lists what runs, where the server has that."
)


def _names_credentials(headers: Mapping[str, str]) -> bool:
    return "authorization" in {name.lower() for name in headers}
