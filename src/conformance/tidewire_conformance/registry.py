"""The checks: each a function that talks to a server and asserts, under the identifiers of the sentences it judges.

A check that is written is entered by its decorator; its area is the name of its module, its name that of the function.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pkgutil import iter_modules

from tidewire_conformance import specification
from tidewire_conformance.session import Session

Body = Callable[[Session], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    """Area and function, such as `resume.a_cursor_that_is_no_id_is_refused`."""
    sentences: tuple[str, ...]
    run: Body
    about: str
    needs: tuple[str, ...]
    """Capabilities of discovery without which there is nothing to check."""
    serial: bool
    """Whether it must not run beside others."""
    whole_run: bool
    """Whether it judges all that was said in the run, and so comes last."""
    slow: bool = False
    """Whether it waits for half a second or more, and so begins before those that run beside it."""

    @property
    def profiles(self) -> frozenset[str]:
        """Those that its sentences count to."""
        return frozenset(specification.requirements()[each].profile for each in self.sentences)

    def is_named_by(self, patterns: Sequence[str]) -> bool:
        """Whether a pattern names it: a sentence, an area, or a name with wildcards."""
        return is_named(self.name, self.sentences, patterns)


def is_named(name: str, sentences: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a pattern names what judges these sentences: one of them, its area, or its name with wildcards."""
    area = name.partition(".")[0]
    return any(pattern in sentences or pattern == area or fnmatch(name, pattern) for pattern in patterns)


class BrokenChecksError(Exception):
    """The suite itself is broken: nothing can be judged by it."""


_CHECKS: dict[str, Check] = {}


def check(
    *sentences: str,
    needs: Sequence[str] = (),
    serial: bool = False,
    whole_run: bool = False,
    slow: bool = False,
) -> Callable[[Body], Body]:
    """Enter a check.

    Args:
        *sentences: The identifiers of the sentences that it judges.
        needs: Capabilities that the server must declare.
        serial: It must not run beside others.
        whole_run: It judges the whole run.
        slow: It waits for half a second or more.

    Raises:
        ValueError: A sentence does not exist, or the function tells nothing of itself.
    """

    def enter(body: Body) -> Body:
        name = f"{body.__module__.rpartition('.')[2]}.{body.__name__}"
        if unknown := [each for each in sentences if each not in specification.requirements()]:
            raise ValueError(f"{name}: the specification has no {unknown}")
        if not sentences or not body.__doc__ or name in _CHECKS:
            raise ValueError(f"{name}: a check names sentences, has a docstring, and a name of its own")
        about = inspect.cleandoc(body.__doc__)
        _CHECKS[name] = Check(name, sentences, body, about, tuple(needs), serial, whole_run, slow)
        return body

    return enter


def checks() -> list[Check]:
    """All checks, in the order in which they run.

    Raises:
        BrokenChecksError: They cannot be loaded.
    """
    from tidewire_conformance import checks as package  # noqa: PLC0415 - its modules import this one

    for module in iter_modules(package.__path__):
        try:
            import_module(f"{package.__name__}.{module.name}")
        except Exception as error:
            raise BrokenChecksError(
                f"the checks {module.name} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
    return sorted(_CHECKS.values(), key=lambda each: (each.whole_run, each.serial, not each.slow))
