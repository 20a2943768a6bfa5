"""What the appendix of the specification quotes: `python tests/interop/appendix.py` writes the programs into it anew."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APPENDIX = ROOT / "spec/A-appendix.md"

_QUOTED = re.compile(
    r"(?P<head>^```\w+ file=(?P<file>\S+)\n)(?P<text>.*?)(?P<end>^```$)", re.MULTILINE | re.DOTALL
)


def quoted(text: str) -> dict[str, str]:
    """File → what a text quotes of it."""
    return {found["file"]: found["text"] for found in _QUOTED.finditer(text)}


def renewed(text: str) -> str:
    """The text with each quoted file as it is now."""
    return _QUOTED.sub(
        lambda found: found["head"] + (ROOT / found["file"]).read_text(encoding="utf-8") + found["end"], text
    )


if __name__ == "__main__":
    APPENDIX.write_text(renewed(APPENDIX.read_text(encoding="utf-8")), encoding="utf-8")
