"""The caller's trace: the header `traceparent` for requests, if the program uses OpenTelemetry.

A program that has a current span has imported `opentelemetry.trace`. This module looks there, and imports nothing itself, so a
program without OpenTelemetry pays nothing for it.
"""

import sys
from typing import Final

_TRACE: Final = "opentelemetry.trace"


def trace_headers() -> dict[str, str]:
    """Return the header `traceparent` with the current span of the caller. Without a span, the result is empty."""
    trace = sys.modules.get(_TRACE)
    # Another thread may be about to import the module.
    get_current_span = getattr(trace, "get_current_span", None)
    if get_current_span is None:
        return {}
    found = get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    # Only `traceparent`: `tracestate` and `baggage` may contain what the program does not mean to send to this server.
    return {"traceparent": f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"}
