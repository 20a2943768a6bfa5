"""The address of a server, for tests that connect to it without an HTTP client."""


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a URL `http://host:port`."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)
