"""Parser of request bodies for the OpenAI surface (`read_request_body`).

The protocol allows no integer beyond ±2^53, because some JSON parsers lose digits of larger integers. Scripts for OpenAI's
API nevertheless send large integers as a seed and as bounds in a schema, for example the bounds of int64.
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
"""Matches strings, so that digits inside of them are skipped, and integers of at least 16 digits."""
MAX_LAX_BYTES: Final = 512 * 1024
"""Maximum size in bytes of a body that is searched for large integers. The search takes about as long as parsing a body of
the default `max_body_bytes`, so it does not block the event loop longer than other requests.
"""

_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_WITH_SCHEMA: Final = frozenset({"response_format", "text"})


def read_request_body(body: bytes, *, max_values: int) -> dict[str, Any]:
    """Parse a body like `read_json`, but accept a `seed` beyond ±2^53. A schema bound beyond ±2^53 is dropped, because
    generated text does not reach it. Any other integer beyond ±2^53 raises an `ApiError` that names the member. In a body
    above `MAX_LAX_BYTES`, every integer beyond ±2^53 is refused.
    """
    try:
        return read_json(body, max_values=max_values)
    except ProblemError as error:
        if error.problem.code != "malformed_body" or len(body) > MAX_LAX_BYTES:
            raise
        # Replace each large integer by a string with a random prefix, so that `read_json` still checks all other rules.
        mark = secrets.token_hex(16)
        marked = _INTEGERS.sub(lambda found: _marked(found[0], mark), body)
        if marked == body:
            raise
    return _unmarked(read_json(marked, max_values=max_values), mark, ())  # type: ignore[no-any-return]


def _marked(found: bytes, mark: str) -> bytes:
    wide = found[:1] != b'"' and abs(int(found)) > MAX_INTEGER
    return b'"%b%b"' % (mark.encode(), found) if wide else found


def _unmarked(value: Any, mark: str, path: tuple[str, ...]) -> Any:
    """Restore the marked integers in a parsed value, and drop schema bounds. `path` is the path of the value in the body."""
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
