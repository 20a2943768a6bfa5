"""Print the result of a job as it arrives: as text on a terminal or in a pipe, or as lines of JSON."""

import copy
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer

from tidewire.blocking.blocking_jobs import BatchJob, Job
from tidewire.checkpoint import Checkpoint
from tidewire.commands import display
from tidewire.commands.exit_codes import INTERRUPTED, JOB_FAILED, SUCCESS
from tidewire.commands.live_view import TokenColors
from tidewire.commands.server_url import command_line
from tidewire.errors import (
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    NoTextError,
    TidewireError,
    TotalTimeoutError,
    VoidTextError,
)
from tidewire.protocol.document import json_pointer
from tidewire.protocol.messages import ENDED
from tidewire.protocol.resources import JobResource
from tidewire.sync import Client

CANCEL_WINDOW: Final = 1.0
"""Time after a Ctrl+C in which a second Ctrl+C cancels the job, in seconds."""
_END_TIMEOUT: Final = 10.0
"""Maximum time for the request of an ended job's notes and usage, in seconds."""
_VALUE: Final = "/items/0/value"
"""JSON Pointer of the value in the state of a job with one item."""


def follow(
    client: Client, job: Job[Any], screen: display.Screen, as_json: bool, *, from_now: bool = False
) -> None:
    """Print the results of a job until it ends, and then its notes and its usage.

    With `from_now`, the text that the job has already produced and the items that have already ended are not printed.
    """
    shown: Collection[int] = ()
    has_ended = False
    if from_now:
        read = job.read()
        state: dict[str, Any] = read.state or {}
        shown = {index for index, item in enumerate(state["items"]) if item["status"] in ENDED}
        has_ended = read.status in ENDED
        checkpoint = Checkpoint(
            job=read.id, url=client.url, state=state, columns=tuple(read.columns), cursor=read.cursor
        )
        job = client.job(checkpoint=checkpoint)
    with _watching(client, job, screen):
        if has_ended:
            screen.note("the job has already ended; to see its result, omit --from-now")
        total = job.item_count or len((job.read().state or {})["items"])
        if total > 1:
            _follow_items(client.batch_job(job.id), total, screen, as_json, shown)
        elif has_ended:
            job.result()  # raises an error if the job failed
        else:
            _follow_one(client, job, screen, as_json, from_now=from_now)
        if not as_json:
            _show_end(client, job, screen)


def _read_end(client: Client, job: Job[Any], screen: display.Screen) -> JobResource | None:
    """Request an ended job with its notes and its usage. If the request fails, print a note and return None.

    Do not let this error end the command: the outcome of the job has already been received, and would be lost.
    """
    try:
        return client.with_options(timeout=_END_TIMEOUT).job(job.id).read()
    except TidewireError as error:
        screen.note(f"the notes and the usage of the job cannot be read: {error.what}")
        return None


def _show_end(client: Client, job: Job[Any], screen: display.Screen) -> None:
    read = _read_end(client, job, screen)
    if read is not None:
        screen.show_end(read)


@contextmanager
def _watching(client: Client, job: Job[Any], screen: display.Screen) -> Iterator[None]:
    """Show the progress of a job during a `with` block.

    If the block is interrupted or times out, suggest the command that attaches to the job. If the job or an item did
    not succeed, show the notes and the usage of the job.
    """
    job.listener = screen.show_progress
    try:
        if screen.err.is_terminal:
            screen.note(f"job {job.id}")
        yield
    except KeyboardInterrupt:
        job.listener = None
        screen.end_line()
        attach, cancel = (_command(client, name, job, screen) for name in ("attach", "cancel"))
        screen.note(f"interrupted; the job keeps running. To attach to the job, run: {attach}")
        if screen.live:
            screen.note("To cancel the job, press Ctrl+C again now.")
            try:
                time.sleep(CANCEL_WINDOW)
            except KeyboardInterrupt:
                screen.note("cancelling the job … To give up, press Ctrl+C again.")
                status = job.cancel()
                screen.note(
                    "the server cancels the job" if status not in ENDED else f"the job has ended: {status}"
                )
                raise typer.Exit(SUCCESS if status == "succeeded" else JOB_FAILED) from None
        screen.note(f"To cancel the job, run: {cancel}")
        raise typer.Exit(INTERRUPTED) from None
    except display.OutputError as error:
        attach = _command(client, "attach", job, screen)
        raise display.OutputError(
            f"{error}. The job keeps running. To attach to the job, run: {attach}"
        ) from None
    except TotalTimeoutError as error:
        attach = _command(client, "attach", job, screen)
        error.advice = f"The job keeps running. To attach to the job, run: {attach}"
        raise
    except (JobFailedError, JobCancelledError, ItemFailedError):
        _show_end(client, job, screen)
        raise


def _command(client: Client, name: str, job: Job[Any], screen: display.Screen, *words: str) -> str:
    return command_line(client.url, name, job.id, *screen.options, *words)


def _follow_one(
    client: Client, job: Job[Any], screen: display.Screen, as_json: bool, *, from_now: bool
) -> None:
    if as_json:
        _follow_as_json(client, job, screen)
        return
    written: list[str] = []
    write_text(client, job, screen, written)
    screen.end_line()
    value = job.result()
    if not written:
        # With `attach --from-now`, do not print a text that has not grown since the command started.
        if not (from_now and isinstance(value, str)):
            screen.value(value)
    # The result of a text generation is the text.
    elif (
        isinstance(value, dict)
        and "finish_reason" not in value
        and (others := _without_text(value, job.checkpoint().columns))
    ):
        screen.value(others)


def _without_text(value: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a job's value without the member that was already printed as text.

    Args:
        value: Value of a job with one item.
        columns: JSON Pointers of the job's columns. The text is the first column that is a string.
    """
    for column in columns:
        others = copy.deepcopy(value)
        parent, name = None, ""
        found: Any = others
        for name in json_pointer.parse(column.removeprefix(_VALUE)):
            parent, found = found, found.get(name) if isinstance(found, dict) else None
        if isinstance(parent, dict) and isinstance(found, str):
            del parent[name]
            return others
    return value


def _follow_items(
    batch: BatchJob[Any], total: int, screen: display.Screen, as_json: bool, shown: Collection[int] = ()
) -> None:
    """Print one line for each item when the item ends, except for the items that were shown before.

    At the end, raise the error of the item that failed first, if any.
    """
    batch.listener = screen.show_progress
    failed: ItemFailedError | None = None
    with screen.live_view():
        for ended, (index, result) in enumerate(batch.as_completed(), 1):
            screen.status.show_items(ended, total)
            if index in shown:
                continue
            if isinstance(result, ItemFailedError):
                failed = failed or result
                screen.json({"type": "error", "item": index, "code": result.code, "message": str(result)})
            elif as_json:
                screen.json({"type": "result", "item": index, "job": batch.id, "value": result})
            else:
                screen.json({"item": index, "value": result})
    if failed is not None:
        raise failed


def write_text(client: Client, job: Job[Any], screen: display.Screen, written: list[str]) -> None:
    """Print the text of a job as it arrives, and append each piece to `written`. On a terminal, also show status lines."""
    if not screen.live:
        _write_into_pipe(client, job, screen, written)
        return
    colors = TokenColors()
    with screen.live_view():
        for update in job:
            colors.read(update._change)
            screen.status.show_update(update._change, colors.latest)
            if update.deleted:
                # The command cannot erase printed text, so it prints a note.
                screen.end_line()
                screen.note(
                    f"[the last {update.deleted} characters above were retracted; the text below replaces them]"
                )
                written[:] = ["".join(written)[: -update.deleted]]
            if update.text:
                written.append(update.text)
                screen.write(update.text, colors.paint(update.text))


def _write_into_pipe(client: Client, job: Job[Any], screen: display.Screen, written: list[str]) -> None:
    try:
        for text in job.iter_text():
            written.append(text)
            screen.write(text)
    except NoTextError:
        pass
    except VoidTextError as error:
        screen.end_line()
        again = _command(client, "attach", job, screen, "--json")
        error.what = error.what.replace(
            "this iterator had already yielded", "this command had already printed"
        )
        error.advice = f"The text above is not the result. To get the result, run: {again}"
        raise


def _follow_as_json(client: Client, job: Job[Any], screen: display.Screen) -> None:
    try:
        for update in job:
            line: dict[str, Any] = {
                "type": "update",
                "id": update.id,
                "first_seq": update.first_seq,
                "seq": update.seq,
                "deleted": update.deleted,
                "text": update.text,
            }
            # Omit the value if the update has text. Otherwise, each line would repeat the whole text, so that the size of
            # the output would grow quadratically.
            screen.json(line if line["text"] or line["deleted"] else line | {"value": update.value})
        value, ended = job.result(), _read_end(client, job, screen)
        notes = None if ended is None else (ended.state or {}).get("notes", [])
        usage = None if ended is None else {} if ended.done is None else ended.done.usage
        screen.json({"type": "result", "job": job.id, "value": value, "usage": usage, "notes": notes})
    except TidewireError as error:
        screen.json(
            {
                "type": "error",
                "job": job.id,
                "error": type(error).__name__,
                "code": error.code,
                "retryable": error.retryable,
                "last_event_id": error.last_event_id,
                "message": str(error),
            }
        )
        raise
