"""Loops over `update.text` when the server retracts text: an error instead of a text that appears twice."""

import contextlib
import copy
import io
import logging
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from support.killable_server import Killed, killed_server
from support.sample_server import sentence
from support.scripted_server import CLOSE, STREAM, ScriptedServer, answer, done, event, hello
from support.scripted_server import job as job_body
from tidewire import AsyncClient, Checkpoint, Client, RetryPolicy
from tidewire.errors import VoidTextError
from tidewire.testing import FakeServer

RETRY = RetryPolicy(max_delay=0.1)
TALK: dict[str, Any] = {"words": 20, "pause": 0.02}
"""Input of a job that takes most of a second, so that it does not end before its server is killed on a busy machine."""
TEXT = sentence(20)
HOW_TO = Path(__file__).parents[2] / "docs/how-to/resume.md"


class Output(io.StringIO):
    """Output that calls a function once, after `after` characters were written to it."""

    def __init__(self, then: Callable[[], object], after: int = 30) -> None:
        super().__init__()
        self._then: Callable[[], object] | None = then
        self._after = after

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._then is not None and self.tell() >= self._after:
            then, self._then = self._then, None
            then()
        return count


def print_text(job: Any) -> None:
    """The loop of the README."""
    for update in job:
        print(update.text, end="", flush=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Killed]:
    with killed_server() as server:
        yield server


@pytest.fixture
def client(server: Killed) -> Iterator[Client]:
    with Client(server.url, retry=RETRY) as client:
        yield client


# ---- a real server that is killed --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_plain_loop_raises_when_a_killed_server_runs_the_job_again(server, client):
    job = client.submit("talk", **TALK)
    with contextlib.redirect_stdout(Output(server.again)) as output, pytest.raises(VoidTextError) as caught:
        print_text(job)
    printed = output.getvalue()
    assert TEXT.startswith(printed)
    assert f"retracted {len(printed)} code points at the end of the text" in str(caught.value)
    assert "because a new attempt of the job started" in str(caught.value)
    for name in ("update.deleted", "update.value", "iter_text_deltas()"):
        assert name in caught.value.advice
    assert "iter_text()" not in caught.value.advice, "the item has no member `stable`"
    # The job is not affected: the error retracted all text, and another loop yields the text of the new attempt.
    assert "".join(update.text for update in job) == job.result() == TEXT


async def test_the_plain_async_loop_raises_when_a_killed_server_runs_the_job_again(server):
    async with AsyncClient(server.url, retry=RETRY) as client:
        job = await client.submit("talk", **TALK)

        async def print_text() -> None:
            async for update in job:
                print(update.text, end="", flush=True)

        with contextlib.redirect_stdout(Output(server.again)) as output, pytest.raises(VoidTextError):
            await print_text()
        assert TEXT.startswith(output.getvalue())
        assert await job.result() == TEXT


def test_the_loop_over_a_batch_raises_when_a_killed_server_runs_it_again(server, client):
    job = client.submit_batch("talk", [TALK, TALK])
    with contextlib.redirect_stdout(Output(server.again)), pytest.raises(VoidTextError) as caught:
        print_text(job)
    assert "because a new attempt of the job started" in str(caught.value)
    assert "update.deleted" in caught.value.advice
    assert "iter_text" not in caught.value.advice, "a batch job has no such method"
    assert job.results() == [TEXT, TEXT]
    assert sorted(job.as_completed()) == [(0, TEXT), (1, TEXT)]


@pytest.mark.parametrize("kind", ["job", "batch_job"])
def test_the_loop_over_a_resumed_job_raises_at_its_first_update(server, client, kind):
    submit = {
        "job": lambda: client.submit("talk", **TALK),
        "batch_job": lambda: client.submit_batch("talk", [TALK]),
    }
    job = submit[kind]()
    text = ""
    for update in job:
        text += update.text
        if len(text) >= 30:
            break
    saved = Checkpoint.from_json(job.checkpoint().to_json())
    server.again()
    resumed = getattr(client, kind)(checkpoint=saved)
    with contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(VoidTextError) as caught:
        print_text(resumed)
    text += output.getvalue()
    assert TEXT.startswith(text), "nothing of the new attempt was delivered"
    assert f"retracted {len(text)} code points" in str(caught.value)


def test_a_checkpoint_between_two_retractions_of_one_event_keeps_the_second_one(server, client):
    """A checkpoint does not contain the cause of the retraction, so the error names both causes."""
    job = client.submit_batch("talk", [TALK, TALK])
    texts = ["", ""]
    for update in job:
        texts[update.index] += update.text
        if min(map(len, texts)) >= 30:
            break
    server.again()
    for update in job:
        if update.deleted:
            break
        texts[update.index] += update.text
    saved = Checkpoint.from_json(job.checkpoint().to_json())
    assert (update.index, len(saved.undelivered)) == (0, 1)
    with contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(VoidTextError) as caught:
        print_text(client.batch_job(checkpoint=saved))
    assert output.getvalue() == ""
    assert f"retracted {len(texts[1])} code points" in str(caught.value)
    assert "by a rollback or a new attempt of the job" in str(caught.value)


def test_a_loop_after_result_sees_only_the_net_effect_of_a_new_attempt(server, client):
    """The new attempt has written the same text again, so the update after `result()` retracts nothing."""
    job = client.submit("talk", **TALK)
    text = ""
    for update in job:
        text += update.text
        if len(text) >= 30:
            break
    server.again()
    assert job.result() == TEXT
    assert text + "".join(update.text for update in job) == TEXT


def test_the_program_for_resuming_survives_a_killed_server(server, monkeypatch, tmp_path):
    """The loop in docs/how-to/resume.md reads `deleted`, so it sees no error."""
    monkeypatch.chdir(tmp_path)
    program = re.search(r"^```python\n(.*?)^```$", HOW_TO.read_text(), re.DOTALL | re.MULTILINE)[1]
    program = program.replace("http://127.0.0.1:8000", server.url)
    program = program.replace('client.submit("story", hero="Ada")', f'client.submit("talk", **{TALK})')
    retracted = []

    def remember(text: str) -> None:
        if len(text) >= 30 and not retracted:
            retracted.append(text)
            server.again()

    # The program saves its text after each update. The first time that it has enough text, the server is killed.
    program = program.replace("SAVE_EVERY = 1.0", "SAVE_EVERY = 0.0")
    replace = "    os.replace(fresh, saved)\n"
    program = program.replace(replace, f"{replace}    then(text)\n")
    names: dict[str, Any] = {"then": remember}
    exec(program, names)
    assert names["text"] == TEXT
    assert retracted


# ---- which reads raise -------------------------------------------------------------------------------------------


def rollback_script(stable: dict[str, int] | None) -> Callable[[Any], Iterator[object]]:
    """Script of a job that writes "Held", and then replaces its end."""
    item = {"status": "running", "value": "Held"} | ({} if stable is None else {"stable": stable})
    body = {"status": "running", "items": [item], "usage": {}, "notes": []}

    def script(request: Any) -> Iterator[object]:
        if request.method == "POST":
            yield answer(201, job_body(body, columns=["/items/0/value"]))
        else:
            yield STREAM + hello()
            yield event([["t", "/items/0/value", 1], ["a", "/items/0/value", "lo"]], id="1-2")
            yield event([["s", "/items/0/status", "succeeded"]], id="1-3")
            yield done("1-4", [item | {"status": "succeeded", "value": "Hello"}])
            yield CLOSE

    return script


@pytest.fixture
def rolled_back() -> Iterator[Callable[[str], Any]]:
    """Return a function that submits a job, and returns its update that retracts text."""
    with ScriptedServer(rollback_script(None)) as server, Client(server.url) as client:

        def update_of(kind: str) -> Any:
            job: Any = client.submit("draft") if kind == "Update" else client.submit_batch("draft", [{}])
            updates = [*job]
            assert type(updates[1]).__name__ == kind
            return updates[1]

        yield update_of


def shown_by_rich(update: Any) -> str:
    output = io.StringIO()
    Console(file=output, width=200).print(update, [update])
    return output.getvalue()


def copied(update: Any) -> None:
    copy.copy(update)
    # The state of a job cannot be pickled, but the attempt must have no effect on the update either.
    with contextlib.suppress(TypeError, pickle.PicklingError, AttributeError):
        pickle.dumps(update)
    # Python caches the slots on the class, where `dir()` would show them to other tests.
    for kind in type(update).__mro__:
        if "__slotnames__" in vars(kind):
            del kind.__slotnames__


def logged(update: Any) -> str:
    return logging.LogRecord("test", logging.INFO, __file__, 1, "%s %r", (update, update), None).getMessage()


SHOWN: dict[str, Callable[[Any], object]] = {
    "repr": repr,
    "str": str,
    "a log record": logged,
    "rich": shown_by_rich,
    "the value": lambda update: update.value,
    "parse": lambda update: update.parse(),
    "its ids": lambda update: (update.id, update.seq, update.first_seq, update.cursor, update.status),
    "copies": copied,
    "dir": dir,
}


@pytest.mark.parametrize("kind", ["Update", "ItemUpdate"])
@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_showing_an_update_neither_raises_nor_counts_as_reading_deleted(rolled_back, kind, show):
    update = rolled_back(kind)
    show(update)
    show(update)
    with pytest.raises(VoidTextError):
        _ = update.text
    with pytest.raises(VoidTextError):
        _ = update.text
    assert update.deleted == 1
    show(update)
    assert update.text == "lo"


def test_the_rule_looks_at_each_update_alone():
    with FakeServer() as server, Client(server.url) as client:
        server.endpoint("talk").streams(["a", "b", "c"]).restarts_after(2)
        job = client.submit("talk")
        first = next(iter(job))
        assert (first.deleted, first.text) == (0, "a")  # this says nothing about the following updates
        with contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(VoidTextError):
            print_text(job)
        assert output.getvalue() == "b"
        assert "".join(update.text for update in job) == "abc"


@pytest.mark.parametrize("stable", [None, {"": 3}])
def test_a_rollback_raises_and_names_iter_text_only_where_the_item_has_stable(stable):
    with ScriptedServer(rollback_script(stable)) as server, Client(server.url) as client:
        job = client.submit("draft")
        with contextlib.redirect_stdout(io.StringIO()) as output, pytest.raises(VoidTextError) as caught:
            print_text(job)
        assert output.getvalue() == "Held"
        assert "retracted 1 code point at the end of the text, by a rollback" in str(caught.value)
        assert ("iter_text() yields only text that is stable" in str(caught.value)) == (stable is not None)
        assert job.result() == "Hello"


@pytest.mark.heavy
def test_iter_text_names_the_cause_too(server, client):
    job = client.submit("talk", **TALK)
    output = Output(server.again)
    with pytest.raises(VoidTextError, match="already yielded, because a new attempt of the job started"):
        output.writelines(job.iter_text())
    assert job.result() == TEXT
