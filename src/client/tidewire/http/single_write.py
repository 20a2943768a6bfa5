"""Makes httpcore send the headers and the body of a small request together.

httpcore sends them in two writes, so that a small request takes two system calls, two time limits and two iterations of the
event loop, and the server receives it in two parts. The replaced methods are private members of httpcore. Requests of
other clients in the process, and requests with a large body, are sent as before.
"""

from typing import Any, Final

import h11

from tidewire.http.httpx_fixes import OnePiece, replace_state_lock

MAX_BODY: Final = 64 * 2**10
"""Size of the largest body that is sent together with the headers, in bytes. Joining copies the body."""
SINGLE_WRITE: Final = "tidewire.single_write"
"""Extension of the requests that are sent in one write. Its value is the request's body, which is also the `stream` of the
request."""


def install_single_write() -> None:
    """Replace the two methods of httpcore that send requests. Further calls do nothing."""
    import httpcore  # noqa: PLC0415 - it imports every installed event loop library

    connection_class: Any = httpcore.AsyncHTTP11Connection
    send_headers, send_body = connection_class._send_request_headers, connection_class._send_request_body
    if send_headers.__module__ == __name__:
        return

    async def _send_request_headers(self: Any, request: Any) -> None:
        body = _body_of(request)
        if body is None:
            await send_headers(self, request)
            return
        replace_state_lock(self)
        http = self._h11_state
        try:
            head = http.send(
                h11.Request(method=request.method, target=request.url.target, headers=request.headers)
            )
            content = http.send(h11.Data(data=body.whole)) if body.whole else b""
            end = http.send(h11.EndOfMessage())
        except h11.LocalProtocolError as error:
            raise httpcore.LocalProtocolError(str(error)) from error
        timeout = request.extensions.get("timeout", {}).get("write")
        await self._network_stream.write(head + content + end, timeout=timeout)

    async def _send_request_body(self: Any, request: Any) -> None:
        if _body_of(request) is None:
            await send_body(self, request)

    connection_class._send_request_headers = _send_request_headers
    connection_class._send_request_body = _send_request_body


def _body_of(request: Any) -> OnePiece | None:
    # A request to open a tunnel through a proxy has the extensions of the request that goes through the tunnel, but
    # another stream.
    body: OnePiece | None = request.extensions.get(SINGLE_WRITE)
    return body if body is request.stream else None
