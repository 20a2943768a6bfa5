"""Schemas of batched functions. A batched function takes and returns lists, but each client submits single inputs.

The schemas of one input and one value are derived from the function's annotations:

annotation of the function                     | schema of one input      | schema of one value
-----------------------------------------------+--------------------------+--------------------------------------
(inputs: list[Model])                          | a Model                  |
(words: list[str], lengths: list[int])         | {"words": …, "lengths": …} |
-> list[T], Sequence[T | ItemError]            |                          | T
-> tuple[list[A], list[B]] (a list per output) |                          | [A, B], or A if there is one output
-> Iterator[dict[int, T]] (a generator)        |                          | T, which may grow during the call
"""

import collections.abc
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final, get_args, get_origin

from tidewire_server.endpoints.signature_schemas import (
    STREAMED,
    Shapes,
    argument_of,
    is_generator,
    make_shapes,
    read_signature,
)
from tidewire_server.endpoints.yieldables import value_type

_LISTS: Final = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_ROWS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SENT: Final = (collections.abc.Generator, collections.abc.AsyncGenerator)


def batch_shapes_of(function: Callable[..., Any], name: str) -> Shapes:
    """Derive the schemas of one item from the signature of a batched function.

    Raises:
        TypeError: The signature has an unsupported form, or an annotation has no JSON Schema.
    """
    read = read_signature(function, name)
    here = f"endpoint {name!r}"
    if read.stream is not None:
        raise TypeError(
            f"{here}: a batched function cannot have a Stream parameter, because a Stream belongs to one item. "
            "Yield {row: Append(…)} instead, and use a parameter `ctx: Context` to report progress, notes and usage"
        )
    if not read.members:
        raise TypeError(f"{here}: a batched function needs a parameter for the list of inputs")
    members: dict[str, tuple[Any, Any]] = {}
    for parameter, (annotation, default) in read.members.items():
        if default is not ...:
            raise TypeError(
                f"{here}: the list parameter {parameter!r} cannot have a default. If members of an input need default values, "
                "declare one parameter of the type list[Model], where Model is a pydantic model with defaults"
            )
        members[parameter] = (_element(annotation, f"{here}: the parameter {parameter!r}"), ...)
    generates = is_generator(function)
    outputs, late_joiners = None, False
    if generates:
        step, late_joiners = _yielded(read.returned, here)
        annotation = value_type(step)
    else:
        annotation, outputs = _returned(read.returned, here)
    shapes = make_shapes(name, replace(read, members=members), annotation, grows=generates)
    return replace(shapes, outputs=outputs, takes_late_joiners=late_joiners)


def _element(annotation: Any, what: str) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is Any or annotation in _LISTS or get_origin(annotation) in _LISTS:
        return argument_of(annotation)
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple and len(arguments) == 2 and arguments[1] is ...:
        return arguments[0]
    raise TypeError(f"{what} of a batched function must be annotated list[…], not {_name_of(annotation)}")


def _returned(annotation: Any, here: str) -> tuple[Any, int | None]:
    arguments = get_args(annotation)
    if arguments and get_origin(annotation) is tuple and ... not in arguments:
        outputs = [value_type(_element(each, f"{here}: each output")) for each in arguments]
        return (outputs[0] if len(outputs) == 1 else tuple[tuple(outputs)]), len(outputs)  # type: ignore[misc]
    if (
        isinstance(annotation, type)
        and hasattr(annotation, "__len__")
        and not issubclass(annotation, str | bytes | dict)
    ):
        return Any, None  # list, numpy.ndarray, torch.Tensor
    return value_type(_element(annotation, f"{here}: the result")), None


def _yielded(annotation: Any, here: str) -> tuple[Any, bool]:
    if annotation is Any or annotation in STREAMED:
        return Any, False
    arguments = get_args(annotation)
    sent = arguments[1] if get_origin(annotation) in _SENT and len(arguments) > 1 else None
    rows = argument_of(annotation) if get_origin(annotation) in STREAMED else annotation
    late_joiners = sent not in {None, types.NoneType, Any}
    if rows is Any or rows in _ROWS:
        return Any, late_joiners
    if get_origin(rows) not in _ROWS:
        raise TypeError(
            f"{here}: a batched generator must yield {{row: value}}, annotated Iterator[dict[int, …]], "
            f"not {_name_of(rows)}"
        )
    return argument_of(rows, 1), late_joiners


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
