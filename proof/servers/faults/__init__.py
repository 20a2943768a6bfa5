"""Registry of faulty servers and benign variants. Each of them is the reference server with one fault, or with one
unusual but allowed behavior.

A faulty server names the requirement that it breaks, and the check that must notice the fault. It is defined in the module
for the area of this check, as a row of the table if its hook is a single call or expression, and otherwise as a function.
A benign variant breaks no requirement and is defined in `benign`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from proof.servers.fault_proxy import FaultProxy


@dataclass(frozen=True)
class FaultyServer:
    """The reference server with one fault, or with one unusual but allowed behavior."""

    name: str
    description: str
    hooks: Mapping[str, Any]
    """Hooks and settings by attribute of `FaultProxy`."""
    requirement: str = ""
    """The broken requirement; empty for a benign variant."""
    check: str = ""
    """The check that must notice; empty for a benign variant."""
    also_run: tuple[str, ...] = ()
    """Further checks that must run, because their requests make the fault visible."""
    also_fails: Mapping[str, str] = field(default_factory=dict)
    """Checks of other areas that may fail: patterns of their names, separated by spaces, by the reason."""

    @property
    def is_benign(self) -> bool:
        return not self.check

    def install(self, proxy: FaultProxy) -> None:
        """Add the hooks and settings to a proxy."""
        for name, hook in self.hooks.items():
            if name == "install":
                hook(proxy)
            elif isinstance(known := getattr(proxy, name), list):
                known.append(hook)
            elif isinstance(known, dict):
                known.update(hook)
            else:
                setattr(proxy, name, hook)


FAULTY_SERVERS: dict[str, FaultyServer] = {}
"""Faulty servers and benign variants by name."""


def fault(
    name: str,
    requirement: str,
    check: str,
    description: str,
    *,
    also_run: str = "",
    also_fails: Mapping[str, str] | None = None,
    **hooks: Any,
) -> None:
    """Register a faulty server whose hooks are single expressions. Each call is a row in the table of a module.

    Args:
        name: Name of the faulty server.
        requirement: The requirement that it breaks.
        check: The check that must notice the fault.
        description: Description of the fault, for the page of results.
        also_run: Further checks, separated by spaces, whose requests make the fault visible.
        also_fails: Checks of other areas that may fail: patterns of their names, separated by spaces, by the reason.
        **hooks: Hooks and settings, by attribute of `FaultProxy`.
    """
    also = tuple(also_run.split())
    FAULTY_SERVERS[name] = FaultyServer(name, description, hooks, requirement, check, also, also_fails or {})


def faulty_server(
    requirement: str, check: str, *, hook: str = "install", **more: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the hook of a faulty server. The server's name and description are those of the function.

    Args:
        requirement: The requirement that the faulty server breaks.
        check: The check that must notice the fault.
        hook: Attribute of `FaultProxy` that the function belongs to. By default, the argument of the function is the
            `FaultProxy`, to which it adds hooks itself.
        **more: Further arguments of `fault`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        fault(function.__name__, requirement, check, function.__doc__ or "", **{hook: function}, **more)
        return function

    return register


def variant(name: str, description: str, **hooks: Any) -> None:
    """Register a benign variant. The hooks are passed as to `fault`."""
    FAULTY_SERVERS[name] = FaultyServer(name, description, hooks)


def benign_variant(hook: str = "install") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the hook of a benign variant, as `faulty_server` does."""
    return faulty_server("", "", hook=hook)


for _area in iter_modules(__path__):
    import_module(f"{__name__}.{_area.name}")
