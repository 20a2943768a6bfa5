"""From the signature of a batched function to the schemas of ONE of its items.

the function is annotated                      | one input is             | one value is
-----------------------------------------------+--------------------------+--------------------------------------
(inputs: list[Model])                          | a Model                  |
(words: list[str], lengths: list[int])         | {"words": …, "lengths": …} |
-> list[T], Sequence[T | ItemError]            |                          | T
-> tuple[list[A], list[B]] (a list per output) |                          | [A, B]; of one output A alone
-> Iterator[dict[int, T]] (a generator)        |                          | T, which may grow
"""

import collections.abc
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Union, get_args, get_origin

from tidewire_server.endpoints.signature_schemas import (
    InputShape,
    ValueShape,
    is_generator,
    make_shapes,
    read_signature,
)
from tidewire_server.endpoints.yieldables import Append, Last

_LISTS: Final = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_ROWS: Final = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_STREAMED: Final = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
)
_SENT: Final = (collections.abc.Generator, collections.abc.AsyncGenerator)


@dataclass(frozen=True)
class BatchShapes:
    """What a batched endpoint takes and gives, item by item."""

    input: InputShape
    value: ValueShape
    outputs: int | None
    """How many lists the function returns, one for each output; None for one list of values."""
    takes_late_joiners: bool
    """Whether it is a generator that is sent further inputs while it runs."""
    only_appends: bool
    """Whether it is a generator that yields no whole values."""


def batch_shapes_of(function: Callable[..., Any], name: str) -> BatchShapes:
    """Read a batched function's signature.

    Raises:
        TypeError: It is none of the forms above, or an annotation cannot be a schema.
    """
    read = read_signature(function, name)
    here = f"endpoint {name!r}"
    if read.stream is not None:
        raise TypeError(
            f"{here}: a batched function has no Stream, which is one item's: it yields {{row: Append(…)}}, "
            "and `ctx: Context` has what is told beside the value"
        )
    if not read.members:
        raise TypeError(f"{here}: a batched function takes a list of inputs, and this one takes nothing")
    members: dict[str, tuple[Any, Any]] = {}
    for parameter, (annotation, default) in read.members.items():
        if default is not ...:
            raise TypeError(
                f"{here}: the list {parameter!r} has a default, and a default is one input's: "
                "take one list of a pydantic model, whose members may have some"
            )
        members[parameter] = (_element(annotation, f"{here}: the parameter {parameter!r}"), ...)
    generates = is_generator(function)
    outputs, late_joiners, appends = None, False, False
    if generates:
        step, late_joiners = _yielded(read.returned, here)
        given, appends = _of_one(step), _appends(step)
    else:
        given, outputs = _returned(read.returned, here)
    taken, value = make_shapes(name, replace(read, members=members), given, grows=generates)
    return BatchShapes(taken, value, outputs, late_joiners, appends)


def _element(annotation: Any, what: str) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is Any or annotation in _LISTS:
        return Any
    arguments = get_args(annotation)
    if get_origin(annotation) in _LISTS:
        return arguments[0]
    if get_origin(annotation) is tuple and len(arguments) == 2 and arguments[1] is ...:
        return arguments[0]
    raise TypeError(f"{what} of a batched function is a list, list[…], not {_written(annotation)}")


def _returned(annotation: Any, here: str) -> tuple[Any, int | None]:
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple and ... not in arguments:
        outputs = [_of_one(_element(each, f"{here}: each output")) for each in arguments]
        return (outputs[0] if len(outputs) == 1 else tuple[tuple(outputs)]), len(outputs)  # type: ignore[misc]
    if (
        isinstance(annotation, type)
        and hasattr(annotation, "__len__")
        and not issubclass(annotation, str | bytes | dict)
    ):
        return Any, None  # list, numpy.ndarray, torch.Tensor
    return _of_one(_element(annotation, f"{here}: the result")), None


def _yielded(annotation: Any, here: str) -> tuple[Any, bool]:
    if annotation is Any or annotation in _STREAMED:
        return Any, False
    arguments = get_args(annotation)
    sent = arguments[1] if get_origin(annotation) in _SENT and len(arguments) > 1 else None
    rows = arguments[0] if get_origin(annotation) in _STREAMED else annotation
    late_joiners = sent not in {None, types.NoneType, Any}
    if rows is Any or rows in _ROWS:
        return Any, late_joiners
    if get_origin(rows) not in _ROWS:
        raise TypeError(
            f"{here}: a batched generator yields {{row: value}}, Iterator[dict[int, …]], not {_written(rows)}"
        )
    return get_args(rows)[1], late_joiners


def _of_one(annotation: Any) -> Any:
    """The type of one value, without what may stand in its place: exceptions, `Append` and `Last`."""
    if get_origin(annotation) in {Append, Last}:
        return _of_one(get_args(annotation)[0])
    if annotation in {Append, Last}:
        return Any
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation
    bare = [each for each in get_args(annotation) if not _stands_in(each)]
    if not bare:
        return Any
    return Union[tuple(map(_of_one, bare))]  # noqa: UP007 - made of what is only known here


def _appends(annotation: Any) -> bool:
    """Whether nothing but `Append` and `Last` of it is yielded."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return all(_appends(each) or _stands_in(each) for each in get_args(annotation))
    if get_origin(annotation) is Last:
        return _appends(get_args(annotation)[0])
    return annotation in {Append, Last} or get_origin(annotation) is Append


def _stands_in(annotation: Any) -> bool:
    return annotation in {Append, Last} or (
        isinstance(annotation, type) and issubclass(annotation, BaseException)
    )


def _written(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
