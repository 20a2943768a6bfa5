"""Read the arguments of the commands: members in the form KEY=VALUE, JSON inputs, JSON Lines files, and headers."""

import base64
import codecs
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidewire.http.url_and_token import bearer
from tidewire.inputs.input_words import member_schema, parse_word, takes_base64
from tidewire.protocol.strict_json import JsonValue, StrictJsonError, loads
from tidewire.sync import Client


def read_headers(given: list[str] | None, token_file: Path | None = None) -> dict[str, str]:
    """Parse HTTP headers of the form NAME: VALUE, and add a bearer token from a file.

    If the result contains no `Authorization` header, the client uses the token in the environment variable
    `TIDEWIRE_TOKEN`, if it is set.
    """
    headers = {}
    for header in given or []:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            # Do not show the argument, because it may contain a token.
            raise ValueError("the value of --header does not have the form NAME: VALUE")
        headers[name.strip()] = value.strip()
    has_credentials = any(name.lower() == "authorization" for name in headers)
    if token_file is not None and has_credentials:
        raise ValueError("--token-file and --header Authorization were both passed; use one of the two")
    if token_file is not None:
        headers |= bearer(f"--token-file {token_file}: the token", _read_token(token_file))
    return headers


def _read_token(path: Path) -> str:
    argument = f"--token-file {path}"
    token = _read_text(path, argument).strip()
    if "\n" in token:
        raise ValueError(f"{argument}: the file has more than one line; it must contain only your token")
    return token


def _read_text(path: Path, argument: str) -> str:
    try:
        return expanded(path).read_text(
            encoding="utf-8-sig"
        )  # some editors begin files with a byte order mark
    except OSError as error:
        raise ValueError(f"{argument}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{argument}: the file is not UTF-8") from None


def read_words(words: list[str]) -> dict[str, str]:
    """Parse arguments of the form KEY=VALUE into a dict. Each value is the unparsed text after the equals sign.

    Raises:
        ValueError: An argument has another form, or two arguments have the same key.
    """
    members: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r} does not have the form KEY=VALUE")
        if key in members:
            raise ValueError(f"{key!r} was passed twice")
        members[key] = text
    return members


def typed(client: Client, endpoint: str | None, members: dict[str, str]) -> dict[str, Any]:
    """Convert the values of KEY=VALUE arguments to the types in the endpoint's input schema. In KEY=@FILE, the value
    is the content of a file.
    """
    if not members:
        return {}
    schema = client.describe(endpoint).input_schema
    values = {}
    for name, text in members.items():
        try:
            values[name] = _typed(name, text, schema)
        except StrictJsonError as error:
            raise ValueError(f"{name}: {error}") from None
    return values


def _typed(name: str, text: str, schema: Any) -> JsonValue:
    of_member = member_schema(name, schema)
    if not text.startswith("@"):
        return parse_word(text, of_member, schema)
    is_base64 = takes_base64(of_member, schema)
    try:
        content = expanded(Path(text[1:])).read_bytes()
    except OSError as error:
        advice = "" if is_base64 else ". To send a text that begins with @, use --input"
        raise ValueError(f"{name}={text}: {error.strerror}{advice}") from None
    if is_base64:
        return base64.b64encode(content).decode()
    try:
        return parse_word(content.decode("utf-8-sig"), of_member, schema)
    except UnicodeDecodeError:
        raise ValueError(
            f"{name}={text}: the file is not UTF-8 text, and the endpoint's input schema does not say that {name!r} is "
            "base64. If the endpoint reads bytes in another way, pass them with --input"
        ) from None


def expanded(path: Path) -> Path:
    """Expand `~` at the start of a path. The shell expands it only at the start of an argument, and not in `@~/file`."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises an error for an unknown user


class InputLines:
    """Iterator over the inputs in a file with one JSON input per line. It ends at the first invalid line, so that the
    inputs before this line still run.

    Attributes:
        fault: Name of the file, number of the invalid line and reason. None if there was no invalid line.
    """

    def __init__(self, lines: Iterable[bytes], source: str) -> None:
        self.fault: str | None = None
        self._lines = lines
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        for number, line in enumerate(self._lines, 1):
            if not line.strip():
                continue
            try:
                # Some editors begin files with a byte order mark.
                value = loads(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
            except StrictJsonError as error:
                self.fault = f"{self._source}, line {number}: {error}"
                return
            yield value


@contextmanager
def read_lines(source: str) -> Iterator[tuple[InputLines, int | None]]:
    """Open a file with one JSON input per line, or standard input if the source is `-`.

    Yields the inputs, and their number. For standard input and other pipes, the number is not known, and is None.
    """
    if source == "-":
        yield InputLines(sys.stdin.buffer, "standard input"), None
        return
    try:
        with expanded(Path(source)).open("rb") as file:
            total = None
            if file.seekable():
                total = sum(1 for line in file if line.strip())
                file.seek(0)
            yield InputLines(file, source), total
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        name, equals, _ = source.partition("=")
        is_member = isinstance(error, FileNotFoundError) and equals and name.isidentifier()
        advice = f". To read standard input, write - before the members: - {source}" if is_member else ""
        raise ValueError(f"{source}: {error.strerror}{advice}") from None


def read_input(given: str) -> Any:
    """Parse the value of the option `--input`, which is a JSON text, @FILE, or - for standard input."""
    text: str | bytes
    if given == "-":
        text = sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8)
    elif given.startswith("@"):
        text = _read_text(Path(given[1:]), f"--input {given}")
    else:
        text = given
    try:
        return loads(text)
    except StrictJsonError as error:
        raise ValueError(f"--input: {error}") from None
