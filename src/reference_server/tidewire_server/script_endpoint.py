"""Endpoint `tidewire.script`, which executes the steps in its input, for tests.

Tests of clients and black-box tests of servers need a stream that grows, is truncated, pauses or fails at a known
point. The specification defines the steps and their limits (`spec/README.md`), so that any server can offer this
endpoint.
"""

import asyncio
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag

from tidewire.protocol.document.json_pointer import parse
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH, admit
from tidewire.protocol.problems import REGISTRY
from tidewire_server.endpoints.endpoint import Default
from tidewire_server.endpoints.stream import Stream, writer_of
from tidewire_server.errors import ItemError
from tidewire_server.server import Server

NAME: Final = "tidewire.script"

MAX_STEPS: Final = 1000
"""Maximum number of steps in a script."""
MAX_SLEEP_MS: Final = 600_000
"""Maximum sum of all `sleep_ms` in a script."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum sum of all `bytes` in a script.

It is greater than the default of `max_state_bytes`, so that a script can test that limit.
"""
MAX_COLUMNS: Final = 16
MAX_NUMBERS: Final = 64
"""Maximum number of members in one `usage` step."""

CONCURRENCY: Final = 12
"""Default number of scripts that run concurrently.

The number is small, so that tests need only a few more scripts to fill the queue.
"""

_DIGITS: Final = "0123456789"


def _pointer(text: str) -> str:
    parse(text)
    return text


def _value(value: JsonValue) -> JsonValue:
    admit(value, MAX_VALUE_DEPTH)
    return value


def _code(code: str) -> str:
    if code not in REGISTRY and not set(":.") & set(code):
        raise ValueError("must be a registered code, a name that contains a dot, or an absolute URI")
    return code


Pointer = Annotated[str, AfterValidator(_pointer)]
Value = Annotated[JsonValue, AfterValidator(_value)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class AppendStep(_Described):
    """Append characters to a text, or elements to an array."""

    append: str | list[Value]
    at: Pointer | None = None
    """JSON Pointer to the text or array to change.

    The default is the only column, or the whole value if there are no columns.
    """


class Truncate(_Described):
    """Remove the last code points of a text, or the last elements of an array."""

    truncate: int = Field(ge=0)
    at: Pointer | None = None
    """JSON Pointer within the value. The default is the same as in an `append` step."""


class Set(_Described):
    """Set the value at a JSON Pointer. The parent of this location must exist."""

    set: tuple[Pointer, Value]
    """JSON Pointer within the value, and the new value at that location."""


class Row(_Described):
    """Append to all columns of the endpoint at once: a string to each text, and one element to each array."""

    row: list[Value] = Field(max_length=MAX_COLUMNS)


class Emit(_Described):
    """Replace the whole value. The server computes the diff."""

    emit: Value


class Bytes(_Described):
    """Append the first `bytes` characters of the ASCII text `01234567890123…`."""

    bytes: int = Field(ge=0, le=MAX_BYTES)
    at: Pointer | None = None
    """JSON Pointer within the value. The default is the same as in an `append` step."""


class Sleep(_Described):
    """Sleep for a number of milliseconds."""

    sleep_ms: int = Field(ge=0, le=MAX_SLEEP_MS)


class Amount(_Described):
    """Values that a `progress` step reports."""

    current: int | float
    total: int | float | None = None
    unit: str | None = None
    phase: str | None = None


class Progress(_Described):
    """Report progress to connected readers. Progress is not logged."""

    progress: Amount


class Note(_Described):
    """Add a note to the job's state."""

    note: str
    level: Literal["info", "warning", "error"] = "info"


class Usage(_Described):
    """Report usage. The usage of a job is the sum of the usage of its items."""

    usage: dict[str, int | float] = Field(max_length=MAX_NUMBERS)


class Fail(_Described):
    """Fail the item. The remaining steps are not executed."""

    fail: str
    """Text for the member `detail` of the item's error."""
    code: Annotated[str, AfterValidator(_code)] = "internal"
    """Registered error code, a name that contains a dot, or an absolute URI."""


_NAMES: Final = (
    "append", "truncate", "set", "row", "emit", "bytes", "sleep_ms", "progress", "note", "usage", "fail",
)  # fmt: skip


def _tag(name: str) -> Tag:
    # The tags have this prefix so that a tag in the location of a validation error cannot be mistaken for the name of a
    # member.
    return Tag(f"step {name}")


def _kind(step: Any) -> str | None:
    if not isinstance(step, dict):
        return None
    return next((f"step {name}" for name in _NAMES if name in step), None)


Step = (
    Annotated[AppendStep, _tag("append")]
    | Annotated[Truncate, _tag("truncate")]
    | Annotated[Set, _tag("set")]
    | Annotated[Row, _tag("row")]
    | Annotated[Emit, _tag("emit")]
    | Annotated[Bytes, _tag("bytes")]
    | Annotated[Sleep, _tag("sleep_ms")]
    | Annotated[Progress, _tag("progress")]
    | Annotated[Note, _tag("note")]
    | Annotated[Usage, _tag("usage")]
    | Annotated[Fail, _tag("fail")]
)

_BY_NAME: Final = Discriminator(
    _kind,
    custom_error_type="step",
    custom_error_message=f"a step must be an object with one of the members {', '.join(_NAMES)}",
)


def _bounded(steps: list[Step]) -> list[Step]:
    sleeps = sum(step.sleep_ms for step in steps if isinstance(step, Sleep))
    if sleeps > MAX_SLEEP_MS:
        raise ValueError(f"the steps sleep {sleeps} ms in total, but the limit is {MAX_SLEEP_MS}")
    size = sum(step.bytes for step in steps if isinstance(step, Bytes))
    if size > MAX_BYTES:
        raise ValueError(f"the steps append {size} bytes in total, but the limit is {MAX_BYTES}")
    return steps


class Script(_Described):
    """Input of the endpoint, which contains the steps to execute and the initial value."""

    script: Annotated[list[Annotated[Step, _BY_NAME]], Field(max_length=MAX_STEPS), AfterValidator(_bounded)]
    """Steps to execute in this order. After the last step, the item succeeds."""
    initial: Value = ""
    """Value before the first step."""
    columns: Annotated[list[Pointer], Field(max_length=MAX_COLUMNS)] | None = None
    """JSON Pointers to the columns in the value. By default, the value itself is a column if `initial` is a text."""


EXAMPLES: Final[list[JsonValue]] = [
    {"script": [{"append": "Hel"}, {"sleep_ms": 50}, {"append": "lo"}]},
    {"script": [{"append": "Helped"}, {"sleep_ms": 50}, {"emit": "Hello"}]},
    {
        "initial": {"text": "", "token_ids": []},
        "columns": ["/text", "/token_ids"],
        "script": [{"row": ["Hel", 15]}, {"row": ["lo", 16]}, {"usage": {"tokens": 2}}],
    },
    {"script": [{"append": "so far"}, {"fail": "no further", "code": "input_too_long"}]},
]


def add_script(server: Server, *, concurrency_limit: int | Default | None = CONCURRENCY) -> None:
    """Register the endpoint `tidewire.script` on a server.

    Args:
        server: Server to register the endpoint on.
        concurrency_limit: Maximum number of scripts that run concurrently, or None for no limit.

    Raises:
        ValueError: The server already has an endpoint with this name.
    """

    @server.endpoint(
        name=NAME,
        concurrency_limit=concurrency_limit,
        columns=_columns,
        initial=attrgetter("initial"),
        capabilities={"rollback": True},
        examples=EXAMPLES,
    )
    async def play(script: Script, stream: Stream[JsonValue]) -> None:
        """Execute the steps in the input.

        Tests of clients and black-box tests of servers use this endpoint, because they need a stream that grows, is
        truncated, pauses or fails at a known point.
        """
        await asyncio.sleep(
            0
        )  # All items of a batch start before the first step, so that the order of events is known.
        for index, step in enumerate(script.script):
            try:
                await _execute(step, stream)
            except ValueError as error:
                raise ItemError(f"/script/{index}: {error}", code="invalid_input") from error


def _columns(script: Script) -> list[str]:
    if script.columns is not None:
        return script.columns
    return [""] if isinstance(script.initial, str) else []


async def _execute(step: Step, stream: Stream[JsonValue]) -> None:
    """Execute one step, and then yield to the event loop.

    Raises:
        ItemError: The step is a `fail`.
        ValueError: The step cannot be applied to the current value.
    """
    pause = 0.0
    match step:
        case AppendStep():
            stream.append(step.append, at=step.at)
        case Truncate():
            stream.truncate(step.truncate, at=step.at)
        case Set():
            stream.set(*step.set)
        case Row():
            stream.row(*step.row)
        case Emit():
            writer_of(stream).replace(step.emit)
        case Bytes():
            stream.append((_DIGITS * (step.bytes // len(_DIGITS) + 1))[: step.bytes], at=step.at)
        case Sleep():
            pause = step.sleep_ms / 1000
        case Progress(progress=amount):
            stream.progress(amount.current, amount.total, unit=amount.unit, phase=amount.phase)
        case Note():
            stream.note(step.note, step.level)
        case Usage():
            stream.usage(**step.usage)
        case Fail():
            raise ItemError(step.fail, code=step.code)
        case _:
            assert_never(step)
    await asyncio.sleep(pause)
