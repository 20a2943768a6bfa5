"""From a function's signature to the schemas of its input and its value, and from JSON to its arguments."""

import collections.abc
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema

from tidewire.protocol import strict_json
from tidewire.protocol.document.json_pointer import build
from tidewire.protocol.jsonable import rows_of
from tidewire_server.endpoints.context import Context
from tidewire_server.endpoints.input_errors import refused_input
from tidewire_server.errors import InvalidValueError
from tidewire_server.log_writer.item_writer import ItemWriter
from tidewire_server.log_writer.stream import Stream
from tidewire_server.log_writer.user_values import made_by, plain
from tidewire_server.log_writer.value_errors import named, said_of_value

_STREAMED = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
)
_ON_LOOP = _STREAMED[:3]
_RETURNED = (*_ON_LOOP, collections.abc.Iterator, collections.abc.Generator)
"""What a function that does not yield says that it returns something that does. An `Iterable` is a value: a list is one."""

_FIELD = "member_"
"""Before a parameter's name, so that a parameter may be called `json`, `copy` or `_x`; callers see the name itself."""


class _Schema(GenerateJsonSchema):
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the base class has it


@dataclass(frozen=True)
class InputShape:
    """What an endpoint takes."""

    model: type[BaseModel]
    whole: str | None
    """The parameter that is the input itself; None where the input's members are the parameters."""
    stream: str | None
    """The parameter that gets the `Stream`."""
    context: str | None
    """The parameter that gets the `Context`."""
    schema: dict[str, Any]
    defaults: bool
    """Whether an empty input is valid."""

    def read(self, value: JsonValue, pointer: str) -> BaseModel:
        """Validate one input.

        Args:
            value: The input as it came, shared members included.
            pointer: Where it stands in the request's body.

        Raises:
            ProblemError: It does not fit; names the member.
        """
        try:
            return self.model.model_validate_json(orjson.dumps(value), strict=True)
        except ValidationError as error:
            known = list(self.schema.get("properties", {}))
            raise refused_input(error, value, pointer, known) from None

    def as_given(self, value: BaseModel) -> Any:
        """One input as the endpoint's options (`columns`, `initial`, `validate`) get it: the model where the function
        takes one, else an object with the function's parameters.
        """
        return value if self.whole is not None else types.SimpleNamespace(**self._members(value))

    def arguments(self, value: BaseModel, writer: ItemWriter | None) -> dict[str, Any]:
        """The keyword arguments of one call."""
        arguments: dict[str, Any] = self._members(value) if self.whole is None else {self.whole: value}
        if self.stream is not None:
            arguments[self.stream] = None if writer is None else Stream(writer)
        if self.context is not None:
            arguments[self.context] = Context(writer)
        return arguments

    def batch_arguments(self, values: Sequence[BaseModel], context: Context) -> dict[str, Any]:
        """The keyword arguments of one call for many inputs: a list of them, or a list for each member."""
        arguments: dict[str, Any]
        if self.whole is not None:
            arguments = {self.whole: list(values)}
        else:
            arguments = {
                name: [getattr(value, field) for value in values] for name, field in self._fields.items()
            }
        if self.context is not None:
            arguments[self.context] = context
        return arguments

    def late_joiner(self, value: BaseModel) -> Any:
        """One input as a running batch gets it: the model; else its one member, or a tuple of them."""
        if self.whole is not None:
            return value
        members = tuple(self._members(value).values())
        return members[0] if len(members) == 1 else members

    @functools.cached_property
    def _fields(self) -> dict[str, str]:
        """The model's field for each parameter. Kept: pydantic looks a model's fields up anew each time."""
        return {(field.alias or name): name for name, field in self.model.model_fields.items()}

    def _members(self, value: BaseModel) -> dict[str, Any]:
        return {name: getattr(value, field) for name, field in self._fields.items()}


@dataclass(frozen=True)
class ValueShape:
    """What an endpoint gives."""

    adapter: TypeAdapter[Any]
    rows: TypeAdapter[list[Any]]
    """What makes JSON of values."""
    schema: dict[str, Any]
    is_any: bool
    """The function does not say of what type its value is."""
    is_text: bool
    empty: JsonValue
    """The value before the function has given one."""

    def to_json(self, value: Any) -> Any:
        """JSON's own Python types of a value.

        Raises:
            InvalidValueError: There is no JSON for it.
        """
        try:
            return plain(value) if self.is_any else made_by(self.rows, value)
        except (ValueError, TypeError):
            return plain(value)

    def check(self, value: JsonValue) -> None:
        """Refuse a value, given as JSON, that does not fit the schema.

        Raises:
            InvalidValueError: Says where and why.
        """
        try:
            encoded = orjson.dumps(value)
        except TypeError as error:
            _check_strictly(value)
            raise InvalidValueError(str(error)) from None
        try:
            self.adapter.validate_json(encoded, strict=True)
        except ValidationError as error:
            _check_strictly(value)  # NaN has become null on its way
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise InvalidValueError(f"{named(build(first['loc']))}: {first['msg']}") from None


def _check_strictly(value: JsonValue) -> None:
    try:
        strict_json.check(value)
    except strict_json.StrictJsonError as error:
        raise InvalidValueError(said_of_value(error)) from None


@dataclass(frozen=True)
class Signature:
    """What a function's signature says, before it is made into schemas."""

    members: dict[str, tuple[Any, Any]]
    """Annotation and default (`...` for none) of each parameter that is a member of the input."""
    stream: str | None
    streamed: Any
    """The `T` of the parameter's `Stream[T]`."""
    context: str | None
    returned: Any
    """The annotation of what is returned."""


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """Read a function's parameters and annotations.

    Raises:
        TypeError: A parameter cannot be a member of an input, or an annotation cannot be resolved.
    """
    try:
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except NameError as error:
        raise TypeError(
            f"endpoint {name!r}: an annotation cannot be resolved ({error}); define its type at module level"
        ) from None
    members: dict[str, tuple[Any, Any]] = {}
    given: dict[type, str] = {}
    streamed: Any = Any
    for parameter in inspect.signature(function).parameters.values():
        annotation = _given_by_us(hints.get(parameter.name, Any))
        kind = get_origin(annotation) or annotation
        if kind is Stream or kind is Context:
            if kind in given:
                what = "streams" if kind is Stream else "contexts"
                raise TypeError(
                    f"endpoint {name!r}: {given[kind]} and {parameter.name} are {what}, and there is one"
                )
            given[kind] = parameter.name
            if kind is Stream:
                streamed = (get_args(annotation) or (Any,))[0]
        elif parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            default = ... if parameter.default is parameter.empty else parameter.default
            members[parameter.name] = (annotation, default)
        else:
            raise TypeError(
                f"endpoint {name!r}: {parameter} cannot be a member of its input; give each member a name of its own"
            )
    return Signature(members, given.get(Stream), streamed, given.get(Context), hints.get("return", Any))


def _given_by_us(annotation: Any) -> Any:
    """What is within `Stream[T] | None` and `Context | None`: so a function can be called by itself, too."""
    if get_origin(annotation) not in {typing.Union, types.UnionType}:
        return annotation
    others = [each for each in get_args(annotation) if each is not types.NoneType]
    alone = others[0] if len(others) == 1 else None
    return alone if (get_origin(alone) or alone) in {Stream, Context} else annotation


def shapes_of(function: Callable[..., Any], name: str) -> tuple[InputShape, ValueShape]:
    """The shapes of a function that takes one input.

    Raises:
        TypeError: A parameter cannot be a member of an input, or an annotation cannot be a schema.
    """
    read = read_signature(function, name)
    given = read.streamed if read.stream is not None else _given(function, read.returned)
    return make_shapes(name, read, given, grows=read.stream is not None)


def make_shapes(name: str, read: Signature, given: Any, *, grows: bool) -> tuple[InputShape, ValueShape]:
    """Schemas of a signature's members, and of the type of one value.

    Raises:
        TypeError: An annotation has no JSON Schema.
    """
    try:
        return _input_shape(name, read.members, read.stream, read.context), _value_shape(given, grows=grows)
    except PydanticUserError as error:
        said = str(error).partition("\n")[0]
        if error.code == "schema-for-unknown-type":
            said = (
                f"{said.partition('. Set')[0]}; "
                "say what it is as JSON: an array or a tensor is list[float] or list[list[float]], "
                "an object a pydantic model or a dataclass"
            )
        raise TypeError(f"endpoint {name!r}: an annotation has no JSON Schema: {said}") from None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine or what an event loop drives."""
    body = _annotated(function)
    return inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) or _returns(body) in _ON_LOOP


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether it yields values, or returns what does."""
    body = _annotated(function)
    return (
        inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) or _returns(body) in _RETURNED
    )


def _returns(body: Callable[..., Any]) -> Any:
    """The kind of what a function says it returns."""
    try:
        returned = typing.get_type_hints(body).get("return")
    except Exception:  # noqa: BLE001 - whoever reads all annotations tells what is wrong with them
        return None
    return get_origin(returned) or returned


def called_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function within what has no name and no words of its own."""
    return called_first(function.func) if isinstance(function, functools.partial) else function


def names_in(function: Callable[..., Any]) -> set[str]:
    """The names that a function's own code uses: of attributes, of globals, and those in functions inside it."""
    pending = [getattr(_annotated(function), "__code__", None)]
    names: set[str] = set()
    while pending:
        code = pending.pop()
        if isinstance(code, types.CodeType):
            names.update(code.co_names)
            pending.extend(code.co_consts)
    return names


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """What carries the annotations: the function itself, or the `__call__` of an object."""
    if isinstance(function, types.FunctionType | types.MethodType):
        body: Callable[..., Any] = inspect.unwrap(function)
        return body
    if isinstance(function, functools.partial):
        return _annotated(function.func)
    call: Callable[..., Any] = inspect.unwrap(type(function).__call__)
    return call


def _given(function: Callable[..., Any], returned: Any) -> Any:
    if is_generator(function) and get_origin(returned) in _STREAMED:
        return get_args(returned)[0]
    return Any if is_generator(function) and returned in _STREAMED else returned


def _input_shape(
    name: str, parameters: Mapping[str, tuple[Any, Any]], stream: str | None, context: str | None
) -> InputShape:
    whole = None
    if len(parameters) == 1:
        ((only, (annotation, _)),) = parameters.items()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            whole = only
    if whole is not None:
        model = _refusing_unknown_members(parameters[whole][0])
    else:
        fields: dict[str, Any] = {
            _FIELD + key: (Annotated[annotation, Field(alias=key, title=key)], default)
            for key, (annotation, default) in parameters.items()
        }
        model = create_model(
            name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
    schema = model.model_json_schema(mode="validation", schema_generator=_Schema)
    defaults = not schema.get("required")
    return InputShape(model, whole, stream, context, schema, defaults)


def _refusing_unknown_members(model: type[BaseModel]) -> type[BaseModel]:
    """The model itself if it says what to do with unknown members, else one that refuses them: a misspelt member must
    not pass in silence.
    """
    if "extra" in model.model_config:
        return model
    members = {"model_config": ConfigDict(extra="forbid"), "__module__": model.__module__}
    return types.new_class(model.__name__, (model,), exec_body=lambda namespace: namespace.update(members))


def _value_shape(given: Any, *, grows: bool) -> ValueShape:
    adapter = TypeAdapter(given)
    schema = adapter.json_schema(mode="serialization", schema_generator=_Schema)
    is_text = schema.get("type") == "string" and not {"enum", "const", "format"} & set(schema)
    empty: JsonValue = None
    if is_text:
        empty = ""
    elif grows and schema.get("type") == "array":
        empty = []
    elif grows and schema.get("type") == "object" and not schema.get("required"):
        empty = {}
    return ValueShape(adapter, rows_of(given), schema, given is Any, is_text, empty)
