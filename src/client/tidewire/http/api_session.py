"""`ApiSession`, which makes requests to one server, and retries or redirects them as the request policy decides.

The client is at "first contact" until it has received a response that proves that the server is a Tidewire server. At
first contact, the client makes only a few quick attempts to connect, because a wrong URL is more likely than a server
that is restarting. A response that no Tidewire server sends raises an error at once. After first contact, the client
regards the same faults as temporary faults of a proxy or the network, and retries.
"""

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeVar, cast

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
from tidewire.http.connection_diagnosis import fault_of, not_http
from tidewire.http.response import UNREAD_STREAMS, Connection, Response
from tidewire.http.transport import ANSWER_TIMEOUT, WHOLE_ANSWER_TIMEOUT, Transport
from tidewire.http.urls import path_segment, resolve, same_origin, split_credentials
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
    """Sleep function, random numbers and time limits of a client. Tests replace them."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    rng: random.Random = field(default_factory=random.Random)
    hello_timeout: float = HELLO_TIMEOUT
    answer_timeout: float = ANSWER_TIMEOUT
    whole_answer_timeout: float = WHOLE_ANSWER_TIMEOUT


@dataclass(slots=True)
class _Request:
    """A request, which the client may send several times. A redirect changes `url`."""

    method: str
    url: str
    kind: RequestKind
    headers: Mapping[str, str] | None
    body: bytes | None
    job_id: str | None
    stream: bool = False
    """Whether a request to submit a job asks for the job's event stream as its response."""
    credentials: Mapping[str, str] | None = None
    """The credentials sent with the last attempt."""


class ApiSession:
    """Session of a client with one server. It has the base URL, the connection pool, the credentials and the cached
    discovery document.

    Attributes:
        base: Base URL of the server, without credentials.
        contacted: Whether a response has proved that the server is a Tidewire server.
    """

    def __init__(
        self, url: str, transport: Transport, *, auth: Auth | None, timing: Timing, hooks: Hooks | None = None
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"url must be a string such as 'http://127.0.0.1:8000', not {url!r}")
        if not isinstance(hooks, Hooks | None):
            raise TypeError(f"hooks must be a Hooks object, not {hooks!r}")
        self.base: str
        self.base, self._url_credentials = split_credentials(url)
        self.transport = transport
        self.timing = timing
        self.hooks: Hooks = hooks or Hooks()
        self.contacted: bool = False
        self.credentials: Credentials = Credentials(auth)
        self._discovery: Discovery | None = None
        self._descriptions: dict[str, EndpointDescription] = {}

    # ---- requests ----------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        url: str,
        options: Options,
        *,
        kind: RequestKind = RequestKind.REQUEST,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        job_id: str | None = None,
        since: float | None = None,
    ) -> Response:
        """Make a request, with retries where they are safe and useful, and return the successful response.

        Args:
            method: HTTP method. The request must be safe to repeat. A POST to submit a job is safe to repeat if it has
                an idempotency key.
            url: Absolute URL on the server's origin.
            options: Options of the call, such as the retry policy, the timeouts and the headers.
            kind: Kind of the request. The reaction to a status depends on it.
            headers: Headers in addition to the headers in `options`.
            body: JSON body.
            job_id: Id of the job, for error messages.
            since: Time at which the timeout starts, on the event loop's clock. None: now.

        Raises:
            TidewireError: The server refused the request or could not be reached within the retry policy.
            TotalTimeoutError: The timeout of the options passed.
        """
        request = _Request(method, url, kind, headers, body, job_id)
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
        """Submit a job, with retries. The response is the job's event stream if possible, and otherwise the job as
        JSON.

        The request asks for JSON if the client has not yet read `UNREAD_STREAMS` open event streams of jobs that it
        submitted earlier. It also asks for JSON if `on_disconnect` is `"cancel"`, because the server would count an
        open stream as a reader of the job.

        Args:
            url: URL of the endpoint's jobs.
            options: Options of the call, such as the retry policy, the timeouts and the headers.
            headers: Headers in addition to the headers in `options`, including the idempotency key.
            body: JSON body.
            since: Time at which the timeout starts, on the event loop's clock. None: now.

        Raises:
            TidewireError: The server refused the request or could not be reached within the retry policy.
            TotalTimeoutError: The timeout of the options passed.
        """
        request = _Request("POST", url, RequestKind.SUBMIT, headers, body, None)
        request.stream = options.on_disconnect == "continue" and self.transport.unread < UNREAD_STREAMS
        return await self._bounded(request, options, since)

    async def _bounded(
        self, request: "_Request", options: Options, since: float | None
    ) -> Response | Connection:
        if options.timeout is None:
            return await self._request(request, options)
        with anyio.CancelScope(deadline=(anyio.current_time() if since is None else since) + options.timeout):
            return await self._request(request, options)
        what = f"the timeout of {options.timeout:g} s passed"
        advice = MAY_RUN if request.kind is RequestKind.SUBMIT else None
        where = Where(request.method, request.url, request.job_id)
        raise TotalTimeoutError(what, where=where, advice=advice)

    async def _request(self, request: "_Request", options: Options) -> Response | Connection:
        backoff = Backoff(options.retry, self.timing.rng)
        policy = RequestPolicy(request.kind, backoff, is_get=request.method == "GET")
        while True:
            at_least: float | None = None
            try:
                response = await self._attempt(request, options)
            except (TransportError, NotATidewireServerError) as error:
                fault: TidewireError = error
                fatal = policy.fault(fault_of(error), contacted=self.contacted) is Action.FATAL
                sent = isinstance(error, TransportError) and error.sent
                if not fatal and request.kind is RequestKind.SUBMIT and sent:
                    fatal = not await self._can_retry_submit(options)
                    error.advice = _NOT_RETRIED if fatal else error.advice
                if fatal:
                    await self.raise_fault(error)
            else:
                action = policy.action(response.status)
                if action is Action.USE or isinstance(response, Connection):
                    return response
                if action is Action.REFRESH and await self.credentials.renew(request.credentials):
                    continue
                if action is Action.REDIRECT:
                    request.url = self.redirected(response)
                    continue
                fault = self.refused(response, request.job_id)
                if action not in {Action.WAIT, Action.CUT} or isinstance(fault, NotATidewireServerError):
                    raise fault
                if request.stream and fault.code == "too_many_streams":
                    request.stream = False
                    continue
                # A response with a status 5xx and without problem details comes from a gateway. The server behind the
                # gateway may have started the job. [TW-JOB-037]
                unknown = request.kind is RequestKind.SUBMIT and action is Action.CUT and fault.code is None
                if unknown and not await self._can_retry_submit(options):
                    fault.advice = _NOT_RETRIED
                    raise fault
                at_least = retry_after(response.headers.get("retry-after"))
            pause = policy.wait(at_least=at_least)
            if pause is None:
                raise fault.placed(job_id=request.job_id)
            log.info("%s %s: %s; retrying in %.2f s", request.method, request.url, fault.what, pause)
            await self.timing.sleep(pause)

    async def _attempt(self, request: "_Request", options: Options) -> Response | Connection:
        method, url, body, timing = request.method, request.url, request.body, self.timing
        headers = await self.headers(options, request.headers, body)
        request.credentials = self.credentials.current
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
        """Return all headers of a request, including credentials."""
        self.transport.loop.check()
        content = {"Content-Type": "application/json"} if body is not None else {}
        own = {"Accept": "application/json", **content}
        return overlaid(own, self._url_credentials, options.headers, await self.credentials.get(), more or {})

    def redirected(self, response: Any) -> str:
        """Return the absolute URL of a redirect's target.

        Raises:
            ProtocolError: The response does not name a target, or the target is on another origin.
        """
        target = resolve(response.url, response.headers.get("location", ""))
        if not same_origin(target, self.base) or "location" not in response.headers:
            where = Where("GET", response.url, status_code=response.status)
            advice = "The client sends credentials to one origin only. Create a client with the new URL."
            raise ProtocolError(
                f"the server redirects to {target!r} on another origin", where=where, advice=advice
            )
        return target

    def same_origin_link(self, base: str, reference: str, otherwise: str) -> str:
        """Resolve a link in a response, if the link leads to the server's origin.

        Args:
            base: URL of the response.
            reference: The link, which is an absolute or relative URI reference.
            otherwise: URL to return if the link leads to another origin.
        """
        url = resolve(base, reference)
        if same_origin(url, self.base):
            return url
        log.warning("ignored a link to another origin: %s", url)
        return otherwise

    # ---- responses ---------------------------------------------------------------------------------------------

    def read(self, model: type[M], response: Response, *, what: str, job_id: str | None = None) -> M:
        """Parse and validate a response's body as a model.

        Raises:
            NotATidewireServerError: The body is not valid, and the client is at first contact.
            ProtocolError: The body is not valid, and the client is not at first contact.
        """
        try:
            body: M = messages.read(model, response.body, what=what)
        except messages.MessageError as error:
            where = response.where(job_id=job_id)
            if self.contacted:
                raise ProtocolError(f"the response is not valid: {error}", where=where) from None
            raise self.not_tidewire(response) from None
        self.contacted = True
        return body

    def refused(
        self, response: Response, job_id: str | None = None, last_event_id: str | None = None
    ) -> TidewireError:
        """Create the error for a response that is not a success. If the response has problem details, record that the
        server is a Tidewire server.
        """
        problem = status_errors.problem_in(response)
        if problem is not None:
            self.contacted = True
        elif not self.contacted and not status_errors.may_be_from_gateway(response):
            # A response without problem details, with a status that gateways do not send, comes from a server that is
            # not a Tidewire server.
            return self.not_tidewire(response)
        return status_errors.refused(
            response, problem, response.where(job_id=job_id, last_event_id=last_event_id)
        )

    def not_tidewire(self, response: Response) -> NotATidewireServerError:
        """Create the error for a response that no Tidewire server sends."""
        return status_errors.not_tidewire(self.base, response)

    async def raise_fault(self, error: TransportError | NotATidewireServerError) -> NoReturn:
        """Raise the fault of a request that is not retried. At first contact, check whether the server speaks HTTP
        before raising the fault.

        Raises:
            NotATidewireServerError: The client is at first contact, and the server does not speak HTTP.
            TidewireError: The fault, in all other cases.
        """
        if isinstance(error, TransportError) and error.sent and not self.contacted:
            said = await self.transport.sniff(self.base)
            if said[:5] != b"HTTP/"[: len(said)]:
                instead = f"it sent {said.decode('utf-8', 'replace')!r}"
                raise not_http(self.transport.address(self.base), instead, error.where) from error
        raise error

    # ---- discovery ---------------------------------------------------------------------------------------------

    async def discover(self, options: Options, since: float | None = None) -> Discovery:
        """Return the discovery document. The client requests it once and caches it."""
        if self._discovery is None:
            response = await self.request("GET", self.base + API_ROOT, options, since=since)
            discovery = self.read(Discovery, response, what="discovery")
            if discovery.protocol != PROTOCOL:
                what = f"the server speaks {discovery.protocol!r}, but this client speaks {PROTOCOL!r}"
                raise UnsupportedProtocolError(what, where=Where("GET", response.url))
            self._discovery = discovery
        return self._discovery

    async def describe(
        self, endpoint: str, options: Options, since: float | None = None
    ) -> EndpointDescription:
        """Return the description of an endpoint. The client requests it once and caches it."""
        if endpoint not in self._descriptions:
            response = await self.request("GET", self.endpoint_url(endpoint), options, since=since)
            self._descriptions[endpoint] = self.read(EndpointDescription, response, what="endpoint")
        return self._descriptions[endpoint]

    def endpoint_url(self, endpoint: str) -> str:
        segment = path_segment(endpoint, "the name of an endpoint")
        return f"{self.base}{API_ROOT}/endpoints/{segment}"

    def job_url(self, job_id: str) -> str:
        return f"{self.base}{API_ROOT}/jobs/{path_segment(job_id, 'the id of a job')}"

    async def _can_retry_submit(self, options: Options) -> bool:
        """Whether the client may retry a request to submit a job after the response was lost.

        A server without the capability `idempotency` may ignore the idempotency keys of requests without credentials.
        """
        if self.credentials.current or self._url_credentials or _names_credentials(options.headers):
            return True
        try:
            return "idempotency" in (await self.discover(options)).capabilities
        except NotATidewireServerError:
            raise
        except TidewireError:
            return False


MAY_RUN: Final = "The job may or may not have started. Submit again with the same idempotency_key, or look for it in client.jobs()."
_NOT_RETRIED = (
    "The job may or may not have started. The client did not retry, because this server does not keep the idempotency "
    "keys of requests without credentials. Look for the job in client.jobs(), if the server can list jobs."
)


def _names_credentials(headers: Mapping[str, str]) -> bool:
    return "authorization" in {name.lower() for name in headers}
