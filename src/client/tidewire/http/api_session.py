"""`ApiSession`, which makes requests to one server, and retries or redirects them as the request policy decides.

The client is at "first contact" until it has received a response that proves that the server is a Tidewire server. At
first contact, the client makes only a few quick attempts to connect, because a wrong URL is more likely than a server
that is restarting. A response that no Tidewire server sends raises an error at once. After first contact, the client
regards the same faults as temporary faults of a proxy or the network, and retries. A lost connection and a response
that takes too long are temporary faults at any time.
"""

import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeVar, cast

import anyio

from tidewire.errors import (
    NotATidewireServerError,
    ProtocolError,
    TidewireError,
    TotalTimeoutError,
    TransportError,
    UnsupportedProtocolError,
    Where,
)
from tidewire.following.http_status_actions import Action, RequestKind, action_for, retry_after
from tidewire.following.request_policy import (
    FIRST_ATTEMPTS,
    GiveUp,
    Interruption,
    RequestFault,
    RequestPolicy,
)
from tidewire.hooks import Hooks, watched
from tidewire.http import status_errors
from tidewire.http.auth_refresh import Auth, Credentials
from tidewire.http.connection_arguments import check_proxy, check_uds, check_verify
from tidewire.http.connection_diagnosis import fault_of, needs_tls, not_http
from tidewire.http.links_and_origins import ServerLinks, path_segment
from tidewire.http.outage_log import OutageLog
from tidewire.http.request_errors import Route
from tidewire.http.response import UNREAD_STREAMS, Connection, Response
from tidewire.http.transport import Transport
from tidewire.http.url_and_token import (
    COLON_ADVICE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    UrlAndToken,
    may_contain_name,
    read_url_and_token,
)
from tidewire.options import Options, overlaid
from tidewire.protocol import messages
from tidewire.protocol.messages import PROTOCOL
from tidewire.protocol.resources import API_ROOT, Discovery, EndpointDescription
from tidewire.protocol.wire_model import MessageError, WireModel
from tidewire.trace_context import trace_headers

log: Final = logging.getLogger("tidewire")

HELLO_TIMEOUT: Final = 10.0
"""Timeout in seconds for the status line of a response. After the status line, the same timeout applies to the event
`hello`."""

WHOLE_ANSWER_TIMEOUT: Final = 300.0
"""Timeout in seconds for reading a whole response that is not a stream, even if bytes keep arriving. A longer
`answer_timeout` replaces it."""

RETRYING: Final = "%s %s: %s; retrying in %.2f s"
"""Log message before the wait for the next attempt of a request: method, URL, reason and seconds. The command line shows
it."""

M = TypeVar("M", bound=WireModel)


@dataclass(frozen=True, slots=True)
class Timing:
    """Sleep function, clock, random numbers and time limits of a client. Tests replace them."""

    sleep: Callable[[float], Awaitable[None]] = anyio.sleep
    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    hello_timeout: float = HELLO_TIMEOUT
    whole_answer_timeout: float = WHOLE_ANSWER_TIMEOUT


class RetryLaterError(Exception):
    """A request has failed, and the caller should repeat it after `seconds`. `submit` raises this error instead of
    waiting if a `policy` was passed. The caller then passes the same policy to the next attempt.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the next attempt is due in {seconds:g} s")
        self.seconds = seconds


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
    postpone: bool = False
    """Whether the caller waits before the next attempt, instead of the session."""
    credentials: Mapping[str, str] | None = None
    """The credentials sent with the last attempt."""
    last_fault: str | None = None
    """Description of the last attempt's failure."""
    waits: bool = False
    """Whether the last attempt has ended and the next one has not begun."""

    @property
    def key(self) -> str | None:
        """The idempotency key of a submit."""
        return None if self.headers is None else self.headers.get("Idempotency-Key")


class ApiSession:
    """Session of a client with one server. It has the base URL, the connection pool, the credentials and the cached
    discovery document.

    Attributes:
        base: Base URL of the server, without credentials.
        links: Rules for the links and redirects in the server's responses.
        contacted: Whether a response has proved that the server is a Tidewire server.
        outage_log: Reports when the server cannot be reached, and when it responds again.
    """

    def __init__(
        self,
        server: UrlAndToken,
        transport: Transport,
        *,
        auth: Auth | None,
        timing: Timing,
        hooks: Hooks | None = None,
    ) -> None:
        if not isinstance(hooks, Hooks | None):
            raise TypeError(f"hooks must be a Hooks object, not {hooks!r}")
        self.base: str = server.base
        self.links: ServerLinks = ServerLinks(server.base)
        self._server = server
        self.transport = transport
        self.timing = timing
        self.hooks: Hooks = hooks or Hooks()
        self.contacted: bool = False
        self.credentials: Credentials = Credentials(auth)
        self._discovery: Discovery | None = None
        self._descriptions: dict[str, EndpointDescription] = {}
        self.outage_log: OutageLog = OutageLog(server.base)

    # ---- requests ----------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        url: str,
        options: Options,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        job_id: str | None = None,
        since: float | None = None,
        policy: RequestPolicy | None = None,
    ) -> Response:
        """Make a request, with retries where they are safe and useful, and return the successful response.

        Args:
            method: HTTP method. The request must be safe to repeat.
            url: Absolute URL on the server's origin.
            options: Options of the call, such as the retry policy, the timeouts and the headers.
            headers: Headers in addition to the headers in `options`.
            body: JSON body.
            job_id: Id of the job, for error messages.
            since: Time at which the timeout starts, on the event loop's clock. None: now.
            policy: Counters to continue, if the request belongs to another call or to a stream. None: new counters.

        Raises:
            TidewireError: The server refused the request or could not be reached within the retry policy.
            TotalTimeoutError: The timeout of the options passed.
        """
        request = _Request(method, url, RequestKind.REQUEST, headers, body, job_id)
        return cast("Response", await self._bounded(request, options, since, policy))

    async def submit(
        self,
        url: str,
        options: Options,
        *,
        headers: Mapping[str, str],
        body: bytes,
        since: float,
        stream: bool,
        policy: RequestPolicy | None = None,
    ) -> Response | Connection:
        """Submit a job, with retries. The response is the job as JSON, or its event stream if the caller accepts one.

        The request asks for JSON if the client has not yet read `UNREAD_STREAMS` open event streams of jobs that it
        submitted earlier. It also asks for JSON if `on_disconnect` is `"cancel"`, because the server would count an
        open stream as a reader of the job.

        Args:
            url: URL of the endpoint's jobs.
            options: Options of the call, such as the retry policy, the timeouts and the headers.
            headers: Headers in addition to the headers in `options`, including the idempotency key.
            body: JSON body.
            since: Time at which the timeout starts, on the event loop's clock.
            stream: Whether the caller accepts an event stream.
            policy: Counters of the attempts so far, if the caller waits before the next attempt. None: new counters.

        Raises:
            TidewireError: The server refused the request or could not be reached within the retry policy.
            TotalTimeoutError: The timeout of the options passed.
            RetryLaterError: The next attempt is due later. Only raised if `policy` is not None.
        """
        request = _Request("POST", url, RequestKind.SUBMIT, headers, body, None, postpone=policy is not None)
        accepted = stream and options.on_disconnect == "continue"
        request.stream = accepted and self.transport.unread < UNREAD_STREAMS
        return await self._bounded(request, options, since, policy)

    async def sleep(self, seconds: float) -> None:
        """Wait before the next attempt.

        A client of a fake server in the same process does not wait, so that tests are fast. The exception is a wait that
        would exceed the time limit of the call. The client then waits, and the call raises the same error as with a real
        server.
        """
        ends = anyio.current_time() + seconds
        if (
            self.timing.sleep is anyio.sleep
            and self.transport.in_process
            and ends < anyio.current_effective_deadline()
        ):
            await anyio.lowlevel.checkpoint()
        else:
            await self.timing.sleep(seconds)

    def report_failure(self, policy: RequestPolicy, why: str, wait: float) -> None:
        """Log a warning if the last failure of a call or stream is an outage that was not reported yet.

        Args:
            policy: Counters of the call or stream.
            why: Description of the failure.
            wait: Time in seconds until the next attempt.
        """
        self.outage_log.failed(policy, why, wait=wait, now=self.timing.clock())

    def policy(self, options: Options) -> RequestPolicy:
        """Create the counters of one call or one stream."""
        return RequestPolicy(options.retry, clock=self.timing.clock, rng=self.timing.rng)

    async def _bounded(
        self, request: "_Request", options: Options, since: float | None, policy: RequestPolicy | None
    ) -> Response | Connection:
        policy = policy or self.policy(options)
        if options.timeout is None:
            return await self._request(request, options, policy)
        with anyio.CancelScope(deadline=(anyio.current_time() if since is None else since) + options.timeout):
            return await self._request(request, options, policy)
        what = f"the timeout of {options.timeout:g} s passed"
        if request.last_fault is not None:
            what += f"; the last attempt failed: {request.last_fault}"
        in_doubt = request.kind is RequestKind.SUBMIT and (policy.in_doubt or not request.waits)
        advice = may_run(request.key) if in_doubt else None
        where = Where(request.method, request.url, request.job_id)
        raise TotalTimeoutError(what, where=where, advice=advice)

    async def _request(
        self, request: "_Request", options: Options, policy: RequestPolicy
    ) -> Response | Connection:
        is_submit = request.kind is RequestKind.SUBMIT
        policy.begin()
        while True:
            asked: float | None = None
            unknown = False
            try:
                response = await self._attempt(request, options)
            except (TransportError, NotATidewireServerError) as error:
                fault: TidewireError = error
                found = fault_of(error)
                if policy.fault(found, contacted=self.contacted, is_submit=is_submit) is Action.FATAL:
                    raise
                await self.check_http(error, policy)
                unknown = is_submit and isinstance(error, TransportError) and error.sent
                # A proxy may hold an event stream back until it ends. The repetition asks for the job as JSON.
                request.stream = request.stream and found is not RequestFault.TIMEOUT
            else:
                if isinstance(response, Connection):
                    self.outage_log.responded()
                    return response
                failed = response.status >= HTTPStatus.INTERNAL_SERVER_ERROR
                problem = status_errors.problem_in(response) if failed else None
                action = policy.action(
                    response.status,
                    request.kind,
                    is_get=request.method == "GET",
                    is_refusal=problem is not None,
                )
                if action is Action.USE:
                    self.outage_log.responded()
                    return response
                if action is Action.REFRESH and await self.credentials.renew(request.credentials):
                    continue
                if action is Action.REDIRECT:
                    request.url = self.links.redirected(response)
                    continue
                if action is Action.FATAL and action_for(response.status, request.kind) is Action.REDIRECT:
                    raise self.links.redirect_refused(response)
                fault = self.refused(response, options, request.job_id)
                if action not in {Action.WAIT, Action.CUT} or isinstance(fault, NotATidewireServerError):
                    raise fault
                if request.stream and fault.code == "too_many_streams":
                    request.stream = False
                    continue
                # A response with a status 5xx and without problem details comes from a gateway. The server behind the
                # gateway may have started the job. [TW-JOB-037]
                unknown = is_submit and action is Action.CUT and problem is None
                if action is Action.WAIT:
                    asked = retry_after(response.headers.get("retry-after"))
            pause = policy.retry(Interruption.BUSY, asked=asked)
            if isinstance(pause, GiveUp):
                fault.what = f"{fault.what.rstrip('.')} (gave up: {pause.why})"
                fault.retryable = True
                if is_submit and policy.in_doubt:
                    fault.advice = may_run(request.key)
                raise fault.placed(job_id=request.job_id)
            request.last_fault = fault.what
            log.info(RETRYING, request.method, request.url, fault.what, pause)
            self.report_failure(policy, fault.what, pause)
            if request.postpone and not unknown:
                raise RetryLaterError(pause)
            request.waits = True
            await self.sleep(pause)
            request.waits = False
            if unknown:
                await self._check_keys(request, options, policy, fault)
            policy.begin()

    async def _check_keys(
        self, request: "_Request", options: Options, policy: RequestPolicy, fault: TidewireError
    ) -> None:
        """Check that the client may repeat a submit whose response was lost.

        A server without the capability `idempotency` may ignore the idempotency keys of requests without credentials.
        The client therefore reads the discovery document, with retries within the policy of the submit. [TW-JOB-037]

        Raises:
            TidewireError: The server does not keep the keys, or discovery failed. This error is `fault`.
        """
        if self.credentials.current or self._server.credentials or _names_credentials(options.headers):
            return
        try:
            discovery = await self.discover(options, policy=policy)
        except (NotATidewireServerError, UnsupportedProtocolError):
            raise
        except TidewireError as error:
            fault.advice = f"{may_run(request.key)} {_KEYS_UNKNOWN}"
            fault.retryable = True
            raise fault from error
        if "idempotency" not in discovery.capabilities:
            fault.advice = _NOT_RETRIED
            raise fault

    async def _attempt(self, request: "_Request", options: Options) -> Response | Connection:
        method, url, body = request.method, request.url, request.body
        headers = await self.headers(options, request.headers, body)
        request.credentials = self.credentials.current
        whole_timeout = max(self.timing.whole_answer_timeout, options.answer_timeout)
        work = self.transport.request(
            method,
            url,
            options,
            headers=headers,
            body=body,
            stream=request.stream,
            whole_timeout=whole_timeout,
        )
        return await watched(self.hooks.on_request, method, url, work)

    async def headers(
        self, options: Options, more: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> dict[str, str]:
        """Return all headers of a request, including credentials."""
        self.transport.loop.check()
        content = {"Content-Type": "application/json"} if body is not None else {}
        own = {"Accept": "application/json", **content, **trace_headers()}
        return overlaid(
            own, self._server.credentials, options.headers, await self.credentials.get(), more or {}
        )

    # ---- responses ---------------------------------------------------------------------------------------------

    def read(self, model: type[M], response: Response, *, what: str, job_id: str | None = None) -> M:
        """Parse and validate a response's body as a model.

        Raises:
            NotATidewireServerError: The body is not valid, and the client is at first contact.
            ProtocolError: The body is not valid, and the client is not at first contact.
        """
        try:
            body = messages.read(model, response.body, what=what)
        except MessageError as error:
            where = response.where(job_id=job_id)
            if self.contacted:
                raise ProtocolError(f"the response is not valid: {error}", where=where) from None
            raise self.not_tidewire(response, str(error)) from None
        self.contacted = True
        return body

    def refused(
        self,
        response: Response,
        options: Options,
        job_id: str | None = None,
        last_event_id: str | None = None,
    ) -> TidewireError:
        """Create the error for a response that is not a success. If the response has problem details, record that the
        server is a Tidewire server.
        """
        problem = status_errors.problem_in(response)
        where = response.where(job_id=job_id, last_event_id=last_event_id)
        if response.status in _OUTDATED:
            self.forget_descriptions()
        if problem is not None:
            self.contacted = True
        elif not self.contacted and not status_errors.may_be_from_gateway(response):
            # A response without problem details, with a status that gateways do not send, comes from a server that is
            # not a Tidewire server.
            return self.not_tidewire(response)
        error = status_errors.refused(response, problem, where)
        if response.status == HTTPStatus.UNAUTHORIZED:
            if self._server.is_token_withheld:
                error.advice = _WITHHELD
            elif any(
                map(
                    may_contain_name,
                    (self._server.credentials, options.headers, self.credentials.current or {}),
                )
            ):
                error.advice = COLON_ADVICE
        if problem is None or response.status == HTTPStatus.NOT_FOUND:
            error.advice = self.links.advice(response.url) or error.advice
        return error

    def not_tidewire(self, response: Response, fault: str = "") -> NotATidewireServerError:
        """Create the error for a response that no Tidewire server sends. See `status_errors.not_tidewire`."""
        return status_errors.not_tidewire(self.base, response, fault)

    async def check_http(
        self, error: TransportError | NotATidewireServerError, policy: RequestPolicy
    ) -> None:
        """After a failed request at first contact, check once whether the server speaks HTTP.

        Args:
            error: The error of the failed request.
            policy: Counters of the call or stream. After a time-out, the check is made at once, because a server that
                sends nothing usually speaks another protocol. After a lost connection or a submit, it is made only at
                the third failure, because the server may be restarting, or a proxy may be holding the stream back.

        Raises:
            NotATidewireServerError: The server does not speak HTTP, or it uses TLS and the URL begins with http://.
        """
        at_once = fault_of(error) is RequestFault.TIMEOUT and not policy.in_doubt
        if policy.failures != (0 if at_once else FIRST_ATTEMPTS - 1):
            return
        if isinstance(error, TransportError) and error.sent and not self.contacted:
            said, address = await self.transport.sniff(self.base), self.transport.address(self.base)
            if said[:5] != b"HTTP/"[: len(said)]:
                instead = f"it sent {said.decode('utf-8', 'replace')!r}"
                raise not_http(address, instead, error.where) from None
            if not said and await self.transport.speaks_tls(self.base):
                raise needs_tls(address, self.base, error.where) from None

    # ---- discovery ---------------------------------------------------------------------------------------------

    def forget_descriptions(self) -> None:
        """Discard the cached discovery document and descriptions of endpoints."""
        self._discovery = None
        self._descriptions.clear()

    async def discover(
        self, options: Options, since: float | None = None, policy: RequestPolicy | None = None
    ) -> Discovery:
        """Return the discovery document. The client caches it until the server refuses a request."""
        if self._discovery is None:
            response = await self.request("GET", self.base + API_ROOT, options, since=since, policy=policy)
            discovery = self.read(Discovery, response, what="discovery")
            if discovery.protocol != PROTOCOL:
                what = f"the server speaks {discovery.protocol!r}, but this client speaks {PROTOCOL!r}"
                raise UnsupportedProtocolError(what, where=Where("GET", response.url))
            self._discovery = discovery
        return self._discovery

    async def describe(
        self, endpoint: str, options: Options, since: float | None = None
    ) -> EndpointDescription:
        """Return the description of an endpoint. The client caches it until the server refuses a request."""
        if endpoint not in self._descriptions:
            response = await self.request("GET", self.endpoint_url(endpoint), options, since=since)
            self._descriptions[endpoint] = self.read(EndpointDescription, response, what="endpoint")
        return self._descriptions[endpoint]

    def endpoint_url(self, endpoint: str) -> str:
        segment = path_segment(endpoint, "the name of an endpoint")
        return f"{self.base}{API_ROOT}/endpoints/{segment}"

    def job_url(self, job_id: str) -> str:
        return f"{self.base}{API_ROOT}/jobs/{path_segment(job_id, 'the id of a job')}"


def new_session(
    url: str | None,
    token: str | None,
    headers: Mapping[str, str] | None,
    auth: Auth | None,
    hooks: Hooks | None,
    *,
    proxy: str | None,
    uds: str | os.PathLike[str] | None,
    verify: bool | ssl.SSLContext,
) -> ApiSession:
    """Create the session of a new client. The arguments and errors are those of `AsyncClient`."""
    route = Route(check_proxy(proxy), check_uds(uds, proxy))
    transport = Transport(route, verify=check_verify(verify))
    server = read_url_and_token(url, token, auth=auth, headers=headers)
    return ApiSession(server, transport, auth=auth, timing=Timing(), hooks=hooks)


_OUTDATED: Final = frozenset({404, 413, 422})
"""Statuses that may mean that the client's cached descriptions are outdated, because the server was restarted with
other endpoints, schemas or limits."""
_WITHHELD: Final = (
    f"{TOKEN_VARIABLE} was not sent, because {URL_VARIABLE} is the URL of another server. Pass the token: "
    "Client(url, token=…)."
)
_KEYS_UNKNOWN: Final = "The client did not retry, because it could not read whether the server keeps the keys of requests without credentials."
_NOT_RETRIED: Final = (
    "The job may or may not have started. The client did not retry, because this server does not keep the idempotency "
    "keys of requests without credentials. Look for the job in client.jobs(), if the server can list jobs."
)


def may_run(key: str | None) -> str:
    """Return the advice for a submit whose outcome is unknown.

    Args:
        key: The idempotency key of the submit; None if it is not known.
    """
    same = "the same idempotency_key" if key is None else f"idempotency_key={key!r}"
    return f"The job may or may not have started. Submit again with {same}, or look for it in client.jobs()."


def _names_credentials(headers: Mapping[str, str]) -> bool:
    return "authorization" in {name.lower() for name in headers}
