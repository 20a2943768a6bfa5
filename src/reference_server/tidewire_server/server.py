"""What an author of endpoints imports: a server, and how functions become its endpoints."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar, overload

from pydantic import JsonValue

from tidewire.protocol import strict_json
from tidewire_server.endpoints.endpoint import (
    DEFAULT,
    Columns,
    Default,
    Endpoint,
    OnRestart,
    Options,
    Resource,
)
from tidewire_server.errors import ItemError, UnknownEndpointError, refuse
from tidewire_server.http.routes import TidewireApp
from tidewire_server.jobs.endpoint_queues_and_groups import group_limits
from tidewire_server.jobs.job_service import JobService
from tidewire_server.log_writer.user_values import plain
from tidewire_server.metrics import Metrics
from tidewire_server.principals import ANONYMOUS
from tidewire_server.serving.port_file import PortFileError
from tidewire_server.settings import SWITCH_INTERVAL, Settings
from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.open_store import memory_of

F = TypeVar("F", bound=Callable[..., Any])

LOADING: Final[ContextVar[str | None]] = ContextVar("loading", default=None)
"""What `tidewire serve` imports just now: a server in it is not to run by itself, past the command's settings."""


class Server:
    """A server of endpoints.

    Example:
        server = Server()

        @server.endpoint
        async def count(n: int = 10) -> AsyncIterator[int]:
            for i in range(n):
                yield i

        server.run()
    """

    def __init__(self, *, settings: Settings | None = None, **options: Any) -> None:
        """Make a server without endpoints.

        Args:
            settings: All settings at once.
            options: Settings by name, over `settings`: `default_concurrency_limit=1`, `max_threads=40`,
                `heartbeat=15.0`, …; see `Settings` for all, with their bounds.

        Raises:
            pydantic.ValidationError: A setting is unknown or out of bounds.
        """
        self.settings = (settings or Settings()).but(**options)
        self.endpoints: dict[str, Endpoint] = {}
        self._app: TidewireApp | None = None
        self._closers: list[Callable[[], Awaitable[None]]] = []

    @overload
    def endpoint(self, function: F, /) -> F: ...
    @overload
    def endpoint(
        self,
        /,
        *,
        name: str | None = None,
        concurrency_limit: int | Default | None = DEFAULT,
        concurrency_group: str | None = None,
        max_queue_size: int | None = None,
        time_limit: float | None = None,
        on_restart: OnRestart = "rerun",
        columns: Columns | None = None,
        initial: Any = DEFAULT,
        validate: Callable[[Any], Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        examples: Iterable[JsonValue] = (),
        links: Mapping[str, Resource] | None = None,
        batch: bool = False,
        max_batch_size: int | None = None,
        batch_timeout: float | None = None,
        sizes: Iterable[int] | None = None,
        pad: Any = None,
        cost: Callable[[Any], float] | None = None,
        max_cost: float | None = None,
        key: Callable[[Any], Hashable] | None = None,
        bisect: bool = False,
    ) -> Callable[[F], F]: ...

    def endpoint(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        concurrency_limit: int | Default | None = DEFAULT,
        concurrency_group: str | None = None,
        max_queue_size: int | None = None,
        time_limit: float | None = None,
        on_restart: OnRestart = "rerun",
        columns: Columns | None = None,
        initial: Any = DEFAULT,
        validate: Callable[[Any], Any] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        examples: Iterable[JsonValue] = (),
        links: Mapping[str, Resource] | None = None,
        batch: bool = False,
        max_batch_size: int | None = None,
        batch_timeout: float | None = None,
        sizes: Iterable[int] | None = None,
        pad: Any = None,
        cost: Callable[[Any], float] | None = None,
        max_cost: float | None = None,
        key: Callable[[Any], Hashable] | None = None,
        bisect: bool = False,
    ) -> Any:
        """Make a function an endpoint. It stays callable as it was.

        The function may be plain (it runs in a worker thread), `async`, a generator of whole values of either kind,
        or have a parameter annotated `Stream[T]` and write to it. Its other parameters are the members of the input;
        one parameter annotated with a pydantic model is the input itself. The schema of the value comes from what it
        returns, yields, or from `T`. The docstring is the endpoint's description.

        Args:
            function: The function, where this is used as a decorator without options.
            name: The endpoint's name; the function's by default.
            concurrency_limit: Calls that run at a time; None for any number. By default the server's
                `default_concurrency_limit`.
            concurrency_group: Endpoints of one group share their slots: `concurrency_limit`, set at one of them, is
                that of all together. A GPU that two models share is a group of its own.
            max_queue_size: Items that may wait, 0 for none; by default the server's.
            time_limit: Seconds that the function may take for one item; then it fails with `deadline_exceeded`, and
                the function is cancelled. None for any time.
            on_restart: What becomes of items that ran when the server stopped, where jobs outlive it: they run again
                from the start, or, with "fail", fail with `worker_lost`: for functions that must not run twice.
            columns: JSON Pointers, within the value, of the places that grow; or a function of the input that returns
                them. A value that is a text is its own column.
            initial: The value of an item before its function has returned or written one; or a function of the input.
            validate: Called with each validated input before it is queued. A `ValueError` that it raises refuses the
                submit; the error's `member` and `code`, if it has them, say what is wrong. So does an `ItemError`.
            capabilities: Capabilities for discovery, in addition to those that the server finds: `{"logprobs":
                {"max_top": 20}}`, `{"rollback": False}`. Without `rollback` (text that was written may be taken
                back), it holds for generators, whose values may replace each other, and for streams whose function
                names `truncate`.
            examples: Valid inputs.
            links: Further resources under the endpoint's URL, by name: bytes, JSON, or a function that returns
                either.
            batch: The function takes many inputs in one call: a list of a pydantic model, or one list for each member
                of the input. It returns as many values, in the same order; one that is an `ItemError` or another
                exception fails its own input alone. A generator yields `{row: value}`, with `Append` and `Last`.
                Callers see no difference: they send one input, or many. The other options are for these.
            max_batch_size: Inputs in one call, at most. 16, or the largest of `sizes`.
            batch_timeout: Seconds that the oldest input waits for others, from its arrival, while a worker is idle.
                0: none; batches form while one runs.
            sizes: Sizes that a call may have; a smaller batch is filled up, and the values of the rows that fill it
                are dropped. For functions that are compiled for certain shapes.
            pad: The input that fills a batch up; by default the last one of the batch again.
            cost: The share of `max_cost` that an input takes: its tokens, its pixels. Called with the input, at the
                submit and again when it is queued.
            max_cost: What the inputs of one call may cost together. One that costs more is refused at the submit.
            key: Only inputs with equal keys share a call: a shape, the name of an adapter. Called as `cost` is.
            bisect: Where the function raises, call it again with each half of the inputs, until only those that make
                it raise have failed. The function is then called several times with one input.

        Raises:
            TypeError: The signature cannot be an endpoint's.
            ValueError: An option is wrong, or the name is taken.
            RuntimeError: The server runs.
        """
        options = Options(
            **{name: value for name, value in locals().items() if name not in {"self", "function"}}
        )

        def register(function: F) -> F:
            if self._app is not None and self._app.started:
                raise RuntimeError("this server runs: register its endpoints before it is started")
            endpoint = Endpoint(function, options)
            if endpoint.name in self.endpoints:
                raise ValueError(
                    f"there is an endpoint {endpoint.name!r} already; give this one another name"
                )
            group_limits([*self.endpoints.values(), endpoint])
            self.endpoints[endpoint.name] = endpoint
            return function

        return register if function is None else register(function)

    @property
    def app(self) -> TidewireApp:
        """The ASGI application, for any ASGI server. Its settings are fixed by the first use."""
        if self._app is None:
            self._app = TidewireApp(self.endpoints, self.settings, self._closers)
        return self._app

    def configure(self, **options: Any) -> None:
        """Change settings, before the server is first used.

        Raises:
            pydantic.ValidationError: A setting is unknown or out of bounds.
            RuntimeError: The server is in use.
        """
        if self._app is not None and options:
            raise RuntimeError("this server is in use: its settings are fixed")
        self.settings = self.settings.but(**options)

    def on_close(self, function: Callable[[], Awaitable[None]]) -> None:
        """Have something closed with the server: an engine, a pool. Called once, after all functions have ended."""
        self._closers.append(function)

    def concurrency_limit_of(self, endpoint: str) -> int | None:
        """How many calls of an endpoint run at a time, those of its group together; None for any number.

        Raises:
            UnknownEndpointError: There is no such endpoint.
        """
        found = self._endpoint(endpoint)
        limit = found.concurrency_limit
        if found.concurrency_group is not None:
            limit = group_limits(self.endpoints.values()).get(found.concurrency_group, DEFAULT)
        return self.settings.default_concurrency_limit if isinstance(limit, Default) else limit

    def run(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        port_file: str | os.PathLike[str] | None = None,
        listener: socket.socket | None = None,
        started: Callable[[str], None] | None = None,
        switch_interval: float = SWITCH_INTERVAL,
    ) -> None:
        """Serve until SIGINT or SIGTERM, then shut down gracefully.

        Args:
            host: The address to bind to.
            port: The port; 0 takes a free one.
            port_file: A file that gets the port's number once requests are answered, for whoever waits for it.
            listener: A socket that listens already, instead of host and port.
            started: Told the URL once requests are answered; by default it is printed.
            switch_interval: Seconds after which Python takes a busy thread's turn away, while this runs.

        Raises:
            SystemExit: The address cannot be bound to, or the log cannot be opened, or the port file not written: left
                alone, this ends the script with one line that says so, and with exit code 1.
            RuntimeError: An event loop runs on this thread, as in a notebook; or the server runs already.
        """
        from tidewire_server.serving import serve  # noqa: PLC0415 - an app for another ASGI server needs no uvicorn

        if (target := LOADING.get()) is not None:
            sys.exit(
                f'tidewire serve: {target} runs its server when it is imported; put that under `if __name__ == "__main__":`'
            )
        if _loop_runs():
            raise RuntimeError(
                "server.run() blocks, and an event loop runs on this thread already (a notebook?): "
                "`with server.running() as url:` serves from a thread while its block runs"
            )
        self._refuse_a_second_run()
        try:
            listener = listener or serve.bind(host, port)
        except OSError as error:
            sys.exit(error.strerror)
        try:
            serve.serve(
                self.app,
                self.settings,
                port_file=port_file,
                listener=listener,
                started=started,
                switch_interval=switch_interval,
            )
        except (StoreError, PortFileError) as error:
            listener.close()
            sys.exit(str(error))

    @contextlib.contextmanager
    def running(self, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve from a background thread while the block runs: `with server.running() as url: …`. For tests and notebooks.

        Yields:
            The URL; by default on a free port of this machine.

        Raises:
            OSError: The address cannot be bound to.
            StoreError: The log cannot be opened, or another server has it.
            RuntimeError: The server runs already.
        """
        from tidewire_server.serving.serve import in_background  # noqa: PLC0415

        self._refuse_a_second_run()
        with in_background(self.app, self.settings, host=host, port=port) as url:
            yield url

    def call(self, endpoint: str, /, **members: Any) -> JsonValue:
        """Run one sample in this process, through everything but sockets; for tests.

        Args:
            endpoint: The endpoint's name.
            members: The members of the input. For an endpoint whose input is one model these are the model's.

        Returns:
            The final value, as JSON.

        Raises:
            UnknownEndpointError: There is no such endpoint; names those that there are.
            ProblemError: The input was refused.
            ItemError: The function refused it, or gave what does not fit its schema.
            Exception: Whatever else the function raised.
        """
        found = self._endpoint(endpoint)
        if _loop_runs():
            raise RuntimeError(
                "server.call blocks; on a running event loop call it through asyncio.to_thread"
            )
        return asyncio.run(self._call(found, members))

    def _refuse_a_second_run(self) -> None:
        if self._app is not None and self._app.started:
            raise RuntimeError(
                "this server runs already: it has one queue and one log, and so one place to run at a time"
            )

    def _endpoint(self, name: str) -> Endpoint:
        try:
            return self.endpoints[name]
        except KeyError:
            raise UnknownEndpointError(name, self.endpoints) from None

    async def _call(self, endpoint: Endpoint, members: dict[str, Any]) -> JsonValue:
        service = JobService(self.endpoints, self.settings, Metrics(), memory_of(self.settings))
        try:
            record = (await service.submit(ANONYMOUS, endpoint, _body_of(members), None)).record
            job = await service.outcome(record)
            if job is not None and job.raised is not None:
                raise job.raised
            if record.done is not None and record.done.error is not None:
                error = record.done.error
                raise ItemError(error.detail or error.title, code=error.code)
            resource = await service.resource(record, "")
            value: JsonValue = (resource.state or {})["items"][0]["value"]
            return value
        finally:
            await service.close()


def _loop_runs() -> bool:
    """Whether this thread runs an event loop, so that blocking it would be to wait for oneself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _body_of(members: dict[str, Any]) -> bytes:
    try:
        return strict_json.dumps({"input": plain(members)}).encode()
    except ValueError as error:
        raise refuse("invalid_input", f"/input: {error}", pointer="/input") from None
