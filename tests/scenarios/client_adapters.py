"""Adapters from the scenario player to `AsyncClient`, `Client`, and the JavaScript client."""

import json
import math
import ssl
import threading
from pathlib import Path

import anyio

import tidewire
from proof.reimplementations.plain_client import TRAITS
from tidewire.errors import (
    CheckpointError,
    JobCancelledError,
    JobFailedError,
    ProtocolError,
    RequestError,
    TotalTimeoutError,
    TransportError,
    UnsupportedProtocolError,
)
from tidewire_conformance.clients.player import AdapterHungError, ProgramAdapter

# Creating a TLS context takes longer than a whole scenario.
TLS = ssl.create_default_context()


class JavaScriptAdapter:
    """The JavaScript client, run as a program that starts on first use."""

    name = "JavaScript"
    traits = frozenset(TRAITS)
    argv = ("node", str(Path(__file__).parents[1] / "interop/javascript/client_adapter.mjs"))

    def __init__(self):
        self.program = None
        self.lock = threading.Lock()

    def run(self, command, report_event, seconds):
        with self.lock:
            self.program = self.program or ProgramAdapter(self.argv)
        self.program.run(command, report_event, seconds)

    def close(self):
        if self.program is not None:
            self.program.close()


class _ProjectClientAdapter:
    """Common code of the adapters for the clients of this project."""

    traits = frozenset(TRAITS)

    def __init__(self):
        self.kept = []

    @staticmethod
    def options(command):
        tokens = iter(command.get("credentials", ()))

        def auth():
            return {"Authorization": f"Bearer {next(tokens)}"}

        options = {"verify": TLS}
        if "credentials" in command:
            options["auth"] = auth
        if "attempts" in command:
            options["retry"] = tidewire.RetryPolicy(attempts=command["attempts"])
        return options

    @staticmethod
    def attached(client, command, name="job"):
        if "checkpoint" not in command:
            return client.job(command[name])
        saved = tidewire.Checkpoint.from_json(json.dumps(command["checkpoint"]))
        return client.job(command[name], checkpoint=saved)

    def update_report(self, command, update):
        self.kept.append(update)
        report = {"id": command["id"], "saw": "value", "value": update.value}
        if "inputs" in command:
            return report | {"index": update.index}
        # A text column that the value does not have yet is reported as an empty change.
        if update.deleted or update.text or isinstance(update.value, str):
            report |= {"deleted": update.deleted, "text": update.text}
        return report

    def at(self, command, update, name):
        return name in command and update.value == command[name]

    def end(self, command, error=None, job=None, value=None, items=None):
        end = {"id": command["id"], "kept": [update.value for update in self.kept]}
        if items is not None:
            statuses = {item["status"] for item in items}
            status_word = (
                "succeeded"
                if statuses == {"succeeded"}
                else "partially_failed"
                if "succeeded" in statuses
                else "failed"
            )
            return end | {"end": status_word, "items": items}
        if error is None:
            return end | {"end": "succeeded", "value": value, "incomplete": False}
        end |= {"end": word_of(error), "detail": str(error), "incomplete": True}
        if job is not None and (state := job.checkpoint().state) is not None:
            end["value"] = state["items"][0]["value"]
        if getattr(error, "problem", None) is not None:
            end["problem"] = error.problem.model_dump(exclude_none=True)
        if getattr(error, "status_code", None) is not None:
            end["status"] = error.status_code
        return end

    def stopped(self, command, job):
        updates_seen = [update.value for update in self.kept]
        checkpoint = json.loads(job.checkpoint().to_json())
        return {"id": command["id"], "end": "stopped", "checkpoint": checkpoint, "kept": updates_seen}


def word_of(error):
    """The word for an exception in the reports of an adapter."""
    words = {
        JobFailedError: "failed",
        JobCancelledError: "cancelled",
        UnsupportedProtocolError: "unsupported",
        ProtocolError: "protocol_error",
        RequestError: "refused",
        TransportError: "connection_error",
        CheckpointError: "usage_error",
    }
    for kind, status_word in words.items():
        if isinstance(error, kind):
            return status_word
    raise error


def item_of(result):
    if isinstance(result, tidewire.errors.ItemFailedError):
        return {"status": result.status, "code": result.code}
    return {"status": "succeeded", "value": result}


class AsyncAdapter(_ProjectClientAdapter):
    """`AsyncClient` on asyncio or trio, with one event loop per run."""

    def __init__(self, backend):
        self.backend = backend
        self.name = f"AsyncClient on {backend}"

    def run(self, command, report_event, seconds):
        run = _AsyncRun(command, report_event)
        try:
            anyio.run(run.within, seconds, backend=self.backend)
        except TimeoutError:
            raise AdapterHungError from None


class _AsyncRun(_ProjectClientAdapter):
    def __init__(self, command, report_event):
        super().__init__()
        self.command, self.tell = command, report_event

    async def within(self, seconds):
        with anyio.fail_after(seconds):
            async with tidewire.AsyncClient(self.command["base_url"], **self.options(self.command)) as client:
                self.tell(await self.act(client))

    async def act(self, client):
        command, job = self.command, None
        try:
            if command["do"] == "discover":
                await client.discover()
                return {"id": command["id"], "end": "discovered"}
            if "inputs" in command:
                job = await client.submit_batch(command["endpoint"], command["inputs"])
            elif command["do"] == "submit":
                job = await client.submit(command["endpoint"], command["input"])
            else:
                job = self.attached(client, command)
            end = await self.read(job)
            if "then_job" in command:
                job = client.job(command["then_job"])
                end = await self.read(job)
        except Exception as error:
            end = self.end(command, error, job)
        return end

    async def read(self, job):
        command = self.command
        async with job.updates() as updates:
            async for update in updates:
                self.tell(self.update_report(command, update))
                if self.at(command, update, "stop_at"):
                    await updates.aclose()
                    return self.stopped(command, job)
                if self.at(command, update, "cancel_at"):
                    await job.cancel()
        if "inputs" in command:
            results = await job.results(return_exceptions=True)
            return self.end(command, items=[item_of(result) for result in results])
        return self.end(command, value=await job.result())


class BlockingAdapter(_ProjectClientAdapter):
    """`Client`, with one thread per run."""

    name = "Client"

    def run(self, command, report_event, seconds):
        run = _BlockingRun()
        options = self.options(command)
        with tidewire.Client(command["base_url"], timeout=math.ceil(seconds), **options) as client:
            try:
                end = run.act(client, command, report_event)
            except TotalTimeoutError:
                raise AdapterHungError from None
        report_event(end)


class _BlockingRun(_ProjectClientAdapter):
    def act(self, client, command, report_event):
        job = None
        try:
            if command["do"] == "discover":
                client.discover()
                return {"id": command["id"], "end": "discovered"}
            if "inputs" in command:
                job = client.submit_batch(command["endpoint"], command["inputs"])
            elif command["do"] == "submit":
                job = client.submit(command["endpoint"], command["input"])
            else:
                job = self.attached(client, command)
            end = self.read(job, command, report_event)
            if "then_job" in command:
                job = client.job(command["then_job"])
                end = self.read(job, command, report_event)
        except TotalTimeoutError:
            raise
        except Exception as error:
            end = self.end(command, error, job)
        return end

    def read(self, job, command, report_event):
        for update in job:
            report_event(self.update_report(command, update))
            if self.at(command, update, "stop_at"):
                break
            if self.at(command, update, "cancel_at"):
                job.cancel()
        else:
            if "inputs" in command:
                results = job.results(return_exceptions=True)
                return self.end(command, items=[item_of(result) for result in results])
            return self.end(command, value=job.result())
        return self.stopped(command, job)
