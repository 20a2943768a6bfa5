"""Estimate the size of a regular expression after its repetitions are expanded (`pattern_size`)."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      \{\s*(?P<least>\d+)\s*(?:,\s*(?P<most>\d*)\s*)?\}    # a repetition
    | (?P<open>\((?:\?(?::|P?<\w+>))?)                    # a group without flags
    | (?P<close>\))
    | \[\^?\]?(?:\\.|[^\]\\\[])*\]                         # a character class without another one inside
    | \\.|.                                               # an escape, or any other character
    """,
    re.VERBOSE | re.DOTALL,
)
"""Matches the next part of a pattern. An operator such as `*` counts as a character, which can only raise the size."""


def pattern_size(pattern: str) -> int:
    """Return the number of characters and groups of a pattern after its repetitions are expanded.

    For example, `(a{10}b){5}` has the size 60. The result is never too low. Libraries interpret flags, nested character
    classes and unbalanced parentheses differently. For a pattern with one of these, the result is therefore the pattern's
    length times all its repetitions.
    """
    product, is_clear = 1, True
    sums, last = [0], [0]  # for each open group, its size so far and the size of its last part
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if token["least"] is not None:
            count = max(int(token["most"] or token["least"]), 1)
            product *= count
            sums[-1] += last[-1] * (count - 1)
            last[-1] *= count
        elif token["open"]:
            is_clear = is_clear and (text != "(" or not pattern.startswith("?", token.end()))
            sums.append(0)
            last.append(0)
        elif token["close"] and len(sums) > 1:
            size = sums.pop() + 1
            last.pop()
            sums[-1] += size
            last[-1] = size
        else:
            is_clear = is_clear and text not in {"[", ")"}
            sums[-1] += 1
            last[-1] = 1
    return sums[0] if is_clear and len(sums) == 1 else len(pattern) * product
