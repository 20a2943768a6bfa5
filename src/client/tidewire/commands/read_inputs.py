"""Parse the arguments of the commands: members in the form KEY=VALUE, JSON inputs, files with JSON lines, and headers."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidewire.protocol.strict_json import StrictJsonError, loads


def read_headers(given: list[str] | None) -> dict[str, str]:
    """Parse HTTP headers of the form NAME: VALUE."""
    headers = {}
    for header in given or []:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"--header {header!r} does not have the form NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


def read_words(words: list[str]) -> tuple[str | None, dict[str, Any]]:
    """Parse arguments that consist of an optional endpoint name and members of the form KEY=VALUE.

    A value that is valid JSON is parsed as JSON. Any other value is a string.
    """
    endpoint = words[0] if words and "=" not in words[0] else None
    members: dict[str, Any] = {}
    for word in words[0 if endpoint is None else 1 :]:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r} does not have the form KEY=VALUE")
        if key in members:
            raise ValueError(f"{key!r} was passed twice")
        try:
            members[key] = loads(text)
        except StrictJsonError:
            members[key] = text
    return endpoint, members


@contextmanager
def read_lines(source: str) -> Iterator[tuple[Iterator[Any], int | None]]:
    """Open a file with one JSON input per line, or standard input if the source is `-`.

    Yields an iterator over the inputs, and the number of inputs. For standard input, the number is not known, and is None.
    """
    if source == "-":
        yield _parse(sys.stdin, "standard input"), None
        return
    try:
        with Path(source).open("rb") as file:
            total = sum(1 for line in file if line.strip())
        with Path(source).open(encoding="utf-8") as lines:
            yield _parse(lines, source), total
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise ValueError(f"{source}: {error.strerror}") from None


def _parse(lines: Iterable[str], source: str) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield loads(line)
        except StrictJsonError as error:
            raise ValueError(f"{source}, line {number}: {error}") from None


def read_input(given: str) -> Any:
    """Parse the value of the option `--input`, which is a JSON text, @FILE, or - for standard input."""
    if given == "-":
        text = sys.stdin.read()
    elif given.startswith("@"):
        try:
            text = Path(given[1:]).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--input {given}: {error.strerror}") from None
    else:
        text = given
    try:
        return loads(text)
    except StrictJsonError as error:
        raise ValueError(f"--input: {error}") from None
