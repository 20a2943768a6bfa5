"""Faulty servers with errors in cursors passed as `after` in the URL."""

import re

from proof.servers.fault_helpers import refuse
from proof.servers.fault_proxy import HANG
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("after_not_percent_decoded", "TW-RES-009", "cursors_in_urls.after_works_like_last_event_id",
      "The query parameter `after` is not percent-decoded.",
      instead=refuse(lambda exchange: re.search(rb"after=[^&]*%(2D|31)", exchange.query), 400, "bad_cursor"))
fault("cursor_0_1_refused_in_url", "TW-RES-012", "cursors_in_urls.after_works_like_last_event_id",
      "`after=0-1` is refused as an invalid cursor.",
      instead=refuse(lambda exchange: b"after=0-1" in exchange.query and not exchange.is_submit, 400, "bad_cursor"))
# fmt: on


@faulty_server(
    "TW-RES-047",
    "cursors_in_urls.unknown_cursor_of_running_job_returns_rewound_snapshot",
    hook="frames",
    also_fails={
        "a stream that hangs stays open and counts towards the limit": "limits_per_caller.stream_above_the_limit_returns_429 resume.*"
    },
)
def cursor_past_head_waits(exchange, frame):
    """If a running job has no event with the cursor's id yet, the stream waits for this event."""
    runs = b'"reason":"rewound"' in frame and b'"items":[{"status":"running"' in frame
    return HANG if runs and exchange.cursor.startswith("1-") else frame
