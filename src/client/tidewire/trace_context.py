"""The caller's trace: the header `traceparent` for requests, if the program uses OpenTelemetry.

This module does not import OpenTelemetry. It looks for `opentelemetry.trace` among the imported modules, because a
program with a current span has imported it. A program without OpenTelemetry is therefore not slowed down.
"""

import sys
from typing import Final

_TRACE: Final = "opentelemetry.trace"


def trace_headers() -> dict[str, str]:
    """Return the header `traceparent` with the current span of the caller. Without a span, the result is empty."""
    trace = sys.modules.get(_TRACE)
    # While another thread is importing the module, this function may be missing.
    get_current_span = getattr(trace, "get_current_span", None)
    if get_current_span is None:
        return {}
    found = get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    # Do not send `tracestate` and `baggage`, because they may contain data that is not meant for this server.
    return {"traceparent": f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"}
