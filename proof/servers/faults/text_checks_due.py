"""Faulty servers that omit or delay the checks of texts."""

import re

from proof.servers.fault_helpers import change_data
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("diffs_without_checks", "TW-DIF-051", "text_checks_due.required_text_checks_are_sent",
      "Diffs never have checks.", also_run="framing.log_ends_with_exactly_one_done",
      frames=change_data(lambda exchange, kind, data:
          data | {"check": []} if isinstance(data, dict) and "check" in data else data))
# fmt: on


@faulty_server("TW-DIF-051", "text_checks_due.text_check_is_sent_by_the_64th_change", hook="frames")
def checks_only_at_item_end(exchange, frame):
    """Checks of a growing text are sent only when its item ends."""
    found = re.search(rb'data:\{"ops":(\[\["[ar]".*?\]\]),"check":', frame)
    return frame[: found.start()] + b"data:" + found[1] + b"\n\n" if found else frame
