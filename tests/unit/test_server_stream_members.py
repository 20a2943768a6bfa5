"""Public members of `Stream`: exactly the members in the reference documentation."""

import re
from pathlib import Path
from typing import Generic

from support.stream_harness import StreamHarness

REFERENCE = Path(__file__).parents[2] / "docs/reference/server.md"


def documented(page: str) -> set[str]:
    """Names in the first column of the reference table of `Stream`."""
    table = page.partition("<!-- generated: stream -->")[2].partition("<!-- end -->")[0]
    return set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))


async def test_public_members_of_a_stream_are_documented():
    stream = StreamHarness("").stream
    shown = {name for name in dir(stream) if not name.startswith("_")} - set(dir(Generic))
    assert shown == documented(REFERENCE.read_text())
    assert {"append", "row", "set", "cancelled"} <= shown


async def test_stream_has_no_instance_dictionary():
    stream = StreamHarness("").stream
    assert not hasattr(stream, "__dict__")
