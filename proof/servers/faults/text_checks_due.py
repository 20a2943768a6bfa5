"""Faulty servers that omit or delay the checks of texts."""

import re

from proof.servers.fault_helpers import change_data
from proof.servers.faults import faulty_server


@faulty_server(
    "TW-DIF-051", "text_checks_due.checks_come_when_they_are_owed", "framing.a_job_ends_by_one_done"
)
def no_checks(hooks):
    """Diffs never have checks."""

    def drop(exchange, kind, data):
        return data | {"check": []} if isinstance(data, dict) and "check" in data else data

    change_data(hooks, drop)


@faulty_server("TW-DIF-051", "text_checks_due.the_64th_change_is_proved")
def texts_are_proved_at_their_end_alone(hooks):
    """Checks of a growing text are sent only when its item ends."""

    def prove(exchange, frame):
        found = re.search(rb'data:\{"ops":(\[\["[ar]".*?\]\]),"check":', frame)
        return frame[: found.start()] + b"data:" + found[1] + b"\n\n" if found else frame

    hooks.frames.append(prove)
