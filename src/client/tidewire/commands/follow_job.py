"""Print the result of a job as it arrives, either in a format for a terminal or a pipe, or as lines of JSON."""

import shlex
from pathlib import Path
from typing import Any, Final

import typer

from tidewire.blocking.blocking_jobs import BatchJob, Job
from tidewire.commands import display, tables
from tidewire.errors import ItemFailedError, NoTextError, TidewireError, TotalTimeoutError, VoidTextError
from tidewire.sync import Client

INTERRUPTED: Final = 130
"""Exit code of a command that was interrupted with Ctrl+C."""


def follow(client: Client, job: Job[Any], screen: display.Screen, as_json: bool, uds: Path | None) -> None:
    """Print the results of a job until it ends."""
    job.listener = screen.show_progress
    try:
        if (job.item_count or len((job.read().state or {})["items"])) > 1:
            _follow_items(client.batch_job(job.id), screen, as_json)
        elif as_json:
            _follow_as_json(job, screen)
        elif screen.live:
            _follow_live(client, job, screen)
        else:
            _follow_into_pipe(client, job, screen, uds)
    except KeyboardInterrupt:
        job.listener = None
        screen.end_line()
        screen.note(
            f"interrupted; the job keeps running. To attach to the job, run: {_attach(client, job, uds)}"
        )
        raise typer.Exit(INTERRUPTED) from None
    except TotalTimeoutError as error:
        error.advice = f"The job keeps running. To attach to the job, run: {_attach(client, job, uds)}"
        raise


def _attach(client: Client, job: Job[Any], uds: Path | None) -> str:
    options = [] if uds is None else ["--uds", str(uds)]
    return shlex.join(["tidewire", "attach", client.url, job.id, *options])


def _follow_items(batch: BatchJob[Any], screen: display.Screen, as_json: bool) -> None:
    """Print one line for each item when the item ends.

    At the end, raise the error of the item that failed first, if any.
    """
    batch.listener = screen.show_progress
    failed: ItemFailedError | None = None
    for index, result in batch.as_completed():
        if isinstance(result, ItemFailedError):
            failed = failed or result
            screen.json({"type": "error", "item": index, "code": result.code, "message": str(result)})
        elif as_json:
            screen.json({"type": "result", "item": index, "job": batch.id, "value": result})
        else:
            screen.json({"item": index, "value": result})
    if failed is not None:
        raise failed


def _follow_live(client: Client, job: Job[Any], screen: display.Screen) -> None:
    texts = False
    with screen.waiting(f"job {job.id}"):
        for update in job:
            if update.deleted:
                screen.note_retraction(update.deleted)
            if update.text:
                texts = True
                screen.write(update.text)
            elif not texts:
                screen.show(update.value)
    screen.end_line()
    value = job.result()
    if not texts:
        screen.value(value)
    elif isinstance(value, dict) and "token_ids" in value:
        screen.out.print(tables.tokens(client.job(job.id).tokens()))


def _follow_into_pipe(client: Client, job: Job[Any], screen: display.Screen, uds: Path | None) -> None:
    texts = False
    try:
        for text in job.iter_text():
            texts = True
            screen.write(text)
    except NoTextError:
        pass
    except VoidTextError as error:
        screen.end_line()
        error.advice = (
            f"The text above is not the result. To get the result, run: {_attach(client, job, uds)} --json"
        )
        raise
    if not texts:
        screen.value(job.result())


def _follow_as_json(job: Job[Any], screen: display.Screen) -> None:
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
            screen.json(line if update.text or update.deleted else line | {"value": update.value})
        screen.json({"type": "result", "job": job.id, "value": job.result()})
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
