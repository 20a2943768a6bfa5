"""The page about structured output has the limits of the code."""

import re
from pathlib import Path

from tidewire_server.generation.schema_limits import DEFAULT_LIMITS, LIMIT_DESCRIPTIONS

PAGE = Path(__file__).parents[2] / "docs/explanation/structured-output.md"


def test_page_has_each_limit_with_its_default_and_meaning():
    text = PAGE.read_text()
    defaults = {
        name: int(number.replace(",", ""))
        for name, number in re.findall(r"\| `(max_\w+)` \| ([\d,]+) \|", text)
    }
    assert defaults == vars(DEFAULT_LIMITS)
    meanings = dict(re.findall(r"\| `(max_\w+)` \| (\D[^|]*) \|", text))
    assert meanings == dict(LIMIT_DESCRIPTIONS)
