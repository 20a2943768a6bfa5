"""Registry of faulty servers and benign variants. Each of them is the reference server with one hook.

A faulty server names the requirement that it breaks, and the check that must notice the fault. It is defined in the module
for the area of this check. A benign variant breaks no requirement and is defined in `benign`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@dataclass(frozen=True)
class FaultyServer:
    """The reference server with one fault, or with one unusual but allowed behavior."""

    name: str
    description: str
    install: Callable[[Any], None]
    """Function that adds the hook to a `FaultProxy`."""
    requirement: str = ""
    """The broken requirement; empty for a benign variant."""
    check: str = ""
    """The check that must notice; empty for a benign variant."""
    also_run: tuple[str, ...] = ()
    """Further checks that must run, because their requests make the fault visible."""

    @property
    def is_benign(self) -> bool:
        return not self.check


FAULTY_SERVERS: dict[str, FaultyServer] = {}
"""Faulty servers and benign variants by name."""


def faulty_server(
    requirement: str, check: str, *also_run: str
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register a function as a faulty server. The server takes its name and description from the function."""

    def register(install: Callable[[Any], None]) -> Callable[[Any], None]:
        FAULTY_SERVERS[install.__name__] = FaultyServer(
            install.__name__, install.__doc__ or "", install, requirement, check, also_run
        )
        return install

    return register


def benign_variant(install: Callable[[Any], None]) -> Callable[[Any], None]:
    """Register a function as a benign variant."""
    FAULTY_SERVERS[install.__name__] = FaultyServer(install.__name__, install.__doc__ or "", install)
    return install


for _area in iter_modules(__path__):
    import_module(f"{__name__}.{_area.name}")
