"""Write the table of fuzz targets in docs/explanation/threats.md from a report.

FUZZ_SECONDS=600 FUZZ_REPORT=report.jsonl python -m pytest tests/fuzz -m slow
python tests/fuzz/write_counts.py report.jsonl
"""

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/explanation/threats.md"
BEGIN, END = "<!-- fuzz counts -->\n", "<!-- end of fuzz counts -->"


def main() -> None:
    counts: dict[str, list[int]] = {}
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        examples, seconds = counts.setdefault(run["target"], [0, 0])
        counts[run["target"]] = [examples + run["examples"], seconds + run["seconds"]]
    rows = [
        f"| `{name}` | {examples:,} | {seconds} |" for name, (examples, seconds) in sorted(counts.items())
    ]
    table = "\n".join(["| target | examples | seconds |", "|---|---:|---:|", *rows, ""])
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        re.sub(f"({BEGIN}).*?({END})", lambda found: found[1] + table + found[2], text, flags=re.DOTALL)
    )


if __name__ == "__main__":
    main()
