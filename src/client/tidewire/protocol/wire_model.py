"""Base class and field types of the models for events and HTTP bodies.

- Models ignore unknown members, so that a minor version of the protocol can add members.
- Numbers and booleans are strict: `"3"`, `true` and `3.0` are not valid integers.
- An optional member may be null, which means the same as omitting it.

The models are msgspec structs, because every program that uses the client has to wait for them before its first
response. Importing msgspec and creating all models takes about 5 ms. With pydantic it took 60 ms, a quarter of the CPU
time up to the first response (`bench/start.py`). The client imports pydantic only for values of the caller's own types:
`returns=…`, and inputs that are not plain JSON. The methods have the names that they have in pydantic, which programs
already use, but not all of pydantic's arguments.
"""

import contextlib
import json
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args, get_origin

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
# The bounds exclude NaN and infinities, which are not JSON.
Number = int | Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class MessageError(ValueError):
    """An event or a body violates its schema. The error message names the invalid member and the error.

    Attributes:
        pointer: JSON Pointer to the invalid member, if it is known. Empty for the whole value.
        reason: What is wrong with this member.
    """

    def __init__(self, message: str, *, pointer: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer
        self.reason: str = reason or message


class WireModel(msgspec.Struct, frozen=True):
    """Base class for the JSON objects of the protocol. Models are immutable and ignore unknown members, and a member
    that is null counts as absent.

    The constructor does not validate its arguments. `model_validate` does.
    """

    @classmethod
    def model_validate(cls, members: Any) -> Self:
        """Create a model from JSON, such as a parsed HTTP body.

        Raises:
            MessageError: The value does not match the model.
        """
        try:
            return msgspec.convert(_prepared(cls, members), cls)
        except msgspec.ValidationError as error:
            raise _message_error(error, cls, members) from None

    def model_dump(self, *, exclude_none: bool = False, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Convert the model to a JSON object, with the names that its members have in JSON. The object shares no
        containers with the model.

        Args:
            exclude_none: Whether to leave out the members of models that are None. Plain JSON within the members is
                not changed.
            exclude: Names of members of this object to leave out.
        """
        copied: dict[str, Any] = msgspec.to_builtins(
            members_of(self, exclude_none=exclude_none, exclude=exclude)
        )
        return copied

    def model_dump_json(self, *, exclude_none: bool = False) -> str:
        """Serialize the model as compact JSON text. The argument is that of `model_dump`."""
        return msgspec.json.encode(members_of(self, exclude_none=exclude_none)).decode()

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """Return a copy of the model with the values of some members replaced. The new values are not validated."""
        return msgspec.structs.replace(self, **(update or {}))


def members_of(
    model: WireModel, *, exclude_none: bool = False, exclude: Collection[str] = ()
) -> dict[str, Any]:
    """Convert a model as `model_dump` does, but without copying the plain JSON within its members."""
    made: dict[str, Any] = {}
    for name, member, is_plain in _table(type(model)).members:
        value = getattr(model, member)
        if (exclude_none and value is None) or name in exclude:
            continue
        if is_plain:
            made[name] = value
        elif member == EXTRA:
            made |= {key: each for key, each in value.items() if not exclude_none or each is not None}
        elif isinstance(value, WireModel):
            made[name] = members_of(value, exclude_none=exclude_none)
        elif type(value) is list and value and isinstance(value[0], WireModel):
            made[name] = [members_of(each, exclude_none=exclude_none) for each in value]
        else:
            made[name] = value
    return made


EXTRA: Final = "model_extra"
"""Name of the attribute with the unknown members, in a model that keeps them."""


class _Table(NamedTuple):
    """Facts about the members of a model, which `_prepared` and `members_of` use.

    Attributes:
        members: Name in JSON and attribute of each member, and whether it never contains another model.
        known: Names of all members in JSON.
        optional: Names of the members with a default.
        nested: Names of the members that contain another model or a list of another model, with that model.
        keeps_unknown: Whether the model has the attribute `EXTRA`.
    """

    members: tuple[tuple[str, str, bool], ...]
    known: frozenset[str]
    optional: frozenset[str]
    nested: tuple[tuple[str, type[WireModel]], ...]
    keeps_unknown: bool


@cache
def _table(model: type[WireModel]) -> _Table:
    every = msgspec.structs.fields(model)
    fields = [field for field in every if field.name != EXTRA]
    return _Table(
        tuple(
            (field.encode_name, field.name, field.name != EXTRA and not _models_in(field.type))
            for field in every
        ),
        frozenset(field.encode_name for field in fields),
        frozenset(field.encode_name for field in fields if not field.required),
        tuple((field.encode_name, inner) for field in fields for inner in _models_in(field.type)),
        EXTRA in model.__struct_fields__,
    )


def build_models(module: Mapping[str, Any]) -> None:
    """Make msgspec build the validators of all models in a module, which takes about 1 ms for all modules together.

    Each module with models calls this function at its end. msgspec would otherwise build a validator on first use, and
    two threads that use a model first at the same time would crash the interpreter.
    """
    for model in module.values():
        if isinstance(model, type) and issubclass(model, WireModel):
            with contextlib.suppress(msgspec.ValidationError):
                msgspec.convert({}, model)


def _models_in(annotation: Any) -> list[type[WireModel]]:
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def _prepared(model: type[WireModel], members: Any) -> Any:
    """Prepare a JSON object for msgspec: remove optional members that are null, and if the model keeps unknown members,
    move them into one member. The argument is not changed. A value that is not an object is returned as it is.
    """
    if type(members) is not dict:
        return members
    table = _table(model)
    if None in members.values():
        members = {
            name: value for name, value in members.items() if value is not None or name not in table.optional
        }
    if table.keeps_unknown:
        unknown = {name: value for name, value in members.items() if name not in table.known}
        members = {name: value for name, value in members.items() if name in table.known}
        members[EXTRA] = unknown
    for name, inner in table.nested:
        value = members.get(name)
        if type(value) is dict:
            members = members | {name: _prepared(inner, value)}
        elif type(value) is list:
            members = members | {name: [_prepared(inner, each) for each in value]}
    return members


# ---- error messages ------------------------------------------------------------------------------------------------

_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_GOT: Final = re.compile(r", got `\w+`$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")


def _message_error(error: msgspec.ValidationError, model: type[WireModel], members: Any) -> MessageError:
    """Convert an error of msgspec to an error with the JSON Pointer to the invalid member and its value."""
    found = _PLACE.fullmatch(str(error))
    what, path = (str(error), "") if found is None else (found["what"], found["path"] or "")
    annotation: Any = model
    place, value, is_known = "", members, True
    for name, index in _STEP.findall(path):
        place = f"{place}/{name or index}"
        if name:
            annotation = _annotation_of(annotation, name)
        try:
            value = value[name or int(index)]
        except (LookupError, TypeError, ValueError):
            is_known = False
    if missing := _MISSING.fullmatch(what):
        place, reason = f"{place}/{missing[1]}", "this member is required"
    elif what.startswith("Invalid enum value"):
        words = [repr(word) for word in _words_in(annotation)]
        allowed = " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
        reason = f"expected {allowed}; received {shown(value)}"
    else:
        reason = f"expected {what.removeprefix('Expected ')}"
        if is_known:
            reason = f"{_GOT.sub('', reason)}; received {shown(value)}"
    return MessageError(f"{place or 'the whole value'}: {reason}", pointer=place, reason=reason)


def _annotation_of(annotation: Any, name: str) -> Any:
    """Return the annotation of the member `name` in the model that an annotation contains."""
    for model in _models_in(annotation):
        for field in msgspec.structs.fields(model):
            if field.encode_name == name:
                return field.type
    return Any


def _words_in(annotation: Any) -> list[str]:
    """Return the strings that an annotation with a `Literal` allows."""
    if get_origin(annotation) is Literal:
        return [*get_args(annotation)]
    return [word for each in get_args(annotation) for word in _words_in(each)]


_MAX_SHOWN: Final = 60
"""Maximum length of a value in an error message, in characters."""


def shown(value: Any) -> str:
    """Return a short form of a value for an error message. The cost does not depend on the size of a JSON value. Values
    of other types, which only pydantic reports, are converted by `repr` as a whole.
    """
    if isinstance(value, dict):
        return "an object" if value else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"a list of length {len(value)}" if value else "[]"
    if isinstance(value, str):
        text = json.dumps(value[:_MAX_SHOWN], ensure_ascii=False)
        return text if len(value) <= _MAX_SHOWN else f"{text[:-1]}…"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return f"{value!r:.{_MAX_SHOWN}}"
