"""Action for each HTTP status, by kind of request."""

from itertools import product

import pytest

from support.tables import for_each_case
from tidewire.following.http_status_actions import (
    Action,
    RequestKind,
    action_for,
    is_event_stream,
    retry_after,
)

COMMON_ACTIONS = {
    200: Action.USE,
    401: Action.REFRESH,
    403: Action.REFRESH,
    404: Action.FATAL,
    405: Action.FATAL,
    410: Action.FATAL,
    413: Action.FATAL,
    422: Action.FATAL,
    418: Action.FATAL,
    429: Action.WAIT,
    503: Action.WAIT,
    500: Action.CUT,
    502: Action.CUT,
    504: Action.CUT,
    599: Action.CUT,
    301: Action.REDIRECT,
    302: Action.REDIRECT,
    303: Action.REDIRECT,
    307: Action.REDIRECT,
    308: Action.REDIRECT,
}


@for_each_case((kind, *row) for kind, row in product(RequestKind, COMMON_ACTIONS.items()))
def test_status_with_the_same_action_for_all_kinds_of_requests(kind, status, action):
    assert action_for(status, kind) is action


@pytest.mark.parametrize(
    ("status", "kind", "action"),
    [
        (204, RequestKind.STREAM, Action.READ_JOB),
        (204, RequestKind.REQUEST, Action.USE),
        (201, RequestKind.SUBMIT, Action.USE),
        (202, RequestKind.REQUEST, Action.USE),
        (409, RequestKind.SUBMIT, Action.WAIT),
        (409, RequestKind.REQUEST, Action.FATAL),
        (409, RequestKind.STREAM, Action.FATAL),
        (400, RequestKind.SUBMIT, Action.FATAL),
        (400, RequestKind.REQUEST, Action.FATAL),
        (206, RequestKind.STREAM, Action.CUT),
    ],
)
def test_status_whose_action_depends_on_the_kind_of_request(status, kind, action):
    assert action_for(status, kind) is action


def test_400_means_an_invalid_cursor_only_if_a_cursor_was_sent():
    assert action_for(400, RequestKind.STREAM, has_cursor=True) is Action.RESYNC
    assert action_for(400, RequestKind.STREAM, has_cursor=False) is Action.FATAL


@pytest.mark.parametrize(
    "value",
    ["text/event-stream", "Text/Event-Stream", "text/event-stream; charset=latin-1", " text/event-stream "],
)
def test_event_stream_is_recognized_by_its_media_type(value):
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
def test_other_media_types_are_not_event_streams(value):
    assert not is_event_stream(value)


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0.0), ("7", 7.0), ("120", 120.0), ("9" * 400, float("inf"))]
)
def test_retry_after_is_parsed_as_seconds(value, seconds):
    assert retry_after(value) == seconds


@pytest.mark.parametrize("value", [None, "", "-1", "1.5", "soon", "Wed, 21 Oct 2026 07:28:00 GMT", "٣"])
def test_invalid_retry_after_is_ignored(value):
    assert retry_after(value) is None
