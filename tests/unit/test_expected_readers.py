"""`ExpectedReaders`: for how long a server that stops waits for readers that are about to connect."""

import pytest

from tidewire_server.jobs.expected_readers import ExpectedReaders

# With `retry` = 1, a reader is expected for 3 s. Each row: events with their times, and the expected result of `until`
# at a later time.
ROWS = {
    "nobody": ([], 10.0, 0.0),
    "submitted": ([(10.0, "submitted", "a")], 11.0, 13.0),
    "submitted and reading": ([(10.0, "submitted", "a"), (10.1, "came", "a")], 10.2, 0.0),
    "cut": ([(10.0, "submitted", "a"), (10.1, "came", "a"), (11.0, "closed", "a")], 11.5, 14.0),
    "cut and resumed": ([(11.0, "closed", "a"), (11.5, "came", "a")], 11.6, 0.0),
    "two cut, one resumed": (
        [(11.0, "closed", "a"), (11.2, "closed", "a"), (11.5, "came", "a")],
        11.6,
        14.2,
    ),
    "submit repeated": ([(10.0, "submitted", "a"), (11.0, "submitted", "a")], 11.5, 14.0),
    "submit repeated, then reading": (
        [(10.0, "submitted", "a"), (11.0, "submitted", "a"), (11.1, "came", "a")],
        11.5,
        0.0,
    ),
    "another job later": ([(10.0, "closed", "a"), (11.0, "submitted", "b")], 11.5, 14.0),
    "the older of two came": (
        [(10.0, "closed", "a"), (11.0, "closed", "b"), (11.1, "came", "a")],
        11.5,
        14.0,
    ),
    "the newer of two came": (
        [(10.0, "closed", "a"), (11.0, "closed", "b"), (11.1, "came", "b")],
        11.5,
        13.0,
    ),
    "answered": ([(10.0, "submitted", "a"), (10.5, "answered", "a")], 10.6, 0.0),
    "just in time": ([(10.0, "submitted", "a")], 12.99, 13.0),
    "never came": ([(10.0, "submitted", "a")], 13.0, 0.0),
    "an unknown reader": ([(10.0, "came", "a"), (10.0, "answered", "a")], 10.0, 0.0),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_reader_is_expected_for_the_longest_first_retry_delay(row):
    events, now, until = ROWS[row]
    times = [0.0]
    readers = ExpectedReaders(1.0, lambda: times[0])
    for times[0], event, job in events:
        getattr(readers, event)(job)
    times[0] = now
    assert readers.until() == until


@pytest.mark.parametrize(("retry", "until"), [(0.0, 0.0), (0.1, 10.3), (60.0, 13.0)])
def test_the_time_depends_on_the_setting_retry_and_has_a_limit(retry, until):
    readers = ExpectedReaders(retry, lambda: 10.0)
    readers.submitted("a")
    assert readers.until() == pytest.approx(until)


def test_the_registry_forgets_jobs_whose_time_is_over():
    times = [0.0]
    readers = ExpectedReaders(1.0, lambda: times[0])
    for number in range(1000):
        times[0] = float(number)
        readers.closed(str(number))
    assert len(readers._jobs) == 3
