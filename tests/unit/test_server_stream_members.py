"""A `Stream` shows the members that its reference documents, and nothing that only the server may call."""

import re
from pathlib import Path
from typing import Generic

from support.stream_harness import Written, on_a_loop

REFERENCE = Path(__file__).parents[2] / "docs/reference/server.md"


def documented(page: str) -> set[str]:
    """The names in the first column of the table of `stream`."""
    table = page.partition("<!-- generated: stream -->")[2].partition("<!-- end -->")[0]
    return set(re.findall(r"^\| `(\w+)", table, re.MULTILINE))


@on_a_loop
async def test_a_stream_shows_what_the_reference_documents():
    stream = Written("").stream
    shown = {name for name in dir(stream) if not name.startswith("_")} - set(dir(Generic))
    assert shown == documented(REFERENCE.read_text())
    assert {"append", "row", "set", "cancelled"} <= shown


@on_a_loop
async def test_a_stream_takes_no_further_attributes():
    stream = Written("").stream
    assert not hasattr(stream, "__dict__")
