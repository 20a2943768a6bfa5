"""Checks of `tidewire conformance --profile sse` for any URL that streams server-sent events."""
