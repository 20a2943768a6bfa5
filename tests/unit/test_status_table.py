"""The table of HTTP statuses: every cell, by what was asked for."""

import pytest

from tidewire.protocol.answers import Asked, Then, is_event_stream, retry_after, then

EVERYWHERE = {
    200: Then.USE,
    401: Then.REFRESH,
    403: Then.REFRESH,
    404: Then.FATAL,
    405: Then.FATAL,
    410: Then.FATAL,
    413: Then.FATAL,
    422: Then.FATAL,
    418: Then.FATAL,
    429: Then.WAIT,
    503: Then.WAIT,
    500: Then.CUT,
    502: Then.CUT,
    504: Then.CUT,
    599: Then.CUT,
    301: Then.REDIRECT,
    302: Then.REDIRECT,
    303: Then.REDIRECT,
    307: Then.REDIRECT,
    308: Then.REDIRECT,
}


@pytest.mark.parametrize("asked", Asked)
@pytest.mark.parametrize(("status", "follows"), EVERYWHERE.items())
def test_statuses_that_mean_the_same_everywhere(asked, status, follows):
    assert then(status, asked) is follows


@pytest.mark.parametrize(
    ("status", "asked", "follows"),
    [
        (204, Asked.STREAM, Then.READ_JOB),
        (204, Asked.REQUEST, Then.USE),
        (201, Asked.SUBMIT, Then.USE),
        (202, Asked.REQUEST, Then.USE),
        (409, Asked.SUBMIT, Then.WAIT),
        (409, Asked.REQUEST, Then.FATAL),
        (409, Asked.STREAM, Then.FATAL),
        (400, Asked.SUBMIT, Then.FATAL),
        (400, Asked.REQUEST, Then.FATAL),
        (206, Asked.STREAM, Then.CUT),
    ],
)
def test_statuses_that_depend_on_what_was_asked_for(status, asked, follows):
    assert then(status, asked) is follows


def test_a_400_is_a_bad_cursor_only_where_there_was_one():
    assert then(400, Asked.STREAM, has_cursor=True) is Then.RESYNC
    assert then(400, Asked.STREAM, has_cursor=False) is Then.FATAL


@pytest.mark.parametrize(
    "value",
    ["text/event-stream", "Text/Event-Stream", "text/event-stream; charset=latin-1", " text/event-stream "],
)
def test_an_event_stream_is_known_by_its_media_type(value):
    assert is_event_stream(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "text/html",
        "application/json",
        "text/event-streams",
        "xtext/event-stream",
        "a; text/event-stream",
    ],
)
def test_nothing_else_is_an_event_stream(value):
    assert not is_event_stream(value)


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0.0), ("7", 7.0), ("120", 120.0), ("9" * 400, float("inf"))]
)
def test_retry_after_is_seconds(value, seconds):
    assert retry_after(value) == seconds


@pytest.mark.parametrize("value", [None, "", "-1", "1.5", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"])
def test_a_retry_after_that_is_no_number_of_seconds_is_none(value):
    assert retry_after(value) is None
