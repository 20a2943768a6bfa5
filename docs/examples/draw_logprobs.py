"""Generate a short text with the default model, and draw the probabilities of its tokens as an SVG image.

python docs/examples/draw_logprobs.py docs/how-to/log-probabilities.svg
"""

import math
import sys
from html import escape
from pathlib import Path

from tidewire_server import Server
from tidewire_server.generation import add_generate

INPUT = {
    "prompt": "import json\n\ndef load(path):\n    with open(",
    "max_tokens": 8,
    "temperature": 0.7,
    "seed": 2,
    "top_logprobs": 5,
    "ranks": True,
    "token_text": True,
}
COLUMN, ROW, TOP, BAR = 104, 34, 46, 88
CHOSEN, OTHER, TEXT = "#0b7285", "#ced4da", "#212529"


def column(value: dict, at: int) -> list[str]:
    """Return the drawing of one generated token: its text, its candidates, and its rank."""
    x = 8 + at * COLUMN
    chosen = value["token_text"][at]
    rows = [*zip(value["top_text"][at], value["top_logprobs"][at], strict=True)]
    if value["token_ids"][at] not in value["top_ids"][at]:
        rows.append((chosen, value["logprobs"][at]))
    drawn = [f'<text x="{x}" y="20" font-weight="bold">{escape(repr(chosen))}</text>']
    drawn.append(f'<text x="{x}" y="36" fill="#868e96">rank {value["ranks"][at]}</text>')
    for row, (text, logprob) in enumerate(rows):
        y, share = TOP + row * ROW, math.exp(logprob)
        color = CHOSEN if text == chosen else OTHER
        drawn += [
            f'<rect x="{x}" y="{y + 17}" width="{max(1, BAR * share):.0f}" height="8" fill="{color}"/>',
            f'<text x="{x}" y="{y + 13}">{escape(repr(text))} {share:.0%}</text>',
        ]
    return drawn


def draw(value: dict) -> str:
    """Return an SVG image of a generation with `top_logprobs`, `ranks` and `token_text`."""
    width, height = 8 + COLUMN * len(value["token_ids"]), TOP + 6 * ROW + 4
    parts = [line for at in range(len(value["token_ids"])) for line in column(value, at)]
    style = f'font-family="monospace" font-size="12" fill="{TEXT}" xml:space="preserve"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    server = Server()
    add_generate(server, device="cpu")
    Path(sys.argv[1]).write_text(draw(server.call("generate", **INPUT)), encoding="utf-8")
