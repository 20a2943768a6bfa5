"""Tables of cases that run in one test, because pytest needs several milliseconds for each test."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_each_case(
    cases: Iterable[tuple[Any, ...]], *, ids: Callable[..., object] = lambda *case: case
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test with the arguments of each case. The test fails with the errors of all failed cases.

    Args:
        cases: Arguments of the test.
        ids: Name of a case, from its arguments; default is the arguments.
    """
    table = [*cases]
    assert table

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            failures: list[BaseException] = []
            for case in table:
                try:
                    test(*case)
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"case: {ids(*case)}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(table)} cases", failures)

        # Not with `functools.wraps`: pytest would take the arguments for names of fixtures.
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        return run

    return decorate
