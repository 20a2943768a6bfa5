"""Wrong servers, and servers that are only unusual: each the reference server with one hook.

A mutant names the sentence that it breaks and the check that has to notice, and stands in the file of that check's
area; a benign variant breaks none, and stands in `unusual`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """One of them."""

    name: str
    about: str
    meddle: Callable[[Any], None]
    sentence: str = ""
    """What it breaks; nothing where it is benign."""
    check: str = ""
    """What has to notice."""
    beside: tuple[str, ...] = ()
    """Checks that have to run as well, so that there is something to notice."""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    sentence: str, check: str, *beside: str
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a wrong server."""

    def enter(meddle: Callable[[Any], None]) -> Callable[[Any], None]:
        MUTANTS[meddle.__name__] = Mutant(
            meddle.__name__, meddle.__doc__ or "", meddle, sentence, check, beside
        )
        return meddle

    return enter


def benign(meddle: Callable[[Any], None]) -> Callable[[Any], None]:
    """Enter a server that is only unusual."""
    MUTANTS[meddle.__name__] = Mutant(meddle.__name__, meddle.__doc__ or "", meddle)
    return meddle


for _area in iter_modules(__path__):
    import_module(f"{__name__}.{_area.name}")
