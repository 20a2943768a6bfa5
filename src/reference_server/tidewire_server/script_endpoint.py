"""`tidewire.script`, the endpoint whose input is its behaviour.

Whoever tests a client, or a server from outside, needs a stream that truncates, fails, pauses or grows at a known
place. The steps and their bounds are those of the specification (`spec/README.md`), so that any server may offer it.
"""

import asyncio
from typing import Annotated, Any, Final, Literal, assert_never

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag

from tidewire.protocol.document.json_pointer import parse
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH, admit
from tidewire.protocol.problems import REGISTRY
from tidewire_server.endpoints.endpoint import Default
from tidewire_server.errors import ItemError
from tidewire_server.log_writer.stream import Stream, writer_of
from tidewire_server.server import Server

NAME: Final = "tidewire.script"

MAX_STEPS: Final = 1000
"""Steps of one script."""
MAX_SLEEP_MS: Final = 600_000
"""Milliseconds that one script sleeps, all its steps together."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""What the `bytes` of one script sum up to: more than `max_state_bytes` by default, so that it can be passed."""
MAX_COLUMNS: Final = 16
MAX_NUMBERS: Final = 64
"""Members of one `usage`."""

CONCURRENCY: Final = 8
"""Scripts that run at a time: they do not wait for one another's sleep, and a few more make a queue."""

_DIGITS: Final = "0123456789"


def _pointer(text: str) -> str:
    parse(text)
    return text


def _value(value: JsonValue) -> JsonValue:
    admit(value, MAX_VALUE_DEPTH)
    return value


def _code(code: str) -> str:
    if code not in REGISTRY and not set(":.") & set(code):
        raise ValueError("a code of the registry, a name that holds a dot, or an absolute URI")
    return code


Pointer = Annotated[str, AfterValidator(_pointer)]
Value = Annotated[JsonValue, AfterValidator(_value)]


class _Described(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class AppendStep(_Described):
    """Appends to a text, or elements to an array."""

    append: str | list[Value]
    at: Pointer | None = None
    """JSON Pointer within the value; without it the one column grows, else the value itself."""


class Truncate(_Described):
    """Takes back the last code points of a text, or the last elements of an array."""

    truncate: int = Field(ge=0)
    at: Pointer | None = None
    """JSON Pointer within the value; without it as in `append`."""


class Set(_Described):
    """Sets one place, whose parent exists."""

    set: tuple[Pointer, Value]
    """A JSON Pointer within the value, and what stands there from now on."""


class Row(_Described):
    """Grows each column by one: a text by a string, an array by one element."""

    row: list[Value] = Field(max_length=MAX_COLUMNS)


class Emit(_Described):
    """Gives a whole value: the server finds what has changed."""

    emit: Value


class Bytes(_Described):
    """Appends a text of so many ASCII characters, `01234567890123…`."""

    bytes: int = Field(ge=0, le=MAX_BYTES)
    at: Pointer | None = None
    """JSON Pointer within the value; without it as in `append`."""


class Sleep(_Described):
    """Does nothing for a while."""

    sleep_ms: int = Field(ge=0, le=MAX_SLEEP_MS)


class Amount(_Described):
    """How far a script says that it is."""

    current: int | float
    total: int | float | None = None
    unit: str | None = None
    phase: str | None = None


class Progress(_Described):
    """Tells readers how far it is; nothing of it is logged."""

    progress: Amount


class Note(_Described):
    """Leaves a note in the state of the job."""

    note: str
    level: Literal["info", "warning", "error"] = "info"


class Usage(_Described):
    """Reports what was used; the usage of the job is the sum over its items."""

    usage: dict[str, int | float] = Field(max_length=MAX_NUMBERS)


class Fail(_Described):
    """Fails the item, and nothing after it is done."""

    fail: str
    """The `detail` of the item's error."""
    code: Annotated[str, AfterValidator(_code)] = "internal"
    """Of the registry, a name that holds a dot, or an absolute URI."""


_NAMES: Final = (
    "append", "truncate", "set", "row", "emit", "bytes", "sleep_ms", "progress", "note", "usage", "fail",
)  # fmt: skip


def _tag(name: str) -> Tag:
    # Not the member's bare name: in the location of an error a tag must not pass for a member.
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
    custom_error_message=f"a step is an object with one of {', '.join(_NAMES)}",
)


def _bounded(steps: list[Step]) -> list[Step]:
    sleeps = sum(step.sleep_ms for step in steps if isinstance(step, Sleep))
    if sleeps > MAX_SLEEP_MS:
        raise ValueError(f"its steps sleep {sleeps} ms, at most {MAX_SLEEP_MS}")
    size = sum(step.bytes for step in steps if isinstance(step, Bytes))
    if size > MAX_BYTES:
        raise ValueError(f"its steps make {size} bytes, at most {MAX_BYTES}")
    return steps


class Script(_Described):
    """What the endpoint shall do."""

    script: Annotated[list[Annotated[Step, _BY_NAME]], Field(max_length=MAX_STEPS), AfterValidator(_bounded)]
    """Taken one after the other; then the item succeeds."""
    initial: Value = ""
    """The value before the first step."""
    columns: Annotated[list[Pointer], Field(max_length=MAX_COLUMNS)] | None = None
    """JSON Pointers within the value, of the places that grow. Without it: the value, if `initial` is a text."""


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
    """Give a server the endpoint `tidewire.script`.

    Args:
        server: Without an endpoint of this name.
        concurrency_limit: Scripts that run at a time; None for any number.

    Raises:
        ValueError: The server has one already.
    """

    @server.endpoint(
        name=NAME,
        concurrency_limit=concurrency_limit,
        columns=_columns,
        initial=_initial,
        capabilities={"rollback": True},
        examples=EXAMPLES,
    )
    async def play(script: Script, stream: Stream[JsonValue]) -> None:
        """Does what its input says, step by step.

        For tests of clients, and of servers from outside: a stream that grows, truncates, pauses or fails where the
        caller says so.
        """
        for index, step in enumerate(script.script):
            try:
                await _take(step, stream)
            except ValueError as error:
                raise ItemError(f"/script/{index}: {error}", code="invalid_input") from error


def _initial(script: Script) -> JsonValue:
    return script.initial


def _columns(script: Script) -> list[str]:
    if script.columns is not None:
        return script.columns
    return [""] if isinstance(script.initial, str) else []


async def _take(step: Step, stream: Stream[JsonValue]) -> None:
    """Take one step, and give way to whatever else runs.

    Raises:
        ItemError: The step says so.
        ValueError: It does not fit the value.
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
