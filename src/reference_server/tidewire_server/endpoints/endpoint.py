"""The class `Endpoint`: a registered function with its schemas, its options and its description for clients."""

import hashlib
import inspect
import logging
import math
import re
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import orjson
from pydantic import BaseModel, JsonValue

from tidewire.protocol import strict_json
from tidewire.protocol.document.json_pointer import escape, parse
from tidewire.protocol.resources import Batch, EndpointCapabilities, EndpointDescription, EndpointSummary
from tidewire_server.endpoints.batch_options import Batching, WorkerPool, Workers, as_called, read_batching
from tidewire_server.endpoints.batch_signature import batch_shapes_of
from tidewire_server.endpoints.signature_schemas import (
    is_async,
    is_generator,
    shapes_of,
    unwrap_partial,
)
from tidewire_server.endpoints.user_values import plain
from tidewire_server.errors import EndpointFunctionError, ItemError, ProblemError, refuse
from tidewire_server.store.records import BatchSlot

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")

OnRestart = Literal["rerun", "fail", "continue"]

Columns = Sequence[str] | Callable[[Any], Sequence[str]]
Resource = bytes | JsonValue | Callable[[], bytes | JsonValue]


class Default:
    """Type of the sentinel `DEFAULT`. It is the default of options for which None is a meaningful value."""


DEFAULT: Final = Default()


@dataclass(frozen=True)
class Options:
    """Options of `@server.endpoint(…)`.

    The string below each field documents the option. The script `src/client/generate_signatures.py` generates the
    signature and the docstring of `Server.endpoint` from these fields.
    """

    name: str | None = None
    """Name of the endpoint. The default is the name of the function."""
    concurrency_limit: int | Default | None = DEFAULT
    """Maximum number of concurrent calls, or None for no limit. The default is the server's
    `default_concurrency_limit`."""
    global_limit: int | None = None
    """Maximum number of concurrent calls over all servers and workers of one database, or None for no limit. In a group of
    endpoints, it applies to the group. `concurrency_limit` counts in each process. If the log is in memory or in a file,
    there is only one process, and both limits apply to it."""
    concurrency_group: str | None = None
    """Name of a group of endpoints that share one concurrency limit, for example because their models share a GPU.
    Set `concurrency_limit` on any endpoint of the group."""
    max_queue_size: int | None = None
    """Maximum number of items that wait for a call. It may be 0. The default is the server's setting."""
    time_limit: float | None = None
    """Number of seconds after which an item fails with `deadline_exceeded` and its function is cancelled, or None
    for no limit."""
    on_restart: OnRestart = "rerun"
    """How the server treats items that were running when it stopped, unless the log is in memory. With "rerun", the
    restarted server runs them again from the start. With "fail", they fail with `worker_lost`. Use "fail" for
    functions that must not run twice. With "continue", the restarted server keeps their logged values and runs them
    again. Use "continue" for functions that read `ctx.previous` and continue from there."""
    columns: Columns | None = None
    """JSON Pointers of the texts and arrays within the value to which the endpoint's function appends. Instead of a
    list, this can be a function of the input, as in `lambda given: [f"/{len(given.history)}/text"]`. If the endpoint's
    function takes a pydantic model, functions in options are called with this model. Otherwise they are called with an
    object that has the parameters of the endpoint's function as attributes. If the value is a text, the default is the
    value itself. This is also the default of a generator without an annotation if its first value is a text."""
    initial: Any = DEFAULT
    """Value of an item until its function produces the first value, or a function that computes this value from the
    input."""
    validate: Callable[[Any], Any] | None = None
    """Function that checks each input that matches the schema. To reject the client's request, this function raises an
    `ItemError` or a `ValueError`. A `ValueError` can have the attributes `member` (name of the invalid member) and
    `code` (error code)."""
    capabilities: Mapping[str, Any] | None = None
    """Capabilities for the discovery document, such as `{"logprobs": {"max_top": 20}}` or `{"rollback": False}`. They
    take precedence over the capabilities that the server detects. The server declares `rollback` for every generator and
    every function with a stream. With `{"rollback": False}`, you promise that the function never removes or replaces
    text. If the function does so nevertheless, its job fails."""
    examples: Iterable[JsonValue] = ()
    """Valid inputs, shown in discovery."""
    links: Mapping[str, Resource] | None = None
    """Additional resources that the server offers under the endpoint's URL, as a mapping from names to contents. Each
    content is bytes, a JSON value, or a function that returns bytes or a JSON value."""
    batch: bool = False
    """Whether each call of the function processes many inputs. The function takes a list of a pydantic model, or one
    list for each member of the input, and returns the values in the same order. If the returned list contains an
    `ItemError` or another exception, only the corresponding input fails. A generator yields `{row: value}`, where the
    value can be an `Append` or a `Last`. Clients submit inputs as usual. All options below require `batch`."""
    max_batch_size: int | None = None
    """Maximum number of inputs per call. The default is 16, or the largest of `sizes`."""
    batch_timeout: float | None = None
    """Number of seconds that a call waits for more inputs, counted from the arrival of the oldest waiting input. With 0, a
    call starts at once if the function is idle, so that batches form only while another call is running."""
    sizes: Iterable[int] | None = None
    """Allowed batch sizes, for functions that are compiled for fixed shapes. A smaller batch is padded, and the
    values of the padding rows are discarded."""
    pad: Any = None
    """Input that is used for padding. The default is the last input of the batch."""
    cost: Callable[[Any], float] | None = None
    """Function that returns the cost of an input, for example its number of tokens or pixels. The server calls this
    function when the input is submitted, and again when the input is queued."""
    max_cost: float | None = None
    """Maximum total cost of the inputs in one call. An input with a higher cost is rejected."""
    key: Callable[[Any], Hashable] | None = None
    """Function that returns the batch key of an input, for example its shape or its adapter. Only inputs with equal
    keys share a batch. The server calls this function when it calls `cost`."""
    bisect: bool = False
    """Whether the server splits a batch that raised an exception into halves, and retries each half separately. The
    server repeats this until only the inputs that cause the exception have failed. The function is then called several
    times with the same input."""
    workers: Workers | None = None
    """Workers that call the function outside of the server's process, such as `ray_workers(4, num_gpus=1)`. The endpoint can
    then be a class: each worker creates an instance, which loads the model, and calls it for each batch. The default of
    `concurrency_limit` is the number of workers. If a cancelled item does not end within `cancel_timeout`, its worker is
    replaced. When a worker dies or is replaced, `on_restart` applies to its other items. The function must not be async, and
    must not accept further inputs while it runs."""

    def batching(self) -> Batching | None:
        """Return the batching options, or None if each call of the function handles one input.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is out of range, or requires `batch`, which is not set.
        """
        names = ("max_batch_size", "batch_timeout", "sizes", "pad", "cost", "max_cost", "key")
        options = {name: getattr(self, name) for name in names}
        if self.batch:
            return read_batching(**options, bisect=self.bisect)
        others = ["bisect"] * self.bisect + ["workers"] * (self.workers is not None)
        if given := [name for name, value in options.items() if value is not None] + others:
            raise ValueError(f"{', '.join(given)}: these options require batch=True")
        return None


@dataclass(frozen=True)
class Served:
    """Encoded content of one of an endpoint's additional resources, as the server sends it."""

    body: bytes
    media_type: str
    version: str
    """Version of the content. The server uses it as the ETag, and as the parameter `v` in the URL of the resource."""


class Endpoint:
    """A function that is registered with the server under a name, so that clients can submit jobs for it."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        """Derive the schemas from the function's signature and validate the options.

        Raises:
            TypeError: The signature is not supported, or an option has the wrong type.
            ValueError: An option is invalid, or an example does not match the input schema.
        """
        if not callable(function):
            raise TypeError(
                f"an endpoint must be a function, not {function!r}; use @server.endpoint(name=…) to set a name"
            )
        body = unwrap_partial(function)
        described = function if options.workers is None else as_called(function)
        _refuse_unbound(unwrap_partial(described))
        self.function = function
        self.name: str = str(getattr(body, "__name__", "")) if options.name is None else options.name
        if options.name is None and self.name in {"", "<lambda>"}:
            what = "a lambda" if self.name else f"an object of type {type(body).__name__}"
            raise ValueError(f"{what} has no name: pass one with name=…")
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None:
            raise ValueError(
                f"{self.name!r} is not a valid endpoint name: use a letter, then at most 63 letters, digits, '-', '_' "
                "and '.'"
            )
        self.batching = options.batching()
        """Batching options, or None if each call of the function handles one input."""
        shapes_in = shapes_of if self.batching is None else batch_shapes_of
        shapes = shapes_in(described, self.name)
        self.input, self.value = shapes.input, shapes.value
        self.outputs, self.takes_late_joiners = shapes.outputs, shapes.takes_late_joiners
        self.generated_tokens: int | None = None
        """Number of tokens that `generate` has generated since the server started. None for all other endpoints."""
        self.warned_about_pieces = False
        """Whether the server has already logged the warning that the generator yields pieces instead of whole texts."""
        self.warned_about_columns = False
        """Whether the server has already logged the warning that the generator appends text that is not in a column."""
        if self.value.decodes_base64():
            _log.warning(
                "endpoint %r: its value contains a model with pydantic's base64 type, which decodes the bytes that the "
                "function passes to the model, so that clients receive wrong bytes; use tidewire_server.Binary",
                self.name,
            )
        self.is_async = is_async(described)
        self.is_generator = is_generator(described)
        self.workers: WorkerPool | None = None
        """Workers that call the function outside of this process. None if the function is called in this process."""
        if options.workers is not None:
            self._check_function_of_workers()
            self.workers = options.workers.pool(self.name, function)
            self.function = self.workers.stream if self.is_generator else self.workers.call
            # Workers are called asynchronously, and convert the function's result to one list of values.
            self.is_async, self.outputs = True, None
        self.streams = self.is_generator or self.input.stream is not None
        """Whether the value can change while the function runs. If not, the value is set when the function returns."""
        for name, least in (("concurrency_limit", 1), ("global_limit", 1), ("max_queue_size", 0)):
            option = getattr(options, name)
            if not (option is None or isinstance(option, Default)) and (
                type(option) is not int or option < least
            ):
                raise ValueError(
                    f"endpoint {self.name!r}: {name} must be an integer ≥ {least}, or None, not {option!r}"
                )
        limit = options.time_limit
        if limit is not None and (type(limit) not in {int, float} or not 0 < limit < math.inf):
            raise ValueError(
                f"endpoint {self.name!r}: time_limit must be a number of seconds greater than 0, or None, not {limit!r}"
            )
        group = options.concurrency_group
        if group is not None and (not isinstance(group, str) or not group):
            raise ValueError(
                f"endpoint {self.name!r}: concurrency_group must be a non-empty name, or None, not {group!r}"
            )
        self._check_value_options(options)
        self.concurrency_limit = options.concurrency_limit
        if options.workers is not None and isinstance(self.concurrency_limit, Default) and group is None:
            self.concurrency_limit = options.workers.count
        self.global_limit = options.global_limit
        self.concurrency_group = group
        self.max_queue_size = options.max_queue_size
        if options.on_restart not in get_args(OnRestart):
            raise ValueError(
                f"endpoint {self.name!r}: on_restart must be 'rerun', 'fail' or 'continue', not {options.on_restart!r}"
            )
        self.on_restart_now: Callable[[], OnRestart] = lambda: options.on_restart
        """Function that returns the current value of `on_restart`. Built-in endpoints replace this function if the value
        depends on the server's settings."""
        self.time_limit = limit
        self.validate = options.validate
        self.checks_value = True
        """Whether the final value is validated. Built-in endpoints set this to False if their values are always valid and so
        large that the validation would take longer than all other work."""
        self.begins_itself = False
        """Whether an item stays queued until the function calls `ItemRun.begin`. Only built-in endpoints that are asynchronous
        and not batched may set this to True."""
        self.on_limit_calls: Callable[[int], None] = lambda _: None
        """Function that `limit_calls` calls with the new limit. The scheduler sets it."""
        self.samples: Callable[[Any], Sequence[Any]] | None = None
        """Function that expands one input of a job into the inputs of several items, for example one item for each
        sample. None if each input becomes one item."""
        self.continues: Callable[[Any, Any], bool] | None = None
        """With `on_restart="continue"`, a function that decides whether an item can continue after a restart. Its arguments
        are the submitted input and the logged value. If it returns False, the item runs again from the start."""
        self.start: Callable[[], Awaitable[None]] | None = None
        """Coroutine function that the server calls when it starts, before any job runs."""
        self.unavailable: Callable[[], str | None] = lambda: None
        """Function that returns why the endpoint accepts no new jobs at the moment, or None."""
        self._columns = options.columns
        self._initial = options.initial
        text = inspect.cleandoc(body.__doc__ or "")
        self.summary, _, self.description = (part.strip() for part in text.partition("\n\n"))
        self.summary = " ".join(self.summary.split())
        self.links = dict(options.links or {})
        self._served: dict[str, Served] = {}
        self.examples = list(options.examples) or ([{}] if self.input.defaults else [])
        for example in self.examples:
            try:
                strict_json.check(example)
                self.input.read(example, "/input")
            except (ProblemError, strict_json.StrictJsonError) as error:
                raise ValueError(
                    f"endpoint {self.name!r}: an example is not a valid input: {error}"
                ) from None
        self.padding = self._read_padding()
        self._declared = dict(options.capabilities or {})
        self._capabilities = {
            "streams": self.streams,
            "rollback": self.streams,
            **self._declared,
        }
        EndpointCapabilities.model_validate(self._capabilities)

    def describe_as(self, other: "Endpoint") -> None:
        """Use the schemas, the examples, the links and the capabilities of another endpoint that has the same function."""
        self.input, self.value, self.examples = other.input, other.value, other.examples
        self.links, self._served = other.links, {}
        self._declared, self._capabilities = other._declared, other._capabilities

    @property
    def on_restart(self) -> OnRestart:
        """How the server treats items that were running when it stopped."""
        return self.on_restart_now()

    def _check_function_of_workers(self) -> None:
        if self.is_async:
            raise TypeError(
                f"endpoint {self.name!r}: workers cannot call an async function, because each of them runs one call at a "
                "time; write `def` instead of `async def`, and call asyncio.run(…) in the function if it awaits something"
            )
        if self.takes_late_joiners:
            raise TypeError(
                f"endpoint {self.name!r}: workers cannot call a generator that takes late joiners; annotate it "
                "Iterator[dict[int, …]], or remove the option workers"
            )

    def _read_padding(self) -> BaseModel | None:
        """Return the input with which batches are padded, or None if batches are padded by repeating their last
        input.
        """
        batching = self.batching
        if batching is None:
            return None
        if batching.bisect and self.is_generator:
            raise ValueError(
                f"endpoint {self.name!r}: bisect cannot be used with a generator, because clients may already have "
                "received a part of its output when it fails"
            )
        if batching.sizes and self.takes_late_joiners:
            raise ValueError(
                f"endpoint {self.name!r}: sizes cannot be used with a generator that takes late joiners, because the "
                "size of its batch changes while it runs. Pad the batch in the function"
            )
        pad = batching.pad
        if pad is None or isinstance(pad, self.input.model):
            return pad
        value = pad.model_dump(mode="json") if isinstance(pad, BaseModel) else plain(pad)
        try:
            return self.input.read(value, "")
        except ProblemError as error:
            reason = str(error).removeprefix(": ")
            raise ValueError(f"endpoint {self.name!r}: pad is not a valid input: {reason}") from None

    def _check_value_options(self, options: Options) -> None:
        """Validate `columns`, `validate`, `initial` and `links`, so that errors appear at registration instead of at
        the first request.
        """
        here = f"endpoint {self.name!r}"
        columns = options.columns
        if isinstance(columns, str):
            raise TypeError(
                f"{here}: columns must be a list of JSON Pointers, not a string: use [{columns!r}]"
            )
        if columns is not None and not callable(columns):
            for pointer in columns:
                try:
                    parse(pointer)
                except ValueError as error:
                    raise ValueError(f"{here}: columns: {pointer!r}: {error}") from None
        if options.validate is not None and not callable(options.validate):
            raise TypeError(f"{here}: validate must be a function of the input, not {options.validate!r}")
        if options.initial is not DEFAULT and not callable(options.initial):
            try:
                strict_json.check(self.value.to_json(options.initial))
            except ValueError as error:
                raise ValueError(f"{here}: initial: {error}") from None
        for name, resource in (options.links or {}).items():
            if _NAME.fullmatch(name) is None or name in {"jobs", "self"}:
                raise ValueError(
                    f"{here}: {name!r} is not a valid name for a link: use a letter, then letters, digits, '-', '_' "
                    "and '.', but not 'jobs' or 'self'"
                )
            if not callable(resource) and not isinstance(resource, bytes):
                try:
                    strict_json.check(resource)
                except ValueError as error:
                    raise ValueError(f"{here}: link {name!r} is neither bytes nor JSON: {error}") from None

    @property
    def rollback(self) -> bool:
        """Whether the endpoint may retract text that it has already written."""
        return bool(self._capabilities["rollback"])

    @property
    def retracts_deliberately(self) -> bool:
        """Whether the endpoint was registered with the capability `rollback` set to true."""
        return bool(self._declared.get("rollback"))

    @property
    def guesses_columns(self) -> bool:
        """Whether neither the option `columns` nor the annotation of a generator specifies the columns."""
        value = self.value
        return self._columns is None and self.is_generator and value.may_be_text and not value.is_text

    @property
    def notices_cancel(self) -> bool:
        """Whether the function can notice a cancellation. If not, the server does not wait for the function to stop."""
        shape = self.input
        return self.is_async or self.is_generator or shape.stream is not None or shape.context is not None

    def limit_calls(self, calls: int) -> None:
        """Change the maximum number of concurrent calls. Call this method on the event loop, and only for an endpoint without
        a concurrency group.
        """
        self.on_limit_calls(calls)

    # ---- the first state of an item ----------------------------------------------------------------------------

    @property
    def empty_value(self) -> JsonValue:
        """Value that an item has before its function runs, if the endpoint has no option `initial`."""
        return self.value.empty if self.streams else None

    @property
    def fixed_initial(self) -> JsonValue:
        """Initial value of an item. If it depends on the input, this is `empty_value` instead."""
        is_fixed = self._initial is not DEFAULT and not callable(self._initial)
        return self.value.to_json(self._initial) if is_fixed else self.empty_value

    def initial(self, value: BaseModel) -> JsonValue:
        """Return the value that an item has before its function runs."""
        if not callable(self._initial):
            return self.fixed_initial
        try:
            found: JsonValue = self.value.to_json(self._initial(self.input.as_given(value)))
        except Exception as error:
            raise self._failed("initial") from error
        return found

    def columns(self, value: BaseModel) -> list[str]:
        """Return the JSON Pointers of the item's columns. Columns are the texts and arrays that grow with each row of
        output. The pointers are relative to the item's value.

        Columns are fixed before the function runs. The value of a generator without an annotation may become a text later, and
        is therefore a column from the start. No diff uses this column until the value is a text [TW-DIF-073].
        """
        if self._columns is None:
            within: Sequence[str] = [""] if self.value.is_text or self.guesses_columns else []
        elif callable(self._columns):
            try:
                within = list(self._columns(self.input.as_given(value)))
            except Exception as error:
                raise self._failed("columns") from error
            try:
                for pointer in within:
                    parse(pointer)
            except Exception as error:
                raise self._failed(
                    "columns", "returned a value that is not a list of JSON Pointers"
                ) from error
        else:
            within = self._columns
        return list(within)

    async def admit(self, raw: JsonValue, pointer: str) -> BaseModel:
        """Validate a submitted input with the input schema, the endpoint's `validate` function, and `max_cost`.

        Raises:
            ProblemError: The input is rejected.
            EndpointFunctionError: A function in the endpoint's options, or a validator of the input, has a bug.
        """
        function = "a validator of the input"
        try:
            value = self.input.read(raw, pointer)
            function = "validate"
            if self.validate is not None:
                pending = self.validate(self.input.as_given(value))
                if inspect.isawaitable(pending):
                    await pending
            function = "key or cost"
            cost = self.place(value).cost
        except ItemError as error:
            raise ProblemError(error.problem().model_copy(update={"pointer": pointer})) from None
        except ValueError as error:
            if function == "key or cost":
                # Report a bug in the validator, such as `math.log(0)`, as an error of the server. An `invalid_input` error
                # would make the caller look for the mistake in the input.
                raise self._failed(function, pointer=pointer) from error
            member = getattr(error, "member", None)
            code = getattr(error, "code", None) or "invalid_input"
            where = (
                pointer
                if member is None
                else f"{pointer}/{escape(str(member))}{getattr(error, 'within', '')}"
            )
            refused = ItemError(f"{where}: {error}", code=str(code), pointer=where)
            raise ProblemError(refused.problem()) from None
        except ProblemError:
            raise
        except Exception as error:
            raise self._failed(function, pointer=pointer) from error
        if self.batching is not None and cost > self.batching.max_cost:
            most = self.batching.max_cost
            detail = f"{pointer}: the input's cost {cost:.15g} exceeds the maximum cost of a batch, {most:.15g} (max_cost)"
            raise refuse("input_too_long", detail, pointer=pointer, limit=most)
        return value

    def _failed(
        self, function: str, how: str = "raised an exception", pointer: str | None = None
    ) -> EndpointFunctionError:
        return EndpointFunctionError(f"endpoint {self.name!r}: {function} {how}", pointer=pointer)

    def items_of(self, value: BaseModel, pointer: str, *, batch: bool) -> Sequence[BaseModel]:
        """Expand a validated input into the inputs of its items.

        Args:
            value: The input.
            pointer: JSON Pointer of the input in the request's body.
            batch: Whether the job has a list of inputs.

        Raises:
            ProblemError: The input would become several items, but the job has a list of inputs (TW-GEN-008).
        """
        if self.samples is None:
            return (value,)
        items: Sequence[BaseModel] = self.samples(value)
        if batch and len(items) > 1:
            detail = f"{pointer}/n: an input of a batch cannot ask for several samples; list it several times instead"
            raise refuse("invalid_input", detail, pointer=f"{pointer}/n")
        return items

    def place(self, value: BaseModel) -> BatchSlot:
        """Compute the batch key and the cost of an input.

        Raises:
            Exception: The endpoint's `key` or `cost` function raised an exception.
        """
        return BatchSlot() if self.batching is None else self.batching.place(self.input.as_given(value))

    # ---- description -------------------------------------------------------------------------------------------

    def capabilities(self, max_inputs: int) -> EndpointCapabilities:
        """Return the capabilities that the endpoint's description reports to clients."""
        return EndpointCapabilities.model_validate(
            {"batch": Batch(max_items=max_inputs), **self._capabilities}
        )

    def summarize(self, root: str, workers: int | None = None) -> EndpointSummary:
        """Return the endpoint's entry in the discovery document. The argument `workers` is the number of live processes that
        run the endpoint, or None if this process is the only one.
        """
        return EndpointSummary(
            name=self.name,
            summary=self.summary,
            href=f"{root}/endpoints/{self.name}",
            defaults=self.input.defaults,
            workers=workers,
        )

    def describe(self, root: str, max_inputs: int) -> EndpointDescription:
        """Return the endpoint's description for clients, with its schemas, examples, capabilities and links."""
        here = f"{root}/endpoints/{self.name}"
        # The URL contains the version of the content, so that caches can keep the response forever.
        further = {name: f"{here}/{name}?v={self.resource(name).version}" for name in self.links}
        return EndpointDescription(
            name=self.name,
            summary=self.summary,
            description=self.description,
            input_schema=self.input.schema,
            value_schema=self.value.schema,
            examples=self.examples,
            capabilities=self.capabilities(max_inputs),
            on_restart=self.on_restart,
            links={"self": here, "jobs": f"{here}/jobs", **further},
        )

    def resource(self, name: str) -> Served:
        """Return the content behind one of the endpoint's links, such as the vocabulary.

        The content is created on first use and then cached.

        Raises:
            KeyError: The endpoint has no link with this name.
        """
        if name not in self._served:
            link = self.links[name]
            content = link() if callable(link) else link
            body = content if isinstance(content, bytes) else orjson.dumps(content)
            media_type = "application/octet-stream" if isinstance(content, bytes) else "application/json"
            # If the content is an object with the member `hash`, use this hash as the version, which is sent as the ETag.
            # Clients that know only the hash can then send it in `If-None-Match`.
            named = content.get("hash") if isinstance(content, dict) else None
            version = named if isinstance(named, str) else hashlib.sha256(body).hexdigest()[:16]
            self._served[name] = Served(body, media_type, version)
        return self._served[name]


def _refuse_unbound(function: Callable[..., Any]) -> None:
    """Raise an error if the function is a class or an unbound method, because neither can be called with an input."""
    if isinstance(function, type):
        name = function.__name__
        raise TypeError(
            f"an endpoint must be a function, but {name} is a class; register a method of an object, such as "
            f"{name}(…).method"
        )
    if inspect.isfunction(function):
        first = next(iter(inspect.signature(function).parameters.values()), None)
        if first is not None and first.name in {"self", "cls"} and first.annotation is first.empty:
            raise TypeError(
                f"{function.__name__!r} is an unbound method; register the method of an object instead, such as "
                f"server.endpoint(model.{function.__name__})"
            )
