"""Run the demonstration and save its output as the SVG image for the README.

python docs/examples/record_demo.py docs/demo.svg
"""

import re
import sys
from pathlib import Path

import demo
from rich.console import Console
from rich.terminal_theme import MONOKAI

WIDTH = 88
TOKENS = 11
FONT = "monospace"


def record(path: Path) -> None:
    """Run the demonstration with few tokens and write its output as SVG.

    Raises:
        SystemExit: The demonstration failed.
    """
    demo.MAX_TOKENS = TOKENS
    demo.console = Console(
        highlight=False, record=True, width=WIDTH, force_terminal=True, color_system="truecolor"
    )
    demo.main(hints=False)
    svg = demo.console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
    # By default rich refers to a web font. Remove the reference, because the image must not load external resources.
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family:[^;]+;", f"font-family: {FONT};", svg)
    path.write_text(re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
