"""The report as a badge: one small SVG by itself, which says the grade and is green only where nothing is lacking."""

from html import escape
from pathlib import Path
from typing import Final

from tidewire_conformance.judging.grade import Report

LABEL: Final = "tidewire"
GREEN, YELLOW, RED, GREY = "#1a7f37", "#8a6300", "#b42318", "#57606a"
"""All carry white text at a contrast of 4.5 to 1 or more."""
_WIDTH, _PADDING = 6.7, 9
"""Pixels of a character at 11 pixels, and beside a text."""


def write(report: Report, path: Path) -> None:
    """Write a report as a badge."""
    path.write_text(badge(*told(report)), encoding="utf-8")


def told(report: Report) -> tuple[str, str]:
    """What the badge of a report says, and in which colour.

    what came of the run                                        | it says                       | colour
    ------------------------------------------------------------+-------------------------------+-------
    nothing ran, it was cut short, or the suite failed          | not judged                    | grey
    a MUST is broken or cannot be judged, or a baseline is stale| core · 201/201 · 3 broken     | red
    only a part of the suite was run                            | part · 12/12                  | grey
    the baseline knows each failure                             | no profile · 201/204          | yellow
    no profile is met, though nothing is broken: it is untested | no profile · 201/204          | yellow
    else                                                        | core+durable · 58/58          | green
    """
    profiles, numbers, *_ = report.headline.split(" · ")
    profiles, numbers = "part" if report.part else profiles, numbers.removesuffix(" MUST")
    match report.exit_code:
        case 0 if report.failures or profiles == "no profile":
            return f"{profiles} · {numbers}", YELLOW
        case 0:
            return f"{profiles} · {numbers}", GREY if report.part else GREEN
        case 1:
            count = len(report.unexpected)
            return f"{profiles} · {numbers} · {f'{count} broken' if count else 'unclear'}", RED
    return "not judged", GREY


def badge(text: str, colour: str) -> str:
    """The SVG.

    Args:
        text: What it says.
        colour: Behind the text.
    """
    left, right = (round(len(each) * _WIDTH + 2 * _PADDING) for each in (LABEL, text))
    name = escape(f"{LABEL}: {text}")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{name}">
<title>{name}</title>
<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>
<g clip-path="url(#r)"><path fill="#24292f" d="M0 0h{left}v20H0z"/><path fill="{colour}" d="M{left} 0h{right}v20H{left}z"/></g>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="{left / 2:g}" y="14" textLength="{left - 2 * _PADDING}">{LABEL}</text>
<text x="{left + right / 2:g}" y="14" textLength="{right - 2 * _PADDING}">{escape(text)}</text>
</g>
</svg>
"""
