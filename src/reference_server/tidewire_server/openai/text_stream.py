"""Delivery of the texts of a job to one client: as the events of a stream (`TextStream`), or all at once (`whole_texts`)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from tidewire.protocol.problems import Problem, problem
from tidewire_server.errors import ProblemError
from tidewire_server.http.event_stream import HEADERS, STREAM
from tidewire_server.http.shared_response import slices
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender, GoneError, StalledError
from tidewire_server.openai.api_errors import ApiError, error_of
from tidewire_server.openai.completion_objects import EventWriter
from tidewire_server.openai.job_watch import JobWatch
from tidewire_server.openai.text_progress import RetractedError, TextChange, TextProgress
from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.records import JobRecord

COMMENT_HEARTBEATS: Final = 3
"""Number of heartbeats (the setting `heartbeat`) without an event after which a stream sends a comment: by default, 15 s."""

_COMMENT: Final = b": keep-alive\n\n"

_RETRACTED: Final = (
    "text of this response that was already sent is no longer part of it, because its job ran again; retrieve the response "
    "from the start"
)

_log = logging.getLogger(__name__)


class TextStream:
    """ASGI application that sends the events of one stream."""

    def __init__(
        self,
        watch: JobWatch,
        writer: EventWriter,
        progress: TextProgress,
        headers: Mapping[str, str],
        on_end: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare a stream.

        Args:
            watch: The reader of the job.
            writer: Encoder of the events.
            progress: Progress of the texts, of which nothing was read.
            headers: Additional response headers.
            on_end: Coroutine function that is called after the end of the stream.
        """
        self._watch = watch
        self._writer = writer
        self._progress = progress
        self._headers = [*HEADERS, *((name.lower().encode(), value.encode()) for name, value in headers.items())]
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the stream in the ASGI scope. See `EventStream.__call__`."""
        scope[STREAM] = partial(self._run, scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send_head: Send, send: Send) -> None:
        settings = self._watch.service.settings
        sender = BackpressuredSender(
            send_head,
            send,
            receive,
            scope["tidewire.http.response"],
            stall_timeout=settings.stall_timeout,
            gone=self._watch.disconnect,
        )
        try:
            with self._watch.attached():
                sender.begin(self._headers)
                if scope["method"] != "HEAD":
                    await self._send(sender, COMMENT_HEARTBEATS * settings.heartbeat)
                await sender.end(b"")
        except StalledError:
            self._watch.service.metrics.stalled.inc()
            await sender.abort()
        except (GoneError, ClientDisconnect):
            pass
        except asyncio.CancelledError:
            # See `EventStream`.
            if sender.behind() is None:
                raise
            await sender.abort()
        finally:
            sender.close()
            await self._on_end()

    async def _send(self, sender: BackpressuredSender, silence: float) -> None:
        failed: TextChange | None = None
        try:
            await sender.write(b"".join(self._writer.begin()) or _COMMENT)
            async for at in self._watch.states(silence):
                if at is None:
                    await sender.write(_COMMENT)
                    continue
                for change in self._progress.changes(at):
                    error = error_of_item(change)
                    shown = change if error is None else change._replace(item=None)
                    await _write(sender, b"".join(self._writer.change(shown)))
                    if error is not None:
                        failed = change
                        raise error
            record = await self._watch.ended_record()
            await _write(sender, b"".join(self._writer.end(record)))
            return
        except RetractedError:
            error = ApiError(500, _RETRACTED, code="text_retracted")
        except ApiError as found:
            error = found
        except ProblemError as found:
            error = error_of(found.problem, {})
        except (GoneError, StalledError, ClientDisconnect):
            raise
        except Exception as found:  # noqa: BLE001 - logged; the response has begun, so the error must be a part of it
            error = error_of(_unexpected(found, self._watch.job_id), {})
        await sender.write(b"".join(self._writer.fail(error.body, failed)))


async def whole_texts(
    watch: JobWatch, progress: TextProgress, receive: Receive
) -> tuple[Sequence[TextChange], JobRecord]:
    """Wait for the end of a job. Return the text of each item, and the record of the job.

    Args:
        watch: The reader of the job.
        progress: Progress of the texts, of which nothing was read.
        receive: ASGI `receive` of the request, whose body was read.

    Raises:
        ClientDisconnect: The client has disconnected.
        ApiError: An item has failed.
        ProblemError: The server stops, or the job was deleted.
        StoreError: The state of the job cannot be read.
    """
    listener = asyncio.create_task(_listen(receive, watch.disconnect))
    try:
        with watch.attached():
            last = None
            async for at in watch.states(COMMENT_HEARTBEATS * watch.service.settings.heartbeat):
                last = at or last
            record = await watch.ended_record()
    finally:
        listener.cancel()
    changes = [] if last is None else [*progress.changes(last)]
    for change in changes:
        if (error := error_of_item(change)) is not None:
            raise error
    return changes, record


def error_of_item(change: TextChange) -> ApiError | None:
    """Return the error of an item that has failed or was cancelled, or None."""
    if change.item is None or change.item["status"] == "succeeded":
        return None
    if change.item["error"] is None:
        return ApiError(400, "the generation was cancelled", code="cancelled")
    return error_of(Problem.model_validate(change.item["error"]), {})


async def _listen(receive: Receive, gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone()


async def _write(sender: BackpressuredSender, frames: bytes) -> None:
    for piece in slices(frames):
        await sender.write(piece)


def _unexpected(error: Exception, job: str) -> Problem:
    if isinstance(error, StoreError):
        if not error.logged:
            _log.error("closed a stream of job %s: %s", job, error)
        return problem("unavailable", "the server cannot read its stored jobs at the moment")
    _log.error("a stream of job %s failed", job, exc_info=error)
    return problem("internal", "the stream failed because of an internal error; the server's log has the details")
