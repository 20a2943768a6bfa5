"""Server side of the profile `sse`: checks of any URL that streams events."""
