"""Registry of the conformance checks.

A check is an async function that sends requests to a server and makes assertions about requirements. The decorator
`check` registers the function as `AREA.NAME`. The area is the name of the module, and the name is that of the function.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from tidewire_conformance import specification
from tidewire_conformance.session import Session

Body = Callable[[Session], Awaitable[None]]

AREAS: Final = (
    "discovery",
    "framing",
    "json_and_times",
    "errors",
    "parameters",
    "bodies",
    "jobs",
    "refused_submits",
    "requests_with_several_errors",
    "sizes",
    "resume",
    "cursors_in_urls",
    "state",
    "text_checks_due",
    "log_contents",
    "snapshots",
    "snapshots_only",
    "catch_up",
    "queue_progress_ping_goaway",
    "cancels",
    "purges",
    "deadlines",
    "waiting_jobs",
    "disconnects",
    "idempotency",
    "batch",
    "logprobs",
    "ties",
    "split_characters",
    "generation",
    "browser",
    "ownership",
    "endpoint_permissions",
    "limits_per_caller",
    "slow_readers",
    "durable",
)
"""Areas of the checks, ordered from causes to effects. If checks of two areas fail, the cause is more likely in the earlier
area, because the features of the later area depend on it.
"""


@dataclass(frozen=True)
class Check:
    """Conformance check with its name, its requirements and the function that runs it."""

    name: str
    """Area and function name, such as `resume.malformed_cursor_returns_400`."""
    requirements: tuple[str, ...]
    run: Body
    about: str
    needs: tuple[str, ...]
    """Capabilities that a server must declare. The check is skipped without them."""
    serial: bool
    """Whether the check must not run concurrently with other checks."""
    whole_run: bool
    """Whether the check judges the recorded requests and responses of the whole run. Such a check runs last."""
    seconds: float = 0.0
    """Time, in seconds, that the check waits even if the server is fast. The checks that wait longest start first."""
    after: str = ""
    """Area whose failures explain a failure of this check. By default, it is the check's own area."""
    idle_stream: bool = False
    """Whether the check needs a stream of an idle job that stays open while the other checks run."""
    alone: bool = False
    """Whether not even the idle stream may be open, because the check counts jobs or streams, or restarts the server. Such a
    check is serial, and runs after the other serial checks.
    """
    place: int = 0
    """Position among all checks, ordered from causes to effects."""
    left_out: tuple[str, ...] = ()
    """Requirements that the check judges, but that belong to profiles for which the server is not graded."""

    @property
    def profiles(self) -> frozenset[str]:
        """Profiles of the check's requirements. A profile that includes one of these profiles is not listed."""
        return frozenset(specification.requirements()[each].profile for each in self.requirements)

    def narrowed(self, profiles: Sequence[str]) -> "Check":
        """Return this check without the requirements of other profiles."""
        every = specification.requirements()
        kept = tuple(name for name in self.requirements if any(map(every[name].is_in, profiles)))
        return replace(self, requirements=kept, left_out=tuple({*self.requirements} - {*kept}))

    def is_named_by(self, patterns: Sequence[str]) -> bool:
        """Whether a pattern matches this check. A pattern is a requirement id, an area, or a name with wildcards."""
        return is_named(self.name, self.requirements, patterns)


def is_named(name: str, requirements: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a pattern matches a check or scenario.

    A pattern is a requirement id, the area in front of the dot in the name, or the name with wildcards.
    """
    area = name.partition(".")[0]
    return any(pattern in requirements or pattern == area or fnmatch(name, pattern) for pattern in patterns)


class BrokenChecksError(Exception):
    """Raised if a module with checks cannot be imported."""


_CHECKS: dict[str, Check] = {}


def check(
    *requirements: str,
    needs: Sequence[str] = (),
    serial: bool = False,
    whole_run: bool = False,
    seconds: float = 0.0,
    after: str = "",
    idle_stream: bool = False,
    alone: bool = False,
) -> Callable[[Body], Body]:
    """Register a check.

    Args:
        *requirements: Ids of the requirements that the check judges.
        needs: Capabilities that the server must declare.
        serial: Whether the check must not run concurrently with other checks.
        whole_run: Whether the check judges the recorded requests and responses of the whole run.
        seconds: Time, in seconds, that the check waits even if the server is fast.
        idle_stream: Whether the check needs a stream of an idle job that stays open while the other checks run.
        alone: Whether the check is serial and not even the idle stream may be open, because the check counts jobs or
            streams, or restarts the server.
        after: Area whose failures explain a failure of this check, if that area comes after the check's own area in `AREAS`.

    Raises:
        ValueError: A requirement id is unknown, no id is passed, the docstring is missing, or the name is already
            registered.
    """

    def enter(body: Body) -> Body:
        name = f"{body.__module__.rpartition('.')[2]}.{body.__name__}"
        if unknown := [each for each in requirements if each not in specification.requirements()]:
            raise ValueError(f"check {name}: the specification has no requirement {unknown}")
        if not requirements or not body.__doc__ or name in _CHECKS:
            raise ValueError(
                f"a check needs at least one requirement id, a docstring and a unique name: {name}"
            )
        about = " ".join(body.__doc__.split())
        _CHECKS[name] = Check(
            name,
            requirements,
            body,
            about,
            tuple(needs),
            serial or alone,
            whole_run,
            seconds,
            after,
            idle_stream=idle_stream,
            alone=alone,
        )
        return body

    return enter


def checks() -> list[Check]:
    """Return all checks in the order in which they run.

    Raises:
        BrokenChecksError: A module of checks cannot be imported.
    """
    from tidewire_conformance import checks as package  # noqa: PLC0415 - the modules of checks import this module

    for module in iter_modules(package.__path__):
        try:
            import_module(f"{package.__name__}.{module.name}")
        except Exception as error:
            raise BrokenChecksError(
                f"cannot load the checks of the area {module.name}: {type(error).__name__}: {error}"
            ) from error
    causes_first = sorted(_CHECKS.values(), key=_cause_order)
    placed = {each.name: replace(each, place=place) for place, each in enumerate(causes_first, 1)}
    found = [placed[name] for name in _CHECKS]
    return sorted(found, key=lambda each: (each.whole_run, each.alone, each.serial, -each.seconds))


def _cause_order(check: Check) -> tuple[int, bool]:
    """Return a sort key that puts causes before effects. Within an area, the checks keep the order of their module."""
    area = check.after or check.name.partition(".")[0]
    return AREAS.index(area), bool(check.after)
