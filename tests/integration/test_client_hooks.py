"""Hooks receive requests, reconnects, resyncs and job ends; an exception in a hook does not affect the call."""

import logging

import anyio
import pytest

from support.client_timing import session_of, with_timing
from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    hurried,
    job,
    snapshot,
    state,
)
from tidewire import AsyncClient, Client, Hooks
from tidewire.errors import EventLoopError
from tidewire.testing import FakeServer


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("talk").streams(["Hel", "lo"]).cuts_after(1)
        yield server


def recording_hooks(received, *, slow=False):
    """Hooks that append each event to a list: plain functions, or coroutine functions if `slow`."""

    def record_event(hook_event):
        received.append(hook_event)

    async def record_event_slowly(hook_event):
        await anyio.sleep(0)
        received.append(hook_event)

    hook = record_event_slowly if slow else record_event
    return Hooks(on_request=hook, on_reconnect=hook, on_resync=hook, on_end=hook)


def kinds(received):
    return [type(hook_event).__name__.removesuffix("Event") for hook_event in received]


CUT_ONCE = ["Request", "Request", "Reconnect", "Request", "End"]


@pytest.mark.parametrize("slow", [False, True])
def test_a_blocking_client_calls_its_hooks(server, slow):
    received = []
    with Client(server.url, hooks=recording_hooks(received, slow=slow)) as client:
        assert client.run("talk") == "Hello"
    assert kinds(received) == CUT_ONCE
    submit, stream, reconnect, again, end = received
    assert (submit.method, submit.status, submit.error) == ("POST", 201, None)
    assert (stream.url, stream.status) == (f"{server.url}/v1/jobs/job-1/events", 200)
    assert stream.seconds >= 0
    assert (reconnect.job_id, reconnect.cause, reconnect.last_event_id) == ("job-1", "cut", "1-3")
    assert again.method == "GET"
    assert (end.job_id, end.status) == ("job-1", "succeeded")


@pytest.mark.anyio
@pytest.mark.parametrize("slow", [False, True])
async def test_an_async_client_calls_its_hooks(server, slow):
    received = []
    async with AsyncClient(server.url, hooks=recording_hooks(received, slow=slow)) as client:
        assert [text async for text in (await client.submit("talk")).iter_text()] == ["Hel", "lo"]
    assert (
        kinds(
            [
                hook_event
                for hook_event in received
                if "endpoints/talk" not in getattr(hook_event, "url", "") or hook_event.method == "POST"
            ]
        )
        == CUT_ONCE
    )


def test_an_exception_in_a_hook_is_logged_and_the_call_succeeds(server, caplog):
    def fail(hook_event):
        raise KeyError("no such gauge")

    async def fail_slowly(hook_event):
        await anyio.sleep(0)
        raise KeyError("no such gauge")

    hooks = Hooks(on_request=fail, on_reconnect=fail_slowly, on_end=fail)
    with Client(server.url, hooks=hooks) as client:
        assert client.run("talk") == "Hello"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == len(CUT_ONCE)
    assert all(record.name == "tidewire" and record.exc_info for record in errors)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("slow", [False, True])
def test_an_exit_in_a_hook_of_a_blocking_client_is_logged_and_the_client_goes_on(server, caplog, error, slow):
    def leave(_):
        raise error("leaving")

    async def leave_slowly(_):
        await anyio.sleep(0)
        raise error("leaving")

    hook = leave_slowly if slow else leave
    with Client(server.url, hooks=Hooks(on_request=hook, on_reconnect=hook, on_end=hook)) as client:
        assert [client.run("talk"), "".join(client.submit("talk").iter_text())] == ["Hello"] * 2
    assert error.__name__ in caplog.text


@pytest.mark.anyio
async def test_an_exit_in_a_hook_of_an_async_client_ends_the_call(server):
    class Leave(BaseException):
        pass

    def leave(_):
        raise Leave

    async with AsyncClient(server.url, hooks=Hooks(on_end=leave)) as client:
        with pytest.raises(Leave):
            await client.run("talk")


def test_an_exit_in_the_auth_callback_of_a_blocking_client_reaches_the_caller(server):
    leaves = [True, False, True, False]

    def auth():
        if leaves.pop(0):
            raise SystemExit("no credentials")
        return {"Authorization": "Bearer t"}

    with Client(server.url, auth=auth) as client:
        with pytest.raises(SystemExit, match="no credentials"):
            client.run("talk")
        assert client.run("talk") == "Hello"
    with Client(server.url, auth=auth) as client:
        with pytest.raises(SystemExit, match="no credentials"):
            list(client.job("job-1"))
        assert client.run("talk") == "Hello"


def test_a_request_without_a_response_reaches_the_hook_with_its_error():
    received = []
    timing, _ = hurried()
    with ScriptedServer(lambda _: [CLOSE]) as server:
        with (
            with_timing(Client(server.url, hooks=recording_hooks(received)), timing) as client,
            pytest.raises(Exception, match="broke"),
        ):
            client.discover()
    assert {hook_event.status for hook_event in received} == {None}
    assert "the connection broke" in received[0].error


def resyncing(request):
    if request.method == "POST":
        yield answer(201, job())
    elif request.cursor:
        yield STREAM + hello() + event([["d", "/nowhere"]], id="1-2")
    else:
        value = {"status": "succeeded", "value": 1}
        yield STREAM + hello() + snapshot("1-1", state(1))
        yield event([["s", "/items/0/status", "succeeded"]], id="1-2") + done("1-3", [value])
        yield CLOSE


def test_a_resync_and_its_reconnect_reach_the_hooks_and_the_log(caplog):
    caplog.set_level(logging.DEBUG, "tidewire")
    received = []
    timing, _ = hurried()
    with (
        ScriptedServer(resyncing) as server,
        with_timing(Client(server.url, hooks=recording_hooks(received)), timing) as client,
    ):
        assert client.run("count") == 1
    assert kinds(received) == ["Request", "Request", "Resync", "Reconnect", "Request", "End"]
    assert (received[3].cause, received[3].last_event_id) == ("resync", None)
    levels = {record.levelno for record in caplog.records if "resync" in record.getMessage()}
    assert levels == {logging.WARNING}


def test_a_connection_that_breaks_once_prints_nothing_without_logging_configuration(
    server, capfd, monkeypatch
):
    monkeypatch.setattr(logging.root, "handlers", [])
    with Client(server.url) as client:
        assert client.run("talk") == "Hello"
    assert capfd.readouterr() == ("", "")


def test_an_exception_in_a_hook_is_printed_without_logging_configuration(server, capfd, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    with Client(server.url, hooks=Hooks(on_end=lambda _: 1 / 0)) as client:
        assert client.run("talk") == "Hello"
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.startswith("ignored an exception in the callback for EndEvent(")
    assert errors.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.anyio
async def test_cancelling_a_hook_leaves_no_connection_open():
    def script(request):
        if request.method == "POST":
            yield answer(201, job())
        else:
            yield STREAM + hello() + snapshot("1-1", state(1))
            yield from resyncing(request)

    async def hang(hook_event):
        if hook_event.url.endswith("/events"):
            await anyio.sleep_forever()

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url, hooks=Hooks(on_request=hang)) as client:
            found = await client.submit("count")
            with anyio.move_on_after(0.2):
                await found.result()
            assert not session_of(client).transport.open


def test_a_blocking_client_called_by_its_own_callback_says_so_and_the_call_goes_on(server):
    raised = []

    def call_the_client(event):
        try:
            client.discover()
        except EventLoopError as error:
            raised.append(str(error))

    with Client(server.url, hooks=Hooks(on_end=call_the_client)) as client:
        assert client.run("talk") == "Hello"
        assert client.run("talk") == "Hello"
    assert len(raised) == 2
    assert "a method of a blocking client was called in one of the client's own callbacks" in raised[0]
    assert "queue.Queue" in raised[0]
