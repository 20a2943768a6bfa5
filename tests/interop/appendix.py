"""Programs that the appendix of the specification quotes.

`python tests/interop/appendix.py` updates the quotations.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPENDIX = ROOT / "spec/A-appendix.md"

_QUOTED = re.compile(
    r"(?P<head>^```\w+ file=(?P<file>\S+)\n)(?P<text>.*?)(?P<end>^```$)", re.MULTILINE | re.DOTALL
)


def quotations(text: str) -> dict[str, str]:
    """Map each quoted file to its quotation in the text."""
    return {found["file"]: found["text"] for found in _QUOTED.finditer(text)}


def with_current_files(text: str) -> str:
    """The text with every quotation replaced by the current content of its file."""
    return _QUOTED.sub(
        lambda found: found["head"] + (ROOT / found["file"]).read_text(encoding="utf-8") + found["end"], text
    )


if __name__ == "__main__":
    APPENDIX.write_text(with_current_files(APPENDIX.read_text(encoding="utf-8")), encoding="utf-8")
