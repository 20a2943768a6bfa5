"""Send the texts of a job to one client: as the events of a stream (`OpenAIStream`), or all at once (`whole_texts`)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from tidewire.protocol.problems import Problem
from tidewire_server import tracing
from tidewire_server.errors import ProblemError
from tidewire_server.http.event_stream import HEADERS, STREAM
from tidewire_server.http.problem_responses import failure
from tidewire_server.http.shared_response import slices
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender, GoneError, StalledError
from tidewire_server.openai.api_errors import ApiError, error_of
from tidewire_server.openai.completion_objects import CompletionWriter
from tidewire_server.openai.job_watch import JobWatch
from tidewire_server.openai.response_events import ResponseWriter
from tidewire_server.openai.text_progress import RetractedError, TextChange, TextProgress
from tidewire_server.store.records import JobRecord

_COMMENT: Final = b": keep-alive\n\n"

_RETRACTED: Final = (
    "the response no longer begins with the text that was sent before: its job ran again, or starting_after is not the number "
    "of one of its events; read the response again from the start"
)


class OpenAIStream:
    """ASGI application that sends the events of one stream."""

    def __init__(
        self,
        watch: JobWatch,
        writer: CompletionWriter | ResponseWriter,
        progress: TextProgress,
        headers: Mapping[str, str],
        on_end: Callable[[], Awaitable[None]] | None = None,
        *,
        holds_head: bool = False,
    ) -> None:
        """Prepare a stream. `progress` must be unused. `headers` are additional response headers, with names in lowercase.
        `on_end` is called after the end of the stream. With `holds_head`, the response begins only after `JobWatch.begun`, so
        that a job that fails before its first text is answered with the HTTP status of the error.
        """
        self._watch = watch
        self._writer = writer
        self._progress = progress
        self._headers = [*HEADERS, *((name.encode(), value.encode()) for name, value in headers.items())]
        self._on_end = on_end
        self._holds_head = holds_head
        self._span = tracing.start_stream(watch.record, resumed=writer.after >= 0)
        self._status = "disconnected"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the stream in the ASGI scope. See `EventStream.__call__`."""
        scope[STREAM] = partial(self._run, scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        service, connection = self._watch.service, scope["tidewire.http.response"]
        limit, gone = service.settings.stall_timeout, self._watch.disconnect
        sender = BackpressuredSender(send_head, send, receive, connection, stall_timeout=limit, gone=gone)
        try:
            async with sender:
                with self._watch.attached():
                    sender.begin(self._headers)
                    if scope["method"] != "HEAD":
                        await self._send(sender, Request(scope))
                    await sender.end(b"")
                    self._status = "done"
        finally:
            if sender.stalled:  # See `EventStream`.
                self._status = "stalled"
                service.metrics.stalled.inc()
            if self._span is not None:
                self._span.end(self._status)
            if self._on_end is not None:
                await self._on_end()

    async def _send(self, sender: BackpressuredSender, request: Request) -> None:
        unsent = self._writer.begin() or _COMMENT
        try:
            if self._holds_head:
                sender.listen()
                await self._watch.begun()
            else:
                await sender.write(unsent)
                unsent = b""
            async for at in self._watch.states():
                if at is None:
                    await sender.write(_COMMENT)
                    continue
                for change in self._progress.changes(at):
                    error = _error_of_item(change)
                    if error is None or change.text or change.reasoning or not unsent:
                        frames, unsent = unsent + self._writer.change(change), b""
                        await _write(sender, frames)
                    if error is not None:
                        raise error
                if unsent:
                    await sender.write(unsent)
                    unsent = b""
            await _write(sender, self._writer.end(await self._watch.ended_record()))
        except RetractedError:
            error = ApiError(500, _RETRACTED, code="text_retracted")
        except ApiError as found:
            error = found
        except ProblemError as found:
            error = error_of(found.problem)
        except (GoneError, StalledError, ClientDisconnect):
            raise
        except Exception as found:  # noqa: BLE001 - logged; a response that has begun must contain the error
            error = error_of(failure(request, found))
        else:
            return
        if unsent:
            self._watch.service.metrics.problems.labels(error.code).inc()
            response = error.response()
            sender.begin(response.raw_headers, response.status_code)
            await sender.write(bytes(response.body))
        else:
            await _write(sender, self._writer.fail(error.body))


async def whole_texts(
    watch: JobWatch, progress: TextProgress, receive: Receive
) -> tuple[Sequence[TextChange], JobRecord]:
    """Wait for the end of a job. Return the text of each item, and the record of the job. `receive` must belong to a request
    whose body has been read. Raise an `ApiError` if an item has failed, and the exceptions of `JobWatch.states`.
    """

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        watch.disconnect()

    listener = asyncio.create_task(listen())
    try:
        with watch.attached():
            last = None
            async for at in watch.states():
                last = at or last
            record = await watch.ended_record()
    finally:
        listener.cancel()
    changes = [] if last is None else [*progress.changes(last)]
    for change in changes:
        if (error := _error_of_item(change)) is not None:
            raise error
    return changes, record


def _error_of_item(change: TextChange) -> ApiError | None:
    """Return the error of an item that has failed or was cancelled, or None."""
    if change.item is None or change.item["status"] == "succeeded":
        return None
    if change.item["error"] is None:
        return ApiError(400, "the generation was cancelled", code="cancelled")
    return error_of(Problem.model_validate(change.item["error"]))


async def _write(sender: BackpressuredSender, frames: bytes) -> None:
    for piece in slices(frames):
        await sender.write(piece)
