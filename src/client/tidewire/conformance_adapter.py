"""Adapter with which the conformance suite tests this client. It reads and writes lines of JSON.

To run the adapter, use `tidewire conformance --client "python -m tidewire.conformance_adapter"`. By default, the suite tests
`AsyncClient` on asyncio. The option `--backend trio` selects trio, and `--blocking` selects `Client`. The document
`spec/scenarios/README.md` defines the format of the lines. The adapter uses only public names of `tidewire`, so that it can
serve as an example for other clients.
"""

import argparse
import inspect
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
    "id_fields",
)
AT_ONCE: Final = 32
"""Maximum number of commands that run at the same time."""
HOUR: Final = 3600.0

END_NAMES: Final[Mapping[type[Exception], str]] = {
    JobFailedError: "failed",
    JobCancelledError: "cancelled",
    UnsupportedProtocolError: "unsupported",
    ProtocolError: "protocol_error",
    RequestError: "refused",
    TransportError: "connection_error",
    CheckpointError: "usage_error",
}
"""Value of the member `end` of a report, by the type of the error. If several types match, the first entry applies."""

Command = Mapping[str, Any]
Report = dict[str, Any]
SendReport = Callable[[Report], None]


class _Reporter:
    """Creates and sends the reports of one command.

    The reports describe the updates that the client yields, and the outcome of the command.
    """

    def __init__(self, command: Command, send: SendReport) -> None:
        self.command, self.send = command, send
        self.kept: list[Any] = []

    def options(self, tls: ssl.SSLContext) -> dict[str, Any]:
        options: dict[str, Any] = {"verify": tls}
        if "credentials" in self.command:
            tokens = iter(self.command["credentials"])
            options["auth"] = lambda: {"Authorization": f"Bearer {next(tokens)}"}
        if "attempts" in self.command:
            options["retry"] = tidewire.RetryPolicy(attempts=self.command["attempts"])
        return options

    def job_of(self, client: Any) -> Any:
        """Submit the command's job or attach to it, and return the job. `AsyncClient` submits with a coroutine."""
        command = self.command
        if "inputs" in command:
            return client.submit_batch(command["endpoint"], command["inputs"])
        if command["do"] == "submit":
            return client.submit(command["endpoint"], command["input"])
        if "checkpoint" not in command:
            return client.job(command["job"])
        saved = tidewire.Checkpoint.from_json(json.dumps(command["checkpoint"]))
        return client.job(command["job"], checkpoint=saved)

    def saw(self, update: Any) -> None:
        self.kept.append(update)
        report = {"id": self.command["id"], "saw": "value", "value": update.value}
        if "inputs" in self.command:
            report["index"] = update.index
        elif update.deleted or update.text or isinstance(update.value, str):
            # If the value is a text, report every update, even if its text is empty and nothing was deleted.
            report |= {"deleted": update.deleted, "text": update.text}
        self.send(report)

    def at(self, update: Any, name: str) -> bool:
        return name in self.command and update.value == self.command[name]

    def end(self, name: str, **members: Any) -> Report:
        # Read the values of all earlier updates again, so that the suite can check that later events did not change them.
        return {
            "id": self.command["id"],
            "kept": [update.value for update in self.kept],
            "end": name,
            **members,
        }

    def stopped(self, job: Any) -> Report:
        return self.end("stopped", checkpoint=json.loads(job.checkpoint().to_json()))

    def items(self, results: list[Any]) -> Report:
        items = [_item(result) for result in results]
        ends = {item["status"] for item in items}
        name = "failed" if "succeeded" not in ends else "succeeded" if len(ends) == 1 else "partially_failed"
        return self.end(name, items=items)

    def failed(self, error: Exception, job: Any) -> Report:
        name = next((name for kind, name in END_NAMES.items() if isinstance(error, kind)), None)
        if name is None:
            raise error
        end = self.end(name, detail=str(error), incomplete=True)
        if job is not None and (state := job.checkpoint().state) is not None:
            end["value"] = state["items"][0]["value"]
        if (problem := getattr(error, "problem", None)) is not None:
            end["problem"] = problem.model_dump(exclude_none=True)
        if (status := getattr(error, "status_code", None)) is not None:
            end["status"] = status
        return end


def _item(result: Any) -> Report:
    if isinstance(result, ItemFailedError):
        return {"status": result.status, "code": result.code}
    return {"status": "succeeded", "value": result}


# ---- AsyncClient ---------------------------------------------------------------------------------------------------


async def run(command: Command, send: SendReport, tls: ssl.SSLContext) -> None:
    """Execute one command with `AsyncClient`."""
    reporter = _Reporter(command, send)
    job: Any = None
    async with tidewire.AsyncClient(command["base_url"], **reporter.options(tls)) as client:
        try:
            if command["do"] == "discover":
                await client.discover()
                end = reporter.end("discovered")
            else:
                found = reporter.job_of(client)
                job = await found if inspect.isawaitable(found) else found
                end = await _read(job, reporter)
                if "then_job" in command:
                    job = client.job(command["then_job"])
                    end = await _read(job, reporter)
        except Exception as error:  # noqa: BLE001 - `failed` raises unexpected errors again
            end = reporter.failed(error, job)
        send(end)


async def _read(job: Any, reporter: _Reporter) -> Report:
    async with job.updates() as updates:
        async for update in updates:
            reporter.saw(update)
            if reporter.at(update, "stop_at"):
                await updates.aclose()
                return reporter.stopped(job)
            if reporter.at(update, "cancel_at"):
                await job.cancel()
    if "inputs" in reporter.command:
        return reporter.items(await job.results(return_exceptions=True))
    return reporter.end("succeeded", value=await job.result(), incomplete=False)


# ---- Client --------------------------------------------------------------------------------------------------------


def run_blocking(command: Command, send: SendReport, tls: ssl.SSLContext) -> None:
    """Execute one command with `Client`."""
    reporter = _Reporter(command, send)
    job: Any = None
    with tidewire.Client(command["base_url"], timeout=HOUR, **reporter.options(tls)) as client:
        try:
            if command["do"] == "discover":
                client.discover()
                end = reporter.end("discovered")
            else:
                job = reporter.job_of(client)
                end = _read_blocking(job, reporter)
                if "then_job" in command:
                    job = client.job(command["then_job"])
                    end = _read_blocking(job, reporter)
        except Exception as error:  # noqa: BLE001 - `failed` raises unexpected errors again
            end = reporter.failed(error, job)
    send(end)


def _read_blocking(job: Any, reporter: _Reporter) -> Report:
    for update in job:
        reporter.saw(update)
        if reporter.at(update, "stop_at"):
            return reporter.stopped(job)
        if reporter.at(update, "cancel_at"):
            job.cancel()
    if "inputs" in reporter.command:
        return reporter.items(job.results(return_exceptions=True))
    return reporter.end("succeeded", value=job.result(), incomplete=False)


# ---- the program ---------------------------------------------------------------------------------------------------


def commands() -> Iterator[Command]:
    """Yield the commands from standard input until the command `bye` or the end of the input."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "bye":
            return
        yield command


def _writer() -> SendReport:
    lock = threading.Lock()

    def write(report: Report) -> None:
        line = json.dumps(report) + "\n"
        with lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    return write


async def _serve(send: SendReport, tls: ssl.SSLContext) -> None:
    requested = commands()
    async with anyio.create_task_group() as group:
        while (command := await anyio.to_thread.run_sync(next, requested, None)) is not None:
            group.start_soon(run, command, send, tls)
        group.cancel_scope.cancel()


def _serve_blocking(send: SendReport, tls: ssl.SSLContext) -> None:
    pool = ThreadPoolExecutor(AT_ONCE)
    for command in commands():
        pool.submit(run_blocking, command, send, tls)
    pool.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    """Print the client's name and its capabilities, then execute the commands from standard input."""
    parser = argparse.ArgumentParser(prog="python -m tidewire.conformance_adapter", description=__doc__)
    parser.add_argument("--blocking", action="store_true", help="test Client instead of AsyncClient")
    parser.add_argument(
        "--backend", choices=("asyncio", "trio"), default="asyncio", help="event loop for AsyncClient"
    )
    options = parser.parse_args()
    send = _writer()
    tls = ssl.create_default_context()
    # `tidewire` imports its modules on first use. Import them now, because an import during a scenario takes too long.
    with tidewire.Client("http://127.0.0.1:9", verify=tls):
        pass
    name = "Client" if options.blocking else f"AsyncClient on {options.backend}"
    send({"client": f"tidewire {name}", "can": TRAITS, "at_once": AT_ONCE})
    if options.blocking:
        _serve_blocking(send, tls)
    else:
        anyio.run(_serve, send, tls, backend=options.backend)


if __name__ == "__main__":
    main()
