"""The table of threats names tests that exist."""

import re
from pathlib import Path

from support.tables import for_each_case

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    set(re.findall(r"`((?:tests|bench)/[^`]+)`", (ROOT / "docs/explanation/threats.md").read_text()))
)


@for_each_case((name,) for name in NAMED)
def test_a_named_test_exists(name):
    path, _, function = name.partition("::")
    assert (ROOT / path).exists()
    if function:
        assert re.search(rf"^(async )?def {function}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_the_table_names_tests():
    assert len(NAMED) > 50
