"""`docs/how-to/trace-jobs.md` names each attribute of a span."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_attributes_is_complete():
    page = (ROOT / "docs/how-to/trace-jobs.md").read_text(encoding="utf-8")
    table = page[page.index("<!-- attributes -->") :].split("\n\n")[0]
    code = (ROOT / "src/reference_server/tidewire_server/tracing.py").read_text(encoding="utf-8")
    used = set(re.findall(r'"((?:tidewire|gen_ai)\.[a-z_.]+)"', code))
    assert used
    assert set(re.findall(r"`((?:tidewire|gen_ai)\.[a-z_.]+)`", table)) == used
