"""Faulty servers with errors in merged diffs, or on which slow readers delay other readers."""

import json
import re

from proof.servers.expected_side_failures import BROKEN_STREAM
from proof.servers.fault_proxy import CUT
from proof.servers.faults import fault, faulty_server


def merge_text_and_check(change):
    """Merge an append with the next diff in resumed streams if that diff has a check. `change` modifies the merged diff."""

    def join(exchange, frame):
        held = exchange.own.pop("buffered", b"")
        found = re.match(rb"id:1-(\d+)\ndata:(.*)\n\n$", frame)
        data = json.loads(found[2]) if found and exchange.cursor not in {"", "0-0"} else None
        if isinstance(data, str):
            exchange.own["buffered"] = frame
            return held
        if not held or not isinstance(data, dict) or not data.get("check"):
            return held + frame
        append = ["a", data["check"][0][0], json.loads(held.partition(b"data:")[2])]
        data = data | {"ops": [append, *data["ops"]], "on": int(found[1]) - 2}
        change(data)
        return b"id:1-%b\ndata:%b\n\n" % (found[1], json.dumps(data).encode())

    return join


# fmt: off
fault("merged_diff_without_checks", "TW-DIF-044", "slow_readers.merged_diffs_keep_text_checks",
      "A merged diff lacks the checks of its parts.",
      frames=merge_text_and_check(lambda data: data.pop("check")),
      also_run="state.text_lengths_count_code_points resume.ended_job_resumes_from_every_id")
# fmt: on


@faulty_server(
    "TW-DIF-067", "slow_readers.slow_reader_does_not_delay_others", hook="frames", also_fails=BROKEN_STREAM
)
async def slow_reader_blocks_others(exchange, frame):
    """A slow reader delays all other readers."""
    first = exchange.shared.setdefault(exchange.path, id(exchange))
    mine = first == id(exchange)
    return frame if mine or b"event:hello" in frame or not exchange.path.endswith("/events") else CUT
