"""Faulty servers with errors in cursors passed as `after` in the URL."""

import re

from proof.servers.fault_helpers import refuse
from proof.servers.fault_proxy import HANG
from proof.servers.faults import faulty_server


@faulty_server("TW-RES-009", "cursors_in_urls.after_works_like_last_event_id")
def after_not_percent_decoded(hooks):
    """The query parameter `after` is not percent-decoded."""
    refuse(hooks, lambda exchange: re.search(rb"after=[^&]*%(2D|31)", exchange.query), 400, "bad_cursor")


@faulty_server("TW-RES-012", "cursors_in_urls.after_works_like_last_event_id")
def cursor_0_1_refused_in_url(hooks):
    """`after=0-1` is refused as an invalid cursor."""
    refuse(hooks, lambda exchange: b"after=0-1" in exchange.query, 400, "bad_cursor")


@faulty_server("TW-RES-047", "cursors_in_urls.unknown_cursor_of_running_job_returns_rewound_snapshot")
def cursor_past_head_waits(hooks):
    """If a running job has no event with the cursor's id yet, the stream waits for this event."""

    def wait(exchange, frame):
        runs = b'"reason":"rewound"' in frame and b'"items":[{"status":"running"' in frame
        return HANG if runs and exchange.cursor.startswith("1-") else frame

    hooks.frames.append(wait)
