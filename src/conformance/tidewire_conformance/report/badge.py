"""SVG badge with the grade of a conformance run. The badge is green only if every claimed profile is met."""

from html import escape
from pathlib import Path
from typing import Final

from tidewire_conformance.judging.grade import Report

LABEL: Final = "tidewire"
GREEN, YELLOW, RED, GRAY = "#1a7f37", "#8a6300", "#b42318", "#57606a"
"""Background colors. White text has a contrast of at least 4.5 to 1 on each of them."""
_WIDTH, _PADDING = 6.7, 9
"""Average width of a character at a font size of 11 pixels, and the horizontal padding, both in pixels."""


def write(report: Report, path: Path) -> None:
    """Write the badge of a report to an SVG file."""
    path.write_text(badge(*summary(report)), encoding="utf-8")


def summary(report: Report) -> tuple[str, str]:
    """Return the text and the background color of the badge.

    result of the run                                           | text                                | color
    ------------------------------------------------------------+-------------------------------------+-------
    nothing ran, the run was cut short, or the suite failed     | not judged                          | gray
    a MUST fails or cannot be judged, or the baseline is stale  | core · 201/201 · 3 broken           | red
    only a part of the suite was run                            | part · 12/12                        | gray
    every failure is listed in the baseline                     | no profile · 201/204                | yellow
    nothing fails, but checks of the profile were not tried     | core (3 checks not tried) · 201/204 | yellow
    otherwise                                                   | core+durable · 58/58                | green
    """
    profiles, numbers, *_ = report.headline.split(" · ")
    profiles, numbers = "part" if report.part else profiles, numbers.removesuffix(" MUST")
    match report.exit_code:
        case 0 if report.failures or not report.is_whole:
            return f"{profiles} · {numbers}", YELLOW
        case 0:
            return f"{profiles} · {numbers}", GRAY if report.part else GREEN
        case 1:
            count = len(report.unexpected)
            return f"{profiles} · {numbers} · {f'{count} broken' if count else 'unclear'}", RED
    return "not judged", GRAY


def badge(text: str, color: str) -> str:
    """Render a badge as SVG.

    Args:
        text: Text in the right half of the badge.
        color: Background color of the right half.
    """
    left, right = (round(len(each) * _WIDTH + 2 * _PADDING) for each in (LABEL, text))
    name = escape(f"{LABEL}: {text}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{name}">
<title>{name}</title>
<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><path fill="#24292f" d="M0 0h{left}v20H0z"/><path fill="{color}" d="M{left} 0h{right}v20H{left}z"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="{left / 2:g}" y="14" textLength="{left - 2 * _PADDING}">{LABEL}</text>
<text x="{left + right / 2:g}" y="14" textLength="{right - 2 * _PADDING}">{escape(text)}</text>
</g>
</svg>
"""
