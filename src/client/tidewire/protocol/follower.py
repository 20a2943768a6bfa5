"""Former import path of `tidewire.following.follower`."""

from tidewire.following.follower import (
    Applied,
    Cause,
    Fatal,
    FatalKind,
    Follower,
    Ignored,
    Notice,
    Outcome,
    Reconnect,
)

__all__ = ["Applied", "Cause", "Fatal", "FatalKind", "Follower", "Ignored", "Notice", "Outcome", "Reconnect"]
