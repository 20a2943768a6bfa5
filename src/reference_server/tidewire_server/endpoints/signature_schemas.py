"""Schemas of an endpoint's input and value, derived from the signature of the endpoint's function.

`InputShape` and `ValueShape` contain these schemas. They validate JSON, and convert between JSON and Python objects.
"""

import collections.abc
import copy
import functools
import inspect
import logging
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, get_args, get_origin

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    EncodedBytes,
    EncodedStr,
    Field,
    JsonValue,
    PydanticUserError,
    RootModel,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, SchemaValidator

from tidewire.protocol import strict_json
from tidewire.protocol.document.json_pointer import build
from tidewire.protocol.jsonable import converted, message_of, rows_of
from tidewire_server.endpoints.context import Context
from tidewire_server.endpoints.input_errors import refused_input
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.stream import Stream
from tidewire_server.endpoints.user_values import plain, serialized_form_validator
from tidewire_server.endpoints.value_errors import named, said_of_value
from tidewire_server.endpoints.yieldables import contains_append, value_type
from tidewire_server.errors import InvalidValueError

STREAMED = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
)
_ON_LOOP = STREAMED[:3]
_RETURNED = (*_ON_LOOP, collections.abc.Iterator, collections.abc.Generator)
"""Return types that mark a function without `yield` as a generator. `Iterable` is not in this list, because it may also be
the annotation of a function that returns a list."""

_FIELD = "member_"
"""Prefix of the field names in the pydantic models of inputs. Without the prefix, parameters named `json`, `copy` or `_x`
would conflict with names of pydantic. The members of the JSON input have the names of the parameters."""


class _Schema(GenerateJsonSchema):
    """Generator of JSON Schemas that are valid I-JSON. Clients reject an endpoint description that is not valid I-JSON.

    A bound beyond ±2^53 is written with an exponent, and a default that is not I-JSON is left out.
    """

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as the base class has it

    def update_with_validations(
        self, json_schema: dict[str, Any], core_schema: Any, mapping: dict[str, str]
    ) -> None:
        super().update_with_validations(json_schema, core_schema, mapping)
        for name in mapping.values():
            bound = json_schema.get(name)
            if type(bound) is int and abs(bound) > strict_json.MAX_INTEGER:
                json_schema[name] = float(bound)

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        try:
            strict_json.check(encoded)
        except strict_json.StrictJsonError as error:
            raise PydanticSerializationError(str(error)) from None
        return encoded


@dataclass(frozen=True)
class InputShape:
    """Input schema of an endpoint. It validates inputs, and converts them to arguments of the endpoint's function."""

    model: type[BaseModel]
    """Model that validates the inputs."""
    made: type[BaseModel]
    """Class of the validated inputs. If the function takes a pydantic model, this is the user's class, otherwise `model`."""
    whole: str | None
    """Name of the parameter that receives the whole input. None if each member of the input has a separate parameter."""
    stream: str | None
    """Name of the parameter that receives the `Stream`. None if there is no such parameter."""
    context: str | None
    """Name of the parameter that receives the `Context`. None if there is no such parameter."""
    schema: dict[str, Any]
    defaults: bool
    """Whether an empty input is valid."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Error messages for members that similar endpoints accept, but this endpoint does not."""

    def read(self, value: JsonValue, pointer: str) -> BaseModel:
        """Validate one input.

        Args:
            value: The input, including the members that all inputs of the request share.
            pointer: JSON Pointer of the input in the request's body.

        Raises:
            ProblemError: The input does not match the schema. The message names the invalid member.
        """
        try:
            found = self.model.model_validate_json(orjson.dumps(value), strict=True)
        except ValidationError as error:
            known = list(self.schema.get("properties", {}))
            raise refused_input(error, value, pointer, known, self.unsupported) from None
        object.__setattr__(found, "__class__", self.made)  # a model may be frozen
        return found

    def as_given(self, value: BaseModel) -> Any:
        """Convert an input to the argument that is passed to functions in the endpoint's options, such as `validate`
        and `cost`.

        If the endpoint's function takes a pydantic model, the result is this model. Otherwise the result is an object that
        has the function's parameters as attributes.
        """
        return value if self.whole is not None else types.SimpleNamespace(**self._members(value))

    def arguments(self, value: BaseModel, writer: ItemWriter | None) -> dict[str, Any]:
        """Build the keyword arguments for a call of the endpoint's function with one input."""
        arguments: dict[str, Any] = self._members(value) if self.whole is None else {self.whole: value}
        if self.stream is not None:
            arguments[self.stream] = None if writer is None else Stream(writer)
        if self.context is not None:
            arguments[self.context] = Context(writer)
        return arguments

    def batch_arguments(self, values: Sequence[BaseModel], context: Context) -> dict[str, Any]:
        """Build the keyword arguments for a batched call. They contain one list of inputs, or one list for each member
        of the input.
        """
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
        """Convert an input to the object that the server sends to a running batched generator.

        The result is the pydantic model if the function takes one. Otherwise it is the value of the only member, or a tuple
        with the values of all members.
        """
        if self.whole is not None:
            return value
        members = tuple(self._members(value).values())
        return members[0] if len(members) == 1 else members

    @functools.cached_property
    def _fields(self) -> dict[str, str]:
        """Name of the pydantic model's field for each parameter. The names are cached, because computing `model_fields`
        is slow.
        """
        return {(field.alias or name): name for name, field in self.model.model_fields.items()}

    def _members(self, value: BaseModel) -> dict[str, Any]:
        return {name: getattr(value, field) for name, field in self._fields.items()}


@dataclass(frozen=True)
class ValueShape:
    """Value schema of an endpoint. It converts the values that the endpoint's function produces to JSON, and validates
    them.
    """

    adapter: TypeAdapter[Any]
    rows: TypeAdapter[list[Any]]
    """Pydantic adapter that converts lists of values to JSON."""
    serialized: SchemaValidator | None
    """Validator of the JSON. None if `adapter` itself accepts the JSON that it produces."""
    schema: dict[str, Any]
    is_any: bool
    """Whether any JSON value is valid, because the function's signature does not specify the type of the value."""
    is_text: bool
    may_be_text: bool
    """Whether the type allows a text, for example `str | None`, or a missing annotation."""
    empty: JsonValue
    """Initial value of an item if the endpoint streams: an empty text, array or object, or None for other types."""

    def decodes_base64(self) -> bool:
        """Return whether the value contains a model with a member such as `pydantic.Base64Bytes`.

        When a function creates such a model, pydantic decodes the passed bytes as base64. Characters that are not base64 are
        skipped. Most bytes therefore raise no error, but the value is wrong.
        """
        parts: list[tuple[Any, bool]] = [(self.adapter.core_schema, False)]
        while parts:
            part, in_model = parts.pop()
            if isinstance(part, dict):
                kind, of = part.get("type"), part.get("cls")
                in_model |= kind == "model" or (
                    kind == "dataclass" and isinstance(of, type) and is_pydantic_dataclass(of)
                )
                decoder = getattr(part.get("function"), "__self__", None)
                if in_model and isinstance(decoder, EncodedBytes | EncodedStr):
                    return True
                parts += [(member, in_model) for name, member in part.items() if name != "default"]
            elif isinstance(part, list | tuple):
                parts += [(element, in_model) for element in part]
        return False

    def to_json(self, value: Any) -> Any:
        """Convert a value to plain JSON types: dicts, lists, strings, numbers, booleans and None.

        Raises:
            InvalidValueError: The value cannot be represented as JSON.
        """
        try:
            return plain(value) if self.is_any else converted(self.rows, value)
        except (ValueError, TypeError, RuntimeError):
            return plain(value)

    def check(self, value: JsonValue) -> None:
        """Validate a JSON value against the schema.

        Raises:
            InvalidValueError: The value does not match the schema. The message gives the path and the reason.
        """
        try:
            encoded = orjson.dumps(value)
        except TypeError as error:
            _check_strictly(value)
            raise InvalidValueError(str(error)) from None
        try:
            (self.serialized or self.adapter).validate_json(encoded, strict=True)
        except ValidationError as error:
            _check_strictly(value)  # orjson encodes NaN as null, but the error must report NaN
            first = error.errors(include_url=False, include_context=False)[0]
            raise InvalidValueError(f"{named(build(first['loc']))}: {message_of(first)}") from None


def _check_strictly(value: JsonValue) -> None:
    try:
        strict_json.check(value)
    except strict_json.StrictJsonError as error:
        raise InvalidValueError(said_of_value(error)) from None


@dataclass(frozen=True)
class Shapes:
    """Schemas of one input and one value of an endpoint, and properties of its function if it is batched."""

    input: InputShape
    value: ValueShape
    outputs: int | None = None
    """Number of lists in the tuple that a batched function returns. None if the function returns a single list of values."""
    takes_late_joiners: bool = False
    """Whether a batched function is a generator that receives more inputs through `send` while the batch runs."""


@dataclass(frozen=True)
class Signature:
    """Parameters and annotations of an endpoint's function."""

    members: dict[str, tuple[Any, Any]]
    """Annotation and default of each parameter that is a member of the input. A required member has the default `...`."""
    stream: str | None
    streamed: Any
    """Type argument `T` of the parameter that is annotated `Stream[T]`."""
    context: str | None
    returned: Any
    """The return annotation of the function."""


_log = logging.getLogger(__name__)

_INJECTED_NAMES: Final = {
    "ctx": "`ctx: Context`",
    "context": "`context: Context`",
    "stream": "`stream: Stream[str]`",
}


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """Read the parameters and annotations of an endpoint's function.

    Raises:
        TypeError: A parameter cannot be a member of an input, or an annotation cannot be resolved.
    """
    try:
        read = typing.get_type_hints(_annotated(function), include_extras=True)
        hints = {parameter: _unaliased(annotation) for parameter, annotation in read.items()}
    except NameError as error:
        raise TypeError(
            f"endpoint {name!r}: an annotation cannot be resolved ({error}); define its type at module level"
        ) from None
    members: dict[str, tuple[Any, Any]] = {}
    injected: dict[type, str] = {}
    streamed: Any = Any
    for parameter in inspect.signature(function).parameters.values():
        annotation = _without_none(hints.get(parameter.name, Any))
        kind = get_origin(annotation) or annotation
        if kind is Stream or kind is Context:
            if kind in injected:
                raise TypeError(
                    f"endpoint {name!r}: the parameters {injected[kind]} and {parameter.name} are both annotated "
                    f"{kind.__name__}, but only one is allowed"
                )
            if annotation is Stream:
                raise TypeError(
                    f"endpoint {name!r}: the parameter {parameter.name} is annotated Stream without the type of the "
                    "value; write Stream[str] for a text, Stream[list[float]] for a list, or Stream[Any] for any value"
                )
            injected[kind] = parameter.name
            if kind is Stream:
                (streamed,) = get_args(annotation)
        elif parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            if parameter.annotation is parameter.empty and parameter.name in _INJECTED_NAMES:
                _log.warning(
                    "endpoint %r: the parameter %s has no annotation, so it is a member of the input; annotate it as %s if the "
                    "server is to pass it",
                    *(name, parameter.name, _INJECTED_NAMES[parameter.name]),
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            members[parameter.name] = (annotation, default)
        else:
            collects = parameter.kind is not parameter.POSITIONAL_ONLY
            hint = "; if a decorator has made this function, use functools.wraps in the decorator"
            raise TypeError(
                f"endpoint {name!r}: the parameter {parameter} cannot be a member of the input; use named parameters "
                f"that can be passed as keywords{hint if collects else ''}"
            )
    return Signature(members, injected.get(Stream), streamed, injected.get(Context), hints.get("return", Any))


def _unaliased(annotation: Any) -> Any:
    """Return the type that a type alias such as `type Words = Iterator[str]` names, if the server treats this type specially.
    Return other annotations unchanged, because pydantic could not resolve a recursive alias such as `JsonValue` without its
    name.
    """
    if type(annotation).__name__ != "TypeAliasType":
        return annotation
    named = _unaliased(annotation.__value__)
    kind = _without_none(named)
    return named if (get_origin(kind) or kind) in {Stream, Context, *STREAMED} else annotation


def _without_none(annotation: Any) -> Any:
    """Reduce `Stream[T] | None` to `Stream[T]`, and `Context | None` to `Context`. Return other annotations unchanged.

    Users allow None so that they can also call the function directly, without a server.
    """
    if get_origin(annotation) not in {typing.Union, types.UnionType}:
        return annotation
    others = [each for each in get_args(annotation) if each is not types.NoneType]
    alone = _without_none(_unaliased(others[0])) if len(others) == 1 else None
    return alone if (get_origin(alone) or alone) in {Stream, Context} else annotation


def shapes_of(function: Callable[..., Any], name: str) -> Shapes:
    """Derive the schemas of input and value from the signature of a function that is not batched.

    Raises:
        TypeError: A parameter cannot be a member of the input, or an annotation has no JSON Schema.
    """
    read = read_signature(function, name)
    if read.stream is not None:
        return make_shapes(name, read, read.streamed, grows=True)
    annotation = read.returned
    if not is_generator(function):
        return make_shapes(name, read, annotation, grows=False)
    if annotation in STREAMED or get_origin(annotation) in STREAMED:
        annotation = argument_of(annotation)
    return make_shapes(name, read, value_type(annotation), grows=contains_append(annotation))


def argument_of(annotation: Any, index: int = 0) -> Any:
    """Return a type argument of an annotation. For an annotation without arguments, such as `list`, return `Any`."""
    arguments = get_args(annotation)
    return arguments[index] if arguments else Any


def make_shapes(name: str, read: Signature, annotation: Any, *, grows: bool) -> Shapes:
    """Create the input schema from a signature, and the value schema from the annotation of the value.

    Raises:
        TypeError: An annotation has no JSON Schema, or clients could not read its JSON Schema.
    """
    try:
        input_shape = _input_shape(name, read.members, read.stream, read.context)
        value_shape = _value_shape(annotation, grows=grows)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        if error.code == "schema-for-unknown-type":
            reason = (
                f"{reason.partition('. Set')[0]}; use an annotation for its JSON form instead, such as list[float] or "
                "list[list[float]] for an array or a tensor, and a pydantic model or a dataclass for an object"
            )
        unusable = [key for key, (annotation, _) in read.members.items() if not _has_schema(annotation)]
        of = f"parameter {unusable[0]!r}" if unusable else "value"
        raise TypeError(
            f"endpoint {name!r}: the annotation of its {of} has no JSON Schema: {reason}"
        ) from None
    for of, schema in (("input", input_shape.schema), ("value", value_shape.schema)):
        try:
            strict_json.check(schema)
        except strict_json.StrictJsonError as error:
            raise TypeError(
                f"endpoint {name!r}: clients could not read the schema of its {of}: {error}"
            ) from None
    return Shapes(input_shape, value_shape)


def _has_schema(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).json_schema()
    except PydanticUserError:
        return False
    return True


def is_async(function: Callable[..., Any]) -> bool:
    """Whether the function is a coroutine function, or returns an async iterator."""
    body = _executed(function)
    if inspect.isgeneratorfunction(body):
        return False
    return (
        inspect.iscoroutinefunction(body)
        or inspect.isasyncgenfunction(body)
        or _returns(function) in _ON_LOOP
    )


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether the function is a generator function, or is annotated to return an iterator or generator."""
    body = _executed(function)
    return (
        inspect.isgeneratorfunction(body)
        or inspect.isasyncgenfunction(body)
        or _returns(function) in _RETURNED
    )


def _executed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that decides whether the server calls an endpoint's function on the event loop or in a thread. This
    is the outermost async function or generator function among its decorators, or otherwise the decorated function.

    A plain `def` decorator is skipped, because it usually returns the coroutine of the function that it decorates.
    """
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function
    if inspect.isgeneratorfunction(function):
        return function
    if isinstance(function, functools.partial):
        return _executed(function.func)
    call = type(function).__call__
    if isinstance(call, types.FunctionType):
        return _executed(call)
    return _executed(function.__wrapped__) if hasattr(function, "__wrapped__") else function


def _returns(function: Callable[..., Any]) -> Any:
    """Return the return annotation without type arguments, or None if the annotation cannot be resolved."""
    try:
        returned = typing.get_type_hints(_annotated(function)).get("return")
    except Exception:  # noqa: BLE001 - `read_signature` reports unresolvable annotations
        return None
    returned = _unaliased(returned)
    return get_origin(returned) or returned


def unwrap_partial(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial` objects, which have no name and no docstring themselves."""
    return unwrap_partial(function.func) if isinstance(function, functools.partial) else function


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Remove decorators such as `functools.lru_cache`, and return the function that has the annotations. For an object that is
    not a function, return its `__call__` method.
    """
    inner = inspect.unwrap(function)
    if isinstance(inner, functools.partial):
        return _annotated(inner.func)
    is_function = isinstance(inner, types.FunctionType | types.MethodType)
    body: Callable[..., Any] = inner if is_function else inspect.unwrap(type(inner).__call__)
    return body


def _input_shape(
    name: str, parameters: Mapping[str, tuple[Any, Any]], stream: str | None, context: str | None
) -> InputShape:
    whole = None
    if len(parameters) == 1:
        ((only, (annotation, default)),) = parameters.items()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            whole = None if issubclass(annotation, RootModel) else only
    if whole is not None:
        made = annotation
        model = _validating(annotation, default, f"endpoint {name!r}: {whole}")
    else:
        fields: dict[str, Any] = {
            _FIELD + key: (Annotated[annotation, Field(alias=key, title=key)], default)
            for key, (annotation, default) in parameters.items()
        }
        made = model = create_model(
            name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
    schema = model.model_json_schema(mode="validation", schema_generator=_Schema)
    defaults = not schema.get("required")
    return InputShape(model, made, whole, stream, context, schema, defaults)


def _validating(model: type[BaseModel], default: Any, what: str) -> type[BaseModel]:
    """Return a subclass of a model that forbids unknown members, so that a misspelled member is not ignored silently. Its
    members have the values of `default`, the default of the parameter, as their defaults.

    If the model configures pydantic's `extra`, this configuration is kept.

    Raises:
        TypeError: The default is not an instance of the model.
    """
    if default is not ... and not isinstance(default, model):
        raise TypeError(
            f"{what}: the default {default!r} is not a {model.__name__}; remove it, because an input without members "
            "has the defaults of the model"
        )
    # Define empty `__slots__`, because the class of an instance can be changed to the model only if both have the same layout.
    namespace: dict[str, Any] = {"__module__": model.__module__, "__slots__": (), "__annotations__": {}}
    if "extra" not in model.model_config:
        namespace["model_config"] = ConfigDict(extra="forbid")
    for name in () if default is ... else default.model_fields_set & set(model.model_fields):
        namespace[name] = member = copy.copy(model.model_fields[name])
        member.default, member.default_factory = getattr(default, name), None
        namespace["__annotations__"][name] = member.annotation
    return types.new_class(model.__name__, (model,), exec_body=lambda body: body.update(namespace))


def _value_shape(annotation: Any, *, grows: bool) -> ValueShape:
    adapter = TypeAdapter(annotation)
    schema = adapter.json_schema(mode="serialization", schema_generator=_Schema)
    is_text = _is_text(schema)
    empty: JsonValue = None
    if is_text:
        empty = ""
    elif grows and schema.get("type") == "array":
        empty = []
    elif grows and schema.get("type") == "object" and not schema.get("required"):
        empty = {}
    may_be_text = not schema or any(map(_is_text, [schema, *schema.get("anyOf", ())]))
    is_any = annotation is Any
    serialized = serialized_form_validator(adapter)
    return ValueShape(adapter, rows_of(annotation), serialized, schema, is_any, is_text, may_be_text, empty)


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and not {"enum", "const", "format"} & set(schema)
