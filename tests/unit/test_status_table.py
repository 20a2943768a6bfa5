"""Actions for HTTP statuses that the vectors `messages/answers` leave out, because only this client defines them."""

import pytest

from tidewire.following.http_status_actions import Action, RequestKind, action_for, retry_after


@pytest.mark.parametrize("kind", [RequestKind.REQUEST, RequestKind.SUBMIT])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_followed_also_outside_of_streams(status, kind):
    assert action_for(status, kind) is Action.REDIRECT


def test_partial_content_is_not_an_event_stream():
    assert action_for(206, RequestKind.STREAM) is Action.CUT


def test_retry_after_may_be_larger_than_any_float():
    assert retry_after("9" * 400) == float("inf")
