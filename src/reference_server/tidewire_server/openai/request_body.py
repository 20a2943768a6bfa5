"""Parser of the bodies of the OpenAI surface (`read_request_body`).

The protocol allows no integer beyond ±2^53, because not every JSON parser keeps its digits. Scripts for OpenAI's API send such
integers as a seed, and as bounds in a schema, for example those of int64.
"""

import re
import secrets
from typing import Any, Final

from tidewire.protocol.strict_json import MAX_INTEGER
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.admission.submit_body import read_json
from tidewire_server.openai.api_errors import invalid
from tidewire_server.openai.request_members import MAX_SHOWN

# The quantifiers are possessive, because backtracking would need memory for each character of a long text.
_INTEGERS: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![-+.0-9eE])-?[1-9][0-9]{15,39}+(?![.0-9eE])', re.DOTALL
)
"""Strings, and integers with many digits."""
MAX_LAX_BYTES: Final = 512 * 1024
"""Maximum size of a body that is searched for such integers, in bytes. The search takes about as long as parsing a body of the
default `max_body_bytes`, so it does not block the event loop longer than other requests.
"""

_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_WITH_SCHEMA: Final = frozenset({"response_format", "text"})


def read_request_body(body: bytes, *, max_values: int) -> dict[str, Any]:
    """Parse a body as `read_json` does, but accept a `seed` beyond ±2^53, and drop bounds beyond ±2^53 in a schema, because generated
    text does not reach them. Raise an `ApiError` that names any other such integer. In a body above `MAX_LAX_BYTES`, all of them
    are refused.
    """
    try:
        return read_json(body, max_values=max_values)
    except ProblemError as error:
        if error.problem.code != "malformed_body" or len(body) > MAX_LAX_BYTES:
            raise
        # Replace each integer by a string with a random mark, so that `read_json` still checks all other rules.
        mark = secrets.token_hex(16)
        marked = _INTEGERS.sub(lambda found: _marked(found[0], mark), body)
        if marked == body:
            raise
    return _unmarked(read_json(marked, max_values=max_values), mark, ())  # type: ignore[no-any-return]


def _marked(found: bytes, mark: str) -> bytes:
    wide = found[:1] != b'"' and abs(int(found)) > MAX_INTEGER
    return b'"%b%b"' % (mark.encode(), found) if wide else found


def _unmarked(value: Any, mark: str, path: tuple[str, ...]) -> Any:
    """Return a parsed value with its integers restored, and without the bounds to drop. `path` leads to the value."""
    if isinstance(value, dict):
        return {
            name: _unmarked(each, mark, (*path, name))
            for name, each in value.items()
            if not (name in _BOUNDS and path[:1] and path[0] in _WITH_SCHEMA and _is_marked(each, mark))
        }
    if isinstance(value, list):
        return [_unmarked(each, mark, (*path, str(at))) for at, each in enumerate(value)]
    if not _is_marked(value, mark):
        return value
    number = int(value.removeprefix(mark))
    if path != ("seed",) or number < 0:
        raise invalid(".".join(path)[:MAX_SHOWN], "must not be an integer beyond ±2^53")
    return number


def _is_marked(value: Any, mark: str) -> bool:
    return isinstance(value, str) and value.startswith(mark)
