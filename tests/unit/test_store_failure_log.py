"""Lines about background work that the store refuses again and again."""

import logging

import pytest

from tidewire_server.store.failure_log import REPEAT_SECONDS, FailureLog
from tidewire_server.store.store_errors import StoreError


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([(0, "a"), (1, "a"), (REPEAT_SECONDS - 1, "a")], ["a"]),
        ([(0, "a"), (1, "b"), (2, "b"), (3, "a")], ["a", "b", "a"]),
        ([(0, "a"), (REPEAT_SECONDS, "a")], ["a", "a"]),
        ([(0, "a"), (1, "logged by the store"), (2, "a")], ["a"]),
    ],
    ids=["repeated", "another reason", "a minute later", "logged by the store"],
)
def test_a_failure_is_logged_once_a_minute_and_for_each_new_reason(
    failures: list[tuple[float, str]], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    log = FailureLog(logging.getLogger("work"), "cannot work", lambda: now)
    for at, reason in failures:
        now, error = at, StoreError(reason)
        error.logged = reason == "logged by the store"
        log.failed(error)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == [f"cannot work: {reason}" for reason in expected]
