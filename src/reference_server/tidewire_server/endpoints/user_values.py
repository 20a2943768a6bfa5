"""Converts the values that functions return, yield or write. The results consist of plain JSON types.

This module does not reject NaN and lone surrogates. The document rejects them later, with an error that names their
path.
"""

from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from tidewire.protocol.jsonable import converted, is_plain_dataclass, rows_of, rows_of_dataclass
from tidewire_server.endpoints.value_errors import said_of_part
from tidewire_server.errors import InvalidValueError

PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Immutable Python types that need no conversion to JSON."""

_MAX_MODELS: Final = 256
"""Number of models whose serializers are cached."""


def plain(value: Any) -> Any:
    """Convert a value to plain JSON types. The value may contain models, dataclasses, tuples, dates, and numpy or torch
    arrays.

    Raises:
        InvalidValueError: The value has no JSON form.
    """
    if type(value) in PLAIN:
        return value
    try:
        return _plain(value)
    except UnicodeEncodeError as error:
        reason = f"lone surrogate in the name {error.object!r}"
    except (PydanticSerializationError, ValueError) as error:
        reason = f"{error}{_BYTES if 'invalid utf-8' in str(error) else ''}"
    raise InvalidValueError(said_of_part(value, _plain, reason))


def _plain(value: Any) -> Any:
    if is_plain_dataclass(value):
        kind: Any = type(value)
        return converted(rows_of_dataclass(kind), value)
    return converted(_rows_of_kind(type(value) if isinstance(value, BaseModel) else Any), value)


_BYTES: Final = "; to send binary data as base64, annotate it with tidewire_server.Binary"

_rows_of_kind = lru_cache(_MAX_MODELS)(rows_of)
