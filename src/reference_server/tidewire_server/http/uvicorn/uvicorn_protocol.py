"""HTTP protocol for uvicorn with limits on connections, request heads, trailers, pipelined requests and unread responses.

uvicorn's httptools parser buffers a request head until the head is complete. It limits neither the size of the head nor
the time until the head is complete. It also adds the fields of a trailer section to the request's headers, without a limit.
uvicorn also accepts any number of connections. The limits in this module work only with httptools, so the server cannot be
run with h11.
"""

import asyncio
import ipaddress
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tidewire.install_command import install_command

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the server needs {error.name}, which is not installed: {install_command('server')}",
        name=error.name,
    ) from None

from tidewire.protocol.problems import Problem, problem
from tidewire_server.errors import unread_request
from tidewire_server.http.problem_responses import problem_response
from tidewire_server.http.uvicorn.uvicorn_internals import drop, unacknowledged_bytes
from tidewire_server.principals import client_address
from tidewire_server.settings import Settings

_LINGER: Final = 2.0
"""Number of seconds to wait before closing the connection after responding to a request that is still arriving.

Closing the connection earlier could reset it, and the client would then lose the response.
"""

_MAX_REJECTED: Final = 100
"""Maximum number of connections above the limit that get a 503 response.

Additional connections are closed without a response.
"""

MAX_PIPELINED: Final = 16
"""Maximum number of pipelined requests on one connection before the server stops parsing more of them.

The bytes that follow are buffered without parsing, because a parsed request takes about a hundred times as much memory.
"""

MAX_HEADERS: Final = 256
"""Maximum number of header lines in a request head, and of fields in a trailer section.

A header line of 8 bytes takes 150 bytes after parsing. A head of `max_head_bytes` with only such lines would take over 1 MB.
"""

_SLICE: Final = 16 * 1024
"""Number of bytes passed to the parser at a time."""


class _AfterBody:
    """Value of uvicorn's `keep_alive` for a request that ends its connection. It is true if the response is complete while the
    body is still arriving. If it were false, uvicorn would close the connection at once. The close would reset the connection,
    and the client would lose the response.
    """

    def __init__(self, cycle: Any) -> None:
        self._cycle = weakref.ref(cycle)

    def __bool__(self) -> bool:
        cycle = self._cycle()
        return cycle is not None and cycle.response_complete and cycle.more_body


def http_protocol(
    settings: Settings, max_connections: int, max_per_address: int, count: Callable[[str], None]
) -> Any:
    """Create the protocol class for uvicorn: uvicorn's httptools protocol with the limits in the settings.

    Args:
        settings: Settings of the server.
        max_connections: Maximum number of open connections.
        max_per_address: Maximum number of open connections from one client address. Proxies have no such limit.
        count: Function that is called with the code of each problem response that the protocol sends itself.
    """
    proxies = [ipaddress.ip_network(each) for each in settings.forwarded_allow_ips]
    accepted: Counter[str] = Counter()
    """Client address → number of its open connections, not counting rejected connections."""
    rejected: set[Any] = set()

    def is_proxy(host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any((getattr(address, "ipv4_mapped", None) or address) in each for each in proxies)

    class BoundedHttp(HttpToolsProtocol):
        """HTTP connection that enforces the limits in the settings."""

        _in_head = False
        _head_bytes = 0
        _passed_end = False
        """Whether a request ended in the bytes being parsed.

        If so, it is unknown how many of these bytes belong to the next head.
        """
        _in_body = False
        _framing_bytes = 0
        """Number of bytes parsed since the last content of the body. They belong to chunk extensions or a trailer section."""
        _passed_content = False
        """Whether a head, or content of a body, ended in the bytes being parsed.

        If so, it is unknown how many of these bytes come after that end.
        """
        _deadline: asyncio.TimerHandle | None = None
        _stall_timer: asyncio.TimerHandle | None = None
        _unacknowledged = 0
        _rejected = False
        _is_last = False
        """Whether the connection ends after the response to the newest request. If so, data received later is
        discarded.
        """
        _address = ""
        """Client address for which this connection counts."""
        _unparsed = b""
        """Received bytes that are not parsed yet, because too many pipelined requests are waiting."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            host = self.client[0] if self.client else ""
            self._address = client_address(host)
            if len(self.connections) - len(rejected) > max_connections:
                self._reject_connection(
                    f"the server has reached its limit of {max_connections} open connections (max_connections)"
                )
            elif accepted[self._address] >= max_per_address and not is_proxy(host):
                self._reject_connection(
                    f"this client address has {accepted[self._address]} open connections, which is the limit for one "
                    "address (max_connections, max_share)"
                )
            else:
                accepted[self._address] += 1
                self._deadline = self.loop.call_later(settings.head_timeout, self._refuse_late_head)

        def _reject_connection(self, detail: str) -> None:
            """Reject a connection that exceeds a limit.

            Send a 503 response before closing the connection, unless there are many rejected connections.
            """
            self._rejected = True
            self.logger.warning("rejecting connections: %s", detail)
            rejected.add(self)
            if len(rejected) > _MAX_REJECTED:
                drop(self.transport)
                return
            self._write_problem(problem("unavailable", detail))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            # Do not close the connection immediately. If a request is still arriving, the close would reset the
            # connection, and the client would lose the response.
            self._deadline = self.loop.call_later(_LINGER, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unparsed = b""
            if self._rejected:
                rejected.discard(self)
            else:
                accepted[self._address] -= 1
                if not accepted[self._address]:
                    del accepted[self._address]
            self._cancel_deadline()
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._rejected or self._is_last:
                return
            data, self._unparsed = self._unparsed + data, b""
            for start in range(0, len(data), _SLICE):
                if len(self.pipeline) >= MAX_PIPELINED:
                    self._unparsed = data[start:]
                    self.flow.pause_reading()
                    self._cancel_deadline()  # The server itself delays the rest of the head, so the client is not late.
                    return
                self._parse(data[start : start + _SLICE])
                if self._is_last or self.transport.is_closing():
                    return

        def _resume_parsing(self) -> None:
            if self._unparsed and not self.transport.is_closing():
                self.data_received(b"")

        def _parse(self, data: bytes) -> None:
            self._passed_end = self._passed_content = False
            # uvicorn stops the timer of an idle connection when any byte arrives. Restore the timer if the bytes do not begin a
            # request, such as an empty line. Otherwise nothing would close the connection.
            idle_timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
            super().data_received(data)
            if idle_timer is not None:
                if self._in_head or not self.cycle.response_complete:
                    idle_timer.cancel()
                else:
                    self.timeout_keep_alive_task = idle_timer
            # Start the timer here and not in `on_message_begin`. A head that arrives all at once then needs no timer.
            if self._in_head and self._deadline is None:
                self._deadline = self.loop.call_later(settings.head_timeout, self._refuse_late_head)
            if self._in_head and not self._passed_end:
                self._head_bytes += len(data)
                if self._head_bytes > settings.max_head_bytes:
                    self._refuse(
                        problem(
                            "bad_parameter",
                            f"the request head is larger than the limit of {settings.max_head_bytes} bytes (max_head_bytes)",
                        )
                    )

            if self._in_body:
                self._framing_bytes = 0 if self._passed_content else self._framing_bytes + len(data)
                if self._framing_bytes > settings.max_head_bytes:
                    self._refuse(
                        problem(
                            "bad_parameter",
                            "a chunk extension or the trailer section of the request is larger than the limit of "
                            f"{settings.max_head_bytes} bytes (max_head_bytes)",
                        )
                    )

        def send_400_response(self, msg: str) -> None:
            # Override uvicorn's method, which would write the 400 response into an earlier response that is still being
            # sent.
            self._refuse(problem("bad_parameter", "the data is not a valid HTTP/1.1 request"))

        def on_message_begin(self) -> None:
            self._in_head, self._head_bytes = True, 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if len(self.headers) >= MAX_HEADERS:
                detail = f"the request has more than {MAX_HEADERS} header lines"
                self._refuse(problem("bad_parameter", detail))
                raise ValueError(detail)  # Stop the parser, which would start the refused request.
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head, self._passed_content = False, True
            self._cancel_deadline()
            super().on_headers_complete()
            # Replace the list, because uvicorn adds the fields of a trailer section to it. A proxy that removes or sets headers
            # does not check trailers, so trailers must not become headers (RFC 9110, section 6.5.1).
            self.headers = []
            if not self.cycle.keep_alive:
                self.cycle.keep_alive = _AfterBody(self.cycle)  # type: ignore[assignment]  # uvicorn tests only its truth
            self._in_body = True  # Do not set this earlier, because `cycle` belonged to the previous request.

        def on_body(self, body: bytes) -> None:
            self._passed_content = True
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._passed_end, self._in_body = True, False
            self._cancel_deadline()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            unfinished = self.cycle is not None and self.cycle.response_complete and self.cycle.more_body
            self._is_last |= unfinished and isinstance(self.cycle.keep_alive, _AfterBody)
            ends = self._is_last and not self.pipeline
            super().on_response_complete()
            if self._unparsed:
                self.flow.pause_reading()
                if len(self.pipeline) < MAX_PIPELINED:
                    self.loop.call_soon(self._resume_parsing)
            if ends and self.transport.can_write_eof() and not self.transport.is_closing():
                self.transport.write_eof()
            if (unfinished or ends) and not self.transport.is_closing():
                self._cancel_deadline()
                self._deadline = self.loop.call_later(_LINGER, self.transport.close)

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._stall_timer is None:
                self._watch_progress()

        def _watch_progress(self) -> None:
            self._unacknowledged = unacknowledged_bytes(self.transport)
            self._stall_timer = self.loop.call_later(settings.stall_timeout, self._check_progress)

        def _check_progress(self) -> None:
            """Abort the connection if the server has written the whole response, but the client has read nothing since
            the last check.

            Event streams have their own check.
            """
            self._stall_timer = None
            waiting = unacknowledged_bytes(self.transport)
            if not waiting:
                return
            streaming = self.cycle is not None and not self.cycle.response_complete
            if waiting < self._unacknowledged or streaming:
                self._watch_progress()
            else:
                drop(self.transport)

        def _cancel_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _refuse_late_head(self) -> None:
            self._deadline = None
            self._refuse(
                unread_request(
                    "request.late",
                    f"the request head did not arrive within {settings.head_timeout:g} s (head_timeout)",
                )
            )

        def _refuse(self, found: Problem) -> None:
            """Stop reading requests, respond with a problem and close the connection.

            - The server still responds to complete requests that arrived earlier.
            - If such a response is pending, and the head of the refused request is incomplete, the connection is closed
              after the pending responses, without the problem response.
            - If the response to the refused request has already been started, the connection is closed at once.
            """
            in_body, self._in_head, self._in_body = self._in_body, False, False
            if self.transport.is_closing():
                return
            if in_body and self.pipeline:
                # The refused request is the newest one in the pipeline, and waits for the responses to earlier requests.
                # Replace its ASGI application, which would wait for the rest of the body, with the problem response.
                count(found.code)
                refusal: Any = problem_response(found)
                self.pipeline[0] = (self.cycle, refusal)
                self._is_last = True
            elif not in_body and self.cycle is not None and not self.cycle.response_complete:
                self._is_last = True
            else:
                if not (in_body and self.cycle.response_started):
                    self._write_problem(found)
                self.transport.close()

        def _write_problem(self, found: Problem) -> None:
            count(found.code)
            self.transport.write(_encode_response(found))

    return BoundedHttp


def _encode_response(found: Problem) -> bytes:
    """Encode a problem response with `Connection: close`."""
    response = problem_response(found)
    headers = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
    return b"HTTP/1.1 %d \r\n%bconnection: close\r\n\r\n%b" % (found.status, headers, bytes(response.body))
