"""The public class `Server`, which registers functions as endpoints and serves them."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar, overload

from pydantic import JsonValue
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tidewire.protocol import strict_json
from tidewire_server.endpoints.batch_options import Workers
from tidewire_server.endpoints.endpoint import (
    DEFAULT,
    Columns,
    Default,
    Endpoint,
    OnRestart,
    Options,
    Resource,
)
from tidewire_server.endpoints.user_values import plain
from tidewire_server.errors import ItemError, UnknownEndpointError, WorkersUnavailableError, refuse
from tidewire_server.http.application import TidewireApp
from tidewire_server.jobs.endpoint_queues_and_groups import global_limits, group_limits
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.principals import ANONYMOUS, PrincipalFunction
from tidewire_server.serving.exposure_check import ExposedServerError
from tidewire_server.serving.log_format import set_up_logging
from tidewire_server.serving.port_file import PortFileError
from tidewire_server.settings import SWITCH_INTERVAL, Settings
from tidewire_server.store.open_store import memory_of
from tidewire_server.store.store_errors import StoreError

F = TypeVar("F", bound=Callable[..., Any])

ADDED_ROUTES: Final[list[Callable[[TidewireApp], Iterable[Route]]]] = []
"""Functions that every server passes to `add_routes`. The package fills this list, because the modules that define these
functions import this module.
"""

LOADING: Final[ContextVar[str | None]] = ContextVar("loading", default=None)
"""Name of the module that `tidewire serve` is importing, or None. `Server.run` raises an error during this import."""


class Server:
    """Server whose endpoints are Python functions.

    Example:
        server = Server()

        @server.endpoint
        async def count(n: int = 10) -> AsyncIterator[int]:
            for i in range(n):
                yield i

        server.run()
    """

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        principal: PrincipalFunction | None = None,
        **options: Any,
    ) -> None:
        """Create a server without endpoints.

        Args:
            settings: All settings in one object.
            principal: Function that authenticates callers in place of `tokens`, for a server inside an application with
                its own accounts. It is called with the ASGI scope of each request, and returns the caller's name, or
                None to reject the request with 401. Each caller has access only to jobs that were submitted under the same
                name. The function may be async, and must then return within `principal_timeout` seconds. If it raises an
                exception, the request gets 500, and the server's log contains the traceback. A name has at most 256
                printable characters, and must not be `anonymous`.
            options: Individual settings such as `default_concurrency_limit=1`, `max_threads=40` or `heartbeat=15.0`.
                They take precedence over `settings`. The class `Settings` lists all settings with their bounds.

        Raises:
            SettingsError: A setting is unknown, or its value is not valid. It is a ValueError.
            ValueError: There are both `principal` and `tokens`.
            TypeError: `principal` is not a function.
        """
        if principal is not None and not callable(principal):
            raise TypeError(f"principal must be a function with one argument, not {type(principal).__name__}")
        self._serving = _Serving(principal)
        self.settings = self._serving.checked((settings or Settings()).replace(**options))
        self.endpoints: dict[str, Endpoint] = {}

    @overload
    def endpoint(self, function: F, /) -> F: ...
    @overload
    def endpoint(
        self,
        /,
        *,
        name: str | None = None,
        concurrency_limit: int | Default | None = DEFAULT,
        global_limit: int | None = None,
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
        workers: Workers | None = None,
    ) -> Callable[[F], F]: ...

    def endpoint(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        concurrency_limit: int | Default | None = DEFAULT,
        global_limit: int | None = None,
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
        workers: Workers | None = None,
    ) -> Any:
        """Register a function as an endpoint. The decorator returns the function unchanged.

        The function may be synchronous or asynchronous, and may be a generator that yields complete values. Synchronous
        functions run in worker threads. The function may also write to a parameter that is annotated `Stream[T]`.

        Each yielded value other than an `Append` replaces the previous value. A generator that yields the pieces of a
        text, as in `yield token`, therefore ends with the last piece as its result. To add a piece, use `yield
        Append(token)`, or yield the whole text so far:

            @server.endpoint
            def chat(prompt: str) -> Iterator[Append[str]]:
                for token in generate(prompt):
                    yield Append(token)

        All other parameters are members of the input. If there is only one such parameter, and its annotation is a
        pydantic model, the model is the whole input. The value's schema is inferred from the return type, the yielded
        type, or `T`. The docstring becomes the endpoint's description.

        Args:
            function: The function, if this method is used as a decorator without arguments.
            name: Name of the endpoint. The default is the name of the function.
            concurrency_limit: Maximum number of concurrent calls, or None for no limit. The default is the server's
                `default_concurrency_limit`.
            global_limit: Maximum number of concurrent calls over all servers and workers of one database, or None for
                no limit. In a group of endpoints, it applies to the group. `concurrency_limit` counts in each
                process. If the log is in memory or in a file, there is only one process, and both limits apply to it.
            concurrency_group: Name of a group of endpoints that share one concurrency limit, for example because
                their models share a GPU. Set `concurrency_limit` on any endpoint of the group.
            max_queue_size: Maximum number of items that wait for a call. It may be 0. The default is the server's
                setting.
            time_limit: Number of seconds after which an item fails with `deadline_exceeded` and its function is
                cancelled, or None for no limit.
            on_restart: How the server treats items that were running when it stopped, unless the log is in memory.
                With "rerun", the restarted server runs them again from the start. With "fail", they fail with
                `worker_lost`. Use "fail" for functions that must not run twice. With "continue", the restarted server
                keeps their logged values and runs them again. Use "continue" for functions that read `ctx.previous`
                and continue from there.
            columns: JSON Pointers of the texts and arrays within the value to which the endpoint's function appends.
                Instead of a list, this can be a function of the input, as in `lambda given:
                [f"/{len(given.history)}/text"]`. If the endpoint's function takes a pydantic model, functions in
                options are called with this model. Otherwise they are called with an object that has the parameters
                of the endpoint's function as attributes. If the value is a text, the default is the value itself.
                This is also the default of a generator without an annotation if its first value is a text.
            initial: Value of an item until its function produces the first value, or a function that computes this
                value from the input.
            validate: Function that checks each input that matches the schema. To reject the client's request, this
                function raises an `ItemError` or a `ValueError`. A `ValueError` can have the attributes `member`
                (name of the invalid member) and `code` (error code).
            capabilities: Capabilities for the discovery document, such as `{"logprobs": {"max_top": 20}}` or
                `{"rollback": False}`. They take precedence over the capabilities that the server detects. The server
                declares `rollback` for every generator and every function with a stream. With `{"rollback": False}`,
                you promise that the function never removes or replaces text. If the function does so nevertheless,
                its job fails.
            examples: Valid inputs, shown in discovery.
            links: Additional resources that the server offers under the endpoint's URL, as a mapping from names to
                contents. Each content is bytes, a JSON value, or a function that returns bytes or a JSON value.
            batch: Whether each call of the function processes many inputs. The function takes a list of a pydantic
                model, or one list for each member of the input, and returns the values in the same order. If the
                returned list contains an `ItemError` or another exception, only the corresponding input fails. A
                generator yields `{row: value}`, where the value can be an `Append` or a `Last`. Clients submit inputs
                as usual. All options below require `batch`.
            max_batch_size: Maximum number of inputs per call. The default is 16, or the largest of `sizes`.
            batch_timeout: Number of seconds that a call waits for more inputs, counted from the arrival of the oldest
                waiting input. With 0, a call starts at once if the function is idle, so that batches form only while
                another call is running.
            sizes: Allowed batch sizes, for functions that are compiled for fixed shapes. A smaller batch is padded,
                and the values of the padding rows are discarded.
            pad: Input that is used for padding. The default is the last input of the batch.
            cost: Function that returns the cost of an input, for example its number of tokens or pixels. The server
                calls this function when the input is submitted, and again when the input is queued.
            max_cost: Maximum total cost of the inputs in one call. An input with a higher cost is rejected.
            key: Function that returns the batch key of an input, for example its shape or its adapter. Only inputs
                with equal keys share a batch. The server calls this function when it calls `cost`.
            bisect: Whether the server splits a batch that raised an exception into halves, and retries each half
                separately. The server repeats this until only the inputs that cause the exception have failed. The
                function is then called several times with the same input.
            workers: Workers that call the function outside of the server's process, such as `ray_workers(4,
                num_gpus=1)`. The endpoint can then be a class: each worker creates an instance, which loads the
                model, and calls it for each batch. The default of `concurrency_limit` is the number of workers. If a
                cancelled item does not end within `cancel_timeout`, its worker is replaced. When a worker dies or is
                replaced, `on_restart` applies to its other items. The function must not be async, and must not accept
                further inputs while it runs.

        Raises:
            TypeError: The function's signature is not supported.
            ValueError: An option is not valid, or the name is already in use.
            RuntimeError: The server is already running.
        """
        options = Options(
            **{name: value for name, value in locals().items() if name not in {"self", "function"}}
        )

        def register(function: F) -> F:
            if self._serving.started:
                raise RuntimeError("the server is already running; register all endpoints before it starts")
            endpoint = Endpoint(function, options)
            if endpoint.name in self.endpoints:
                raise ValueError(
                    f"an endpoint named {endpoint.name!r} is already registered; choose another name"
                )
            group_limits([*self.endpoints.values(), endpoint])
            global_limits([*self.endpoints.values(), endpoint])
            self.endpoints[endpoint.name] = endpoint
            return function

        return register if function is None else register(function)

    @property
    def app(self) -> TidewireApp:
        """ASGI application, which any ASGI server can run. Settings cannot be changed after the first access."""
        serving = self._serving
        if serving.app is None:
            serving.app = TidewireApp(
                self.endpoints, self.settings, serving.closers, serving.principal, serving.routes
            )
        return serving.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection like `app`, so that `uvicorn program:server` also works."""
        await self.app(scope, receive, send)

    def configure(self, **options: Any) -> None:
        """Change settings. This method must be called before the server is first used.

        Raises:
            SettingsError: A setting is unknown, or its value is not valid. It is a ValueError.
            ValueError: The server has a function `principal`, and `tokens` are set.
            RuntimeError: `app` has been accessed, or the server is running.
        """
        if self._serving.app is not None and options:
            raise RuntimeError("settings cannot be changed once the server or its app is in use")
        self.settings = self._serving.checked(self.settings.replace(**options))

    def on_close(self, function: Callable[[], Awaitable[None]]) -> None:
        """Register a coroutine function to call when the server closes, after all endpoint functions have ended."""
        self._serving.closers.append(function)

    def add_routes(self, routes: Callable[[TidewireApp], Iterable[Route]]) -> None:
        """Add routes to the application, in addition to the routes of the protocol.

        Args:
            routes: Function that returns the routes. They are matched after the routes of the protocol. The function is
                called once, when `app` is first accessed. It must not use the application's `service`, which starts later.

        Raises:
            RuntimeError: `app` has been accessed, or the server is running.
        """
        if self._serving.app is not None:
            raise RuntimeError("routes cannot be added once the server or its app is in use")
        self._serving.routes.append(routes)

    def concurrency_limit_of(self, endpoint: str) -> int | None:
        """Return the concurrency limit of an endpoint or of its group, or None if there is no limit.

        Raises:
            UnknownEndpointError: The server has no endpoint with this name.
        """
        found = _find(self.endpoints, endpoint)
        limit = found.concurrency_limit
        if found.concurrency_group is not None:
            limit = group_limits(self.endpoints.values()).get(found.concurrency_group, DEFAULT)
        return self.settings.default_concurrency_limit if isinstance(limit, Default) else limit

    def run(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        uds: str | os.PathLike[str] | None = None,
        port_file: str | os.PathLike[str] | None = None,
        listener: socket.socket | None = None,
        started: Callable[[str], None] | None = None,
        switch_interval: float = SWITCH_INTERVAL,
    ) -> None:
        """Serve until SIGINT or SIGTERM, then shut down gracefully.

        If logging is not configured, warnings and errors are logged to stderr.

        Args:
            host: Address to bind to.
            port: Port to bind to, or 0 for any free port.
            uds: Path of a Unix domain socket to bind to instead of `host` and `port`. Only the user who runs the server can
                connect to it.
            port_file: File to write the port number to when the server is ready, for programs that wait for the server.
            listener: Listening socket to use instead of `host` and `port`.
            started: Function that is called with the URL when the server is ready. By default, the URL is printed.
            switch_interval: Python's thread switch interval in seconds (`sys.setswitchinterval`) while the server runs.

        Raises:
            SystemExit: The address cannot be bound, the log cannot be opened, or the port file cannot be written. The same
                exception is raised if other machines can reach the address although the server has no tokens or `debug`
                is on. If it is not caught, Python prints the reason in one line and exits with code 1.
            RuntimeError: The thread already runs an event loop, as in a notebook, or the server is already running.
        """
        from tidewire_server.serving import serve  # noqa: PLC0415 - other ASGI servers do not need uvicorn
        from tidewire_server.serving.listener import bind  # noqa: PLC0415

        if (target := LOADING.get()) is not None:
            sys.exit(
                f'tidewire serve: {target} runs its server on import; move the call under `if __name__ == "__main__":`'
            )
        if _has_running_loop():
            raise RuntimeError(
                "server.run() cannot block this thread, which already runs an event loop (a notebook?); "
                "use `with server.running() as url:` to serve from a background thread"
            )
        self._serving.check_not_running()
        set_up_logging()
        try:
            listener = listener or bind(host, port, uds=uds)
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
        except (ExposedServerError, StoreError, WorkersUnavailableError, PortFileError) as error:
            listener.close()
            sys.exit(str(error))

    @contextlib.contextmanager
    def running(
        self, *, host: str = "127.0.0.1", port: int = 0, uds: str | os.PathLike[str] | None = None
    ) -> Iterator[str]:
        """Serve from a background thread during a `with` block, for tests and notebooks.

        Example: `with server.running() as url: …`

        Args:
            host: Address to bind to.
            port: Port to bind to, or 0 for any free port.
            uds: Path of a Unix domain socket to bind to instead of `host` and `port`. Only the user who runs the server can
                connect to it.

        Yields:
            The URL of the server. By default, the server listens on a free port of the loopback interface. With `uds`,
            a client also needs the path of the socket: `Client(url, uds=path)`.

        Raises:
            OSError: The address cannot be bound.
            ExposedServerError: Other machines can reach the address, although the server has no tokens or `debug` is
                on.
            StoreError: The log cannot be opened, or another server is using it.
            WorkersUnavailableError: The workers of an endpoint cannot be started.
            RuntimeError: The server is already running.
        """
        from tidewire_server.serving.listener import bind  # noqa: PLC0415
        from tidewire_server.serving.serve import in_background  # noqa: PLC0415

        self._serving.check_not_running()
        with in_background(self.app, self.settings, bind(host, port, uds=uds)) as url:
            yield url

    def call(self, endpoint: str, /, **members: Any) -> Any:
        """Run one job in this process, without sockets, and return its value. This is useful in tests.

        Args:
            endpoint: Name of the endpoint.
            members: Members of the input. If the input is a pydantic model, these are the members of the model.

        Returns:
            The final value, as JSON.

        Raises:
            UnknownEndpointError: The server has no endpoint with this name.
            ProblemError: The input is not valid.
            ItemError: The function raised an `ItemError`, or its value does not match the schema.
            WorkersUnavailableError: The workers of the endpoint cannot be started.
            Exception: Any other exception that the function raised.
        """
        found = _find(self.endpoints, endpoint)
        if _has_running_loop():
            raise RuntimeError(
                "server.call() cannot block this thread, which runs an event loop; use asyncio.to_thread"
            )
        return asyncio.run(_call(self, found, members))


class _Serving:
    """The application of a server, and the functions that were registered for it.

    Attributes:
        app: The application; None until it is first accessed.
        closers: Functions that were registered with `Server.on_close`, to call when the application closes.
        routes: Functions that were registered with `Server.add_routes`.
        principal: Function that returns the name of a caller, or None.
    """

    def __init__(self, principal: PrincipalFunction | None) -> None:
        self.app: TidewireApp | None = None
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.routes = [*ADDED_ROUTES]
        self.principal = principal

    def checked(self, settings: Settings) -> Settings:
        """Check that `principal` and `tokens` are not both set, and return the settings.

        Raises:
            ValueError: Both are set.
        """
        if self.principal is not None and settings.tokens:
            raise ValueError(
                "the server has a function `principal`, which authenticates callers, so it must not have `tokens`; remove "
                "one of the two"
            )
        return settings

    @property
    def started(self) -> bool:
        return self.app is not None and self.app.lifespan.started

    def check_not_running(self) -> None:
        if self.started:
            raise RuntimeError("this server is already running; stop it before it is started again")


def _find(endpoints: Mapping[str, Endpoint], name: str) -> Endpoint:
    try:
        return endpoints[name]
    except KeyError:
        raise UnknownEndpointError(name, endpoints) from None


async def _call(server: Server, endpoint: Endpoint, members: dict[str, Any]) -> JsonValue:
    # Turn off `max_body_values`. This limit protects other callers from a blocked event loop, but here is only one caller.
    settings = server.settings.replace(max_body_values=sys.maxsize)
    service = JobService(server.endpoints, settings, Metrics(), memory_of(settings))
    try:
        if endpoint.workers is not None:
            await endpoint.workers.start(settings.cancel_timeout)
        record = (await service.submit(ANONYMOUS, endpoint, _submit_body(members), None)).record
        job = await service.outcome(record)
        if job is not None and job.raised is not None:
            raise job.raised
        if record.done is not None and record.done.error is not None:
            error = record.done.error
            raise ItemError(error.detail or error.title, code=error.code)
        return (await (await service.log(record)).state()).view.value("/items/0/value")
    finally:
        await service.close()


def _has_running_loop() -> bool:
    """Return whether an event loop is running in this thread. If so, a blocking call would stop the event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _submit_body(members: dict[str, Any]) -> bytes:
    try:
        return strict_json.dumps({"input": plain(members)}).encode()
    except ValueError as error:
        raise refuse("invalid_input", f"/input: {error}", pointer="/input") from None
