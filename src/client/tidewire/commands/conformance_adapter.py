"""This client as a program that a conformance suite can test: lines of JSON on standard input and output.

`tidewire conformance --client "python -m tidewire.under_test"`; with `--blocking` it is `Client` that is tested, with
`--backend trio` it is `AsyncClient` on trio. The lines are those of `spec/scenarios/README.md`. It uses nothing but
the public names, so that it can be read as an example of such a program.
"""

import argparse
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import anyio
import anyio.to_thread

import tidewire
from tidewire.errors import (
    CheckpointError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    ProtocolError,
    RequestError,
    TransportError,
    UnsupportedProtocolError,
)

TRAITS: Final = (
    "submit",
    "batch",
    "checkpoint",
    "cancel",
    "discover",
    "credentials",
    "attempts",
    "in_turn",
    "exact_json",
    "digests",
)
AT_ONCE: Final = 32
"""Commands that it does at a time."""
HOUR: Final = 3600.0

WORDS: Final[Mapping[type[Exception], str]] = {
    JobFailedError: "failed",
    JobCancelledError: "cancelled",
    UnsupportedProtocolError: "unsupported",
    ProtocolError: "protocol_error",
    RequestError: "refused",
    TransportError: "connection_error",
    CheckpointError: "usage_error",
}
"""What an error is called in a report; the first that fits."""

Command = Mapping[str, Any]
Report = dict[str, Any]
Tell = Callable[[Report], None]


class _Telling:
    """What the user of a client gets in one command, as reports."""

    def __init__(self, command: Command, tell: Tell) -> None:
        self.command, self.tell = command, tell
        self.kept: list[Any] = []

    def options(self, tls: ssl.SSLContext) -> dict[str, Any]:
        options: dict[str, Any] = {"verify": tls}
        if "credentials" in self.command:
            tokens = iter(self.command["credentials"])
            options["auth"] = lambda: {"Authorization": f"Bearer {next(tokens)}"}
        if "attempts" in self.command:
            options["retry"] = tidewire.RetryPolicy(max_attempts=self.command["attempts"])
        return options

    def saved(self) -> dict[str, Any]:
        """What to go on from, as an argument of `client.job`."""
        if "checkpoint" not in self.command:
            return {}
        return {"checkpoint": tidewire.Checkpoint.from_json(json.dumps(self.command["checkpoint"]))}

    def saw(self, update: Any) -> None:
        self.kept.append(update)
        report = {"id": self.command["id"], "saw": "value", "value": update.value}
        if "inputs" in self.command:
            report["index"] = update.index
        elif update.text or update.deleted or isinstance(update.value, str):
            # A text column that the value has not, or not yet, is told as an empty change.
            report |= {"deleted": update.deleted, "text": update.text}
        self.tell(report)

    def at(self, update: Any, name: str) -> bool:
        return name in self.command and update.value == self.command[name]

    def end(self, word: str, **members: Any) -> Report:
        # Read anew: what was handed over must still be what it was.
        return {
            "id": self.command["id"],
            "kept": [update.value for update in self.kept],
            "end": word,
            **members,
        }

    def stopped(self, job: Any) -> Report:
        return self.end("stopped", checkpoint=json.loads(job.checkpoint().to_json()))

    def items(self, results: list[Any]) -> Report:
        items = [_item(result) for result in results]
        ends = {item["status"] for item in items}
        word = "failed" if "succeeded" not in ends else "succeeded" if len(ends) == 1 else "partially_failed"
        return self.end(word, items=items)

    def broken(self, error: Exception, job: Any) -> Report:
        word = next((word for kind, word in WORDS.items() if isinstance(error, kind)), None)
        if word is None:
            raise error
        end = self.end(word, detail=str(error), incomplete=True)
        if job is not None and (state := job.checkpoint().state) is not None:
            end["value"] = state["items"][0]["value"]
        if (problem := getattr(error, "problem", None)) is not None:
            end["problem"] = problem.model_dump(mode="json", exclude_none=True)
        if (status := getattr(error, "status_code", None)) is not None:
            end["status"] = status
        return end


def _item(result: Any) -> Report:
    if isinstance(result, ItemFailedError):
        return {"status": result.status, "code": result.code}
    return {"status": "succeeded", "value": result}


# ---- AsyncClient ---------------------------------------------------------------------------------------------------


async def run(command: Command, tell: Tell, tls: ssl.SSLContext) -> None:
    """Do one command with `AsyncClient`."""
    telling = _Telling(command, tell)
    job: Any = None
    async with tidewire.AsyncClient(command["base_url"], **telling.options(tls)) as client:
        try:
            if command["do"] == "discover":
                await client.discover()
                end = telling.end("discovered")
            else:
                if "inputs" in command:
                    job = await client.submit_batch(command["endpoint"], command["inputs"])
                elif command["do"] == "submit":
                    job = await client.submit(command["endpoint"], command["input"])
                else:
                    job = client.job(command["job"], **telling.saved())
                end = await _read(job, telling)
                if "then_job" in command:
                    job = client.job(command["then_job"])
                    end = await _read(job, telling)
        except Exception as error:  # noqa: BLE001 - raised again where it is none of ours
            end = telling.broken(error, job)
        tell(end)


async def _read(job: Any, telling: _Telling) -> Report:
    async with job.updates() as updates:
        async for update in updates:
            telling.saw(update)
            if telling.at(update, "stop_at"):
                await updates.aclose()
                return telling.stopped(job)
            if telling.at(update, "cancel_at"):
                await job.cancel()
    if "inputs" in telling.command:
        return telling.items(await job.results(return_exceptions=True))
    return telling.end("succeeded", value=await job.result(), incomplete=False)


# ---- Client --------------------------------------------------------------------------------------------------------


def run_blocking(command: Command, tell: Tell, tls: ssl.SSLContext, seconds: float = HOUR) -> None:
    """Do one command with `Client`."""
    telling = _Telling(command, tell)
    job: Any = None
    with tidewire.Client(command["base_url"], timeout=seconds, **telling.options(tls)) as client:
        try:
            if command["do"] == "discover":
                client.discover()
                end = telling.end("discovered")
            else:
                if "inputs" in command:
                    job = client.submit_batch(command["endpoint"], command["inputs"])
                elif command["do"] == "submit":
                    job = client.submit(command["endpoint"], command["input"])
                else:
                    job = client.job(command["job"], **telling.saved())
                end = _read_blocking(job, telling)
                if "then_job" in command:
                    job = client.job(command["then_job"])
                    end = _read_blocking(job, telling)
        except Exception as error:  # noqa: BLE001 - raised again where it is none of ours
            end = telling.broken(error, job)
    tell(end)


def _read_blocking(job: Any, telling: _Telling) -> Report:
    for update in job:
        telling.saw(update)
        if telling.at(update, "stop_at"):
            return telling.stopped(job)
        if telling.at(update, "cancel_at"):
            job.cancel()
    if "inputs" in telling.command:
        return telling.items(job.results(return_exceptions=True))
    return telling.end("succeeded", value=job.result(), incomplete=False)


# ---- the program ---------------------------------------------------------------------------------------------------


def commands() -> Iterator[Command]:
    """What is asked on standard input, until `bye` or its end."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "bye":
            return
        yield command


def _writer() -> Tell:
    lock = threading.Lock()

    def write(report: Report) -> None:
        line = json.dumps(report) + "\n"
        with lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    return write


async def _serve(tell: Tell, tls: ssl.SSLContext) -> None:
    asked = commands()
    async with anyio.create_task_group() as group:
        while (command := await anyio.to_thread.run_sync(next, asked, None)) is not None:
            group.start_soon(run, command, tell, tls)
        group.cancel_scope.cancel()


def _serve_blocking(tell: Tell, tls: ssl.SSLContext) -> None:
    pool = ThreadPoolExecutor(AT_ONCE)
    for command in commands():
        pool.submit(run_blocking, command, tell, tls)
    pool.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    """Introduce the client, then do what is asked."""
    parser = argparse.ArgumentParser(prog="python -m tidewire.under_test", description=__doc__)
    parser.add_argument("--blocking", action="store_true", help="test Client in place of AsyncClient")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    given = parser.parse_args()
    tell = _writer()
    tls = ssl.create_default_context()
    # The names are imported when they are first used: not while a scenario's clock runs.
    with tidewire.Client("http://127.0.0.1:9", verify=tls):
        pass
    name = "Client" if given.blocking else f"AsyncClient on {given.backend}"
    tell({"client": f"tidewire {name}", "can": TRAITS, "at_once": AT_ONCE})
    if given.blocking:
        _serve_blocking(tell, tls)
    else:
        anyio.run(_serve, tell, tls, backend=given.backend)


if __name__ == "__main__":
    main()
