"""Rules for the warnings of a client whose server cannot be reached, with a clock of the test."""

import math

import pytest

from tidewire import RetryPolicy
from tidewire.following.request_policy import OUTAGE_FAILURES, RequestFault, RequestPolicy
from tidewire.http.outage_log import QUIET_TIME, OutageLog
from tidewire.terminal_escapes import LINE_LIMIT, one_line


class Outages:
    """An `OutageLog`, its messages, and a clock."""

    def __init__(self, caplog):
        self.now = 1000.0
        self._log = OutageLog("http://server")
        self._caplog = caplog

    def fails(self, policy, *, wait=1.0):
        policy.retry()
        self._log.failed(policy, "no route", wait=wait, now=self.now)

    def responds(self):
        self._log.responded()

    @property
    def messages(self):
        """The messages so far, in short."""
        return ["back" if "is back" in each.getMessage() else "lost" for each in self._caplog.records]


@pytest.fixture
def outages(caplog):
    return Outages(caplog)


def failed_before(**limits):
    """Counters of a call whose next failure is one that the client reports."""
    policy = RequestPolicy(RetryPolicy(**limits))
    for _ in range(OUTAGE_FAILURES - 1):
        policy.retry()
    return policy


def test_the_second_failure_in_a_row_is_logged_and_the_third_is_not(outages):
    policy = RequestPolicy()
    for expected in ([], ["lost"], ["lost"]):
        outages.fails(policy)
        assert outages.messages == expected


def test_progress_starts_the_count_of_failures_again(outages):
    policy = RequestPolicy()
    for _ in range(3):
        outages.fails(policy)
        policy.progress()
    assert outages.messages == []


def test_a_response_is_logged_only_after_an_outage(outages):
    outages.responds()
    outages.fails(failed_before())
    outages.responds()
    outages.responds()
    assert outages.messages == ["lost", "back"]


def test_the_calls_of_one_client_share_a_message(outages):
    for _ in range(100):
        outages.fails(failed_before())
    for _ in range(100):
        outages.responds()
    assert outages.messages == ["lost", "back"]


def test_an_outage_of_an_hour_is_logged_once(outages):
    policy = failed_before(patience=math.inf)
    for wait in (1.0, 30.0, 3600.0, 5.0):
        outages.fails(policy, wait=wait)
        outages.now += wait + 10.0
    assert outages.messages == ["lost"]


def test_a_new_call_long_after_the_last_attempt_of_an_outage_logs_a_warning_again(outages):
    """The user has interrupted the first call, so no response has ended the outage."""
    outages.fails(failed_before(), wait=1.0)
    outages.now += 1.0 + QUIET_TIME
    outages.fails(failed_before())
    assert outages.messages == ["lost", "lost"]


def test_a_server_that_comes_and_goes_logs_one_pair_of_messages_per_quiet_time(outages):
    for _ in range(30):
        outages.fails(failed_before(), wait=0.0)
        outages.responds()
        outages.now += QUIET_TIME / 10
    assert outages.messages == ["lost", "back"] * 3


def test_first_contact_is_not_logged_because_it_ends_at_once(outages):
    policy = RequestPolicy()
    for _ in range(OUTAGE_FAILURES):
        policy.fault(RequestFault.UNREACHABLE, contacted=False)
        outages.fails(policy)
    assert outages.messages == []


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            {"patience": 300.0},
            "retries for at most 299 s; to change this, pass retry=RetryPolicy(patience=…)",
        ),
        ({"patience": math.inf}, "retries without a time limit; to change this"),
        ({"attempts": 3}, "for at most 299 s, or until 1 more attempt has failed; to change this"),
        ({"attempts": 9}, "or until 7 more attempts have failed; to change this, pass retry=RetryPolicy(pat"),
    ],
)
def test_the_message_names_the_limits_and_the_options(caplog, limits, text):
    policy = RequestPolicy(RetryPolicy(jitter=0, **limits))
    OutageLog("http://server").failed(policy, "no route", wait=policy.retry(), now=0.0)
    OutageLog("http://server").failed(policy, "no route", wait=policy.retry(), now=0.0)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("the connection to http://server failed 2 times in a row (no route). The client ")
    assert text in line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\n two\tthree", "one two three"),
        ("\x1b[2J\u202e", r"\x1b[2J\u202e"),
        ("x" * LINE_LIMIT, "x" * LINE_LIMIT),
        ("x" * (LINE_LIMIT + 1), "x" * (LINE_LIMIT - 1) + "…"),
    ],
)
def test_a_text_in_a_message_is_one_line_with_a_limit(text, line):
    assert one_line(text) == line
