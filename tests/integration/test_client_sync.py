"""The blocking client: threads, blocks of updates, interrupts, forks and shutdown."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import queue
import random
import select
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from support.leak_checks import drop
from support.scripted_server import (
    CLOSE,
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    endpoint,
    event,
    hello,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import Checkpoint, Client, Hooks
from tidewire.blocking import event_loop_thread
from tidewire.errors import (
    ClientClosedError,
    ConcurrentReadError,
    JobFailedError,
    JobNotFoundError,
    TotalTimeoutError,
)
from tidewire.jobs.job_reader import BLOCK

pytestmark = pytest.mark.usefixtures("nothing_is_left")

TEXT = "/items/0/value"
COUNT = 3 * BLOCK


def talking(*, hold=False):
    """Script for a job that sends many small pieces at once, and then its end or silence."""
    pieces = b"".join(event("x", id=f"1-{seq}") for seq in range(3, COUNT + 3))
    items = [{"status": "queued", "value": "x" * (COUNT + 1)}]

    def script(request):
        if request.method == "POST":
            yield (
                answer(202, job(state("x")))
                if request.path.endswith("/cancel")
                else answer(201, job(columns=[TEXT]))
            )
        elif request.path == "/v1":
            yield answer(200, discovery("count"))
        elif request.path == "/v1/jobs":
            yield answer(200, {"jobs": [job(id="j2"), job(id="j1")]})
        elif request.path.startswith("/v1/endpoints/"):
            yield answer(200, endpoint())
        elif request.path == "/v1/jobs/nope":
            yield problem(404, "job_not_found")
        elif not request.path.endswith("/events"):
            yield answer(200, job(state("x")))
        else:
            after = int((request.cursor or "1-1").partition("-")[2])
            opening = b"" if request.cursor else snapshot("1-1", state(None, status="queued"), columns=[TEXT])
            first = event([["s", TEXT, "x"]], id="1-2") if after < 2 else b""
            _, at, rest = pieces.partition(f"id:1-{max(after, 2) + 1}\n".encode())
            rest = at + rest
            yield STREAM + hello() + opening + first + rest
            yield HOLD if hold else done(f"1-{COUNT + 3}", items)
            yield CLOSE

    return script


EARLIER_THREADS = set()
"""Client threads that were running when the test began; threads of earlier tests may end while this one runs."""


def threads():
    return [
        one for one in threading.enumerate() if one.name == "tidewire-client" and one not in EARLIER_THREADS
    ]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    EARLIER_THREADS.clear()
    EARLIER_THREADS.update(threads())
    yield
    gc.collect()
    for thread in threads():
        thread.join(10)
    assert threads() == []


def test_a_blocking_client_submits_reads_and_waits():
    with ScriptedServer(talking()) as server, Client(server.url) as client:
        started = client.submit()
        updates = list(started)
        assert len(updates) == COUNT + 1
        assert "".join(update.text for update in updates) == "x" * (COUNT + 1)
        assert updates[4].value == "x" * 5
        assert started.result() == client.run("count", n=1) == "x" * (COUNT + 1)
        assert (started.id, started.ended) == ("j1", True)


def test_every_call_has_a_blocking_form():
    with ScriptedServer(talking()) as server, Client(server.url) as client:
        assert [endpoint.name for endpoint in client.discover().endpoints] == ["count"]
        assert client.describe().name == "count"
        assert [found.id for found in client.jobs(limit=1)] == ["j2"]
        attached = client.job("j1")
        assert (attached.status(), attached.read().endpoint, attached.cancel()) == (
            "running",
            "count",
            "running",
        )
        assert "".join(client.job("j1").iter_text()) == "x" * (COUNT + 1)
        assert sum(len(delta.text) for delta in client.job("j1").iter_text_deltas()) == COUNT + 1
        with pytest.raises(JobNotFoundError):
            client.job("nope").status()


def test_a_client_used_without_with_warns_and_ends_when_collected():
    with ScriptedServer(talking(hold=True)) as server:
        client = Client(server.url)
        started = client.submit("count")
        next(iter(started))
        del client
        assert started.status() == "running"
        assert len(threads()) == 1
        held = [started]
        del started
        with pytest.warns(ResourceWarning, match="was not closed") as warned:
            drop(held)
        assert len(warned) == 1
        server.wait_until_none_is_open()


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
def test_a_client_is_collected_although_its_hooks_and_auth_refer_to_it(closed):
    def use(url):
        def auth():
            return {"Authorization": f"Bearer {id(client)}"}

        client = Client(url, auth=auth, hooks=Hooks(on_end=lambda _: client.job("j1")))
        client.run("count")
        # The stream of this job is open and unread.
        client.submit("count")
        if closed:
            client.close()
        return weakref.ref(client)

    with ScriptedServer(talking()) as server:
        gone = use(server.url)
        with contextlib.nullcontext() if closed else pytest.warns(ResourceWarning, match="was not closed"):
            gc.collect()
        assert gone() is None
        server.wait_until_none_is_open()


def test_no_thread_starts_before_the_first_call():
    client = Client("http://127.0.0.1:1")
    client.job("j1")
    assert threads() == []
    client.close()


def test_leaving_a_loop_closes_the_socket_and_the_next_loop_continues():
    with ScriptedServer(talking(hold=True)) as server, Client(server.url) as client:
        started = client.submit("count")
        seqs = []
        for update in started:
            seqs.append(update.seq)
            if len(seqs) == 5:
                break
        server.wait_until(
            lambda: server.open <= 1
        )  # The kept-alive connection of the submit may remain open.
        for update in started:
            seqs.append(update.seq)
            if len(seqs) == 10:
                break
        assert seqs == list(range(2, 12))


@pytest.fixture
def read_ahead():
    """A loop over a job that has received its first update, and a function that sends more events while the body of the
    loop runs, and waits until the client has read them.
    """
    pieces, seen = SimpleQueue(), threading.Event()
    progress = event({"current": 1, "total": 4, "unit": "step"}, type="progress")

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
            return
        yield STREAM + hello() + (event([["s", TEXT, "a"]], id="1-2") if request.cursor == "1-1" else b"")
        while piece := pieces.get():
            yield piece
        yield CLOSE

    def send(one, *later):
        seen.clear()
        pieces.put(one + progress + b"".join(later))
        assert seen.wait(30)

    with ScriptedServer(script) as server, Client(server.url) as client:
        started = client.submit("count")
        started.listener = lambda _: seen.set()
        yield started, send
        pieces.put(b"")
        pieces.put(b"")


def test_updates_that_were_read_ahead_are_delivered_before_the_error_of_the_job(read_ahead):
    started, send = read_ahead
    failed = [
        {"status": "failed", "value": "abc", "error": {"code": "internal", "title": "x", "status": 500}}
    ]
    error = failed[0]["error"]
    end = event([["s", "/items/0/status", "failed"], ["s", "/items/0/error", error]], id="1-5")
    updates = iter(started)
    texts = [next(updates).text]
    send(event("b", id="1-3"))
    texts.append(next(updates).text)
    send(event("c", id="1-4"), end, done("1-6", failed, status="failed", error=error))
    texts.append(next(updates).text)
    with pytest.raises(JobFailedError):
        next(updates)
    assert texts == ["a", "b", "c"]


def test_updates_that_were_read_ahead_are_kept_for_the_next_loop(read_ahead):
    started, send = read_ahead
    for update in started:
        assert update.text == "a"
        send(event("b", id="1-3"))
        assert started.checkpoint().cursor == "1-2"
        break
    for update in started:
        assert (update.text, update.value) == ("b", "ab")
        break


def test_the_checkpoint_advances_per_update_not_per_block():
    with ScriptedServer(talking()) as server, Client(server.url) as client:
        started = client.submit("count")
        for taken, update in enumerate(started, 1):
            assert started.checkpoint().cursor == update.id
            if taken == BLOCK // 2:
                break
        saved = Checkpoint.from_json(started.checkpoint().to_json())
        rest = list(client.job(checkpoint=saved))
        assert [update.seq for update in rest] == list(range(BLOCK // 2 + 2, COUNT + 3))


def test_a_second_concurrent_loop_raises():
    with ScriptedServer(talking(hold=True)) as server, Client(server.url) as client:
        started = client.submit("count")
        for _ in started:
            with pytest.raises(ConcurrentReadError):
                next(iter(started))
            break


def test_many_threads_share_one_client():
    with ScriptedServer(talking()) as server, Client(server.url) as client, ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda _: client.run("count"), range(48)))
        assert results == ["x" * (COUNT + 1)] * 48
        assert len(threads()) == 1


def test_result_in_one_thread_and_a_loop_in_another():
    with ScriptedServer(talking()) as server, Client(server.url) as client, ThreadPoolExecutor(2) as pool:
        started = client.submit("count")
        waiting = pool.submit(started.result)
        texts = [update.text for update in started]
        assert "".join(texts) == waiting.result(10) == "x" * (COUNT + 1)


def test_values_can_be_read_while_further_updates_arrive():
    with ScriptedServer(talking()) as server, Client(server.url) as client:
        for size, update in enumerate(client.submit("count"), 1):
            assert update.value == "x" * size


def test_with_options_shares_the_thread_and_the_connections():
    with ScriptedServer(talking(hold=True)) as server, Client(server.url) as client:
        hurried = client.with_options(timeout=0.3)
        with pytest.raises(TotalTimeoutError):
            hurried.run("count")
        assert client.job("j1").status() == "running"
        assert len(threads()) == 1


def test_calls_on_a_closed_client_raise():
    with ScriptedServer(talking()) as server:
        client = Client(server.url)
        started = client.submit("count")
        client.close()
        client.close()
        for late in (client.discover, started.result, lambda: next(iter(started))):
            with pytest.raises(ClientClosedError, match="was closed"):
                late()


def test_an_ended_job_keeps_its_result_after_the_client_closed():
    with ScriptedServer(talking()) as server:
        with Client(server.url) as client:
            started = client.submit("count")
            assert len(list(started)) == COUNT + 1
        assert started.result() == "x" * (COUNT + 1)


@pytest.mark.parametrize(("bound", "returns_before"), [(0.05, True), (30.0, False)])
def test_close_waits_for_a_hook_at_most_close_timeout(monkeypatch, bound, returns_before):
    monkeypatch.setattr(event_loop_thread, "CLOSE_TIMEOUT", bound)
    entered, leave = threading.Event(), threading.Event()

    def hook(_):
        entered.set()
        assert leave.wait(30)

    with ScriptedServer(talking(hold=True)) as server, ThreadPoolExecutor(2) as pool:
        client = Client(server.url, hooks=Hooks(on_request=hook))
        waiting = pool.submit(client.run, "count")
        assert entered.wait(30)
        closing = pool.submit(client.close)
        if returns_before:
            closing.result(20)
        else:
            with pytest.raises(TimeoutError):
                closing.result(0.2)
        leave.set()
        closing.result(20)
        with pytest.raises(ClientClosedError):
            waiting.result(20)


def test_close_ends_waits_in_other_threads():
    with ScriptedServer(talking(hold=True)) as server, ThreadPoolExecutor(1) as pool:
        client = Client(server.url)
        waiting = pool.submit(client.job("j1").result)
        server.wait_until(lambda: bool(server.requests))
        client.close()
        with pytest.raises(ClientClosedError):
            waiting.result(10)


@pytest.mark.parametrize("use", ["call", "loop"])
@pytest.mark.parametrize("used_before", [False, True])
def test_a_blocking_client_within_an_event_loop_warns_once_and_works(used_before, use):
    async def notebook(client):
        with client:
            with pytest.warns(UserWarning, match="use tidewire.AsyncClient instead") as warned:
                first = client.run("count") if use == "call" else "".join(u.text for u in client.job("j1"))
            assert [each.filename for each in warned] == [__file__]
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return first, client.run("count"), len(list(client.job("j1")))

    with ScriptedServer(talking()) as server:
        client = Client(server.url)
        if used_before:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                client.run("count")
        first, second, count = asyncio.run(notebook(client))
    assert (first, second, count) == ("x" * (COUNT + 1), "x" * (COUNT + 1), COUNT + 1)


SCRIPT = """
import sys
from tidewire import Client
client = Client(sys.argv[1])
updates = iter(client.submit("count"))
for update in updates:
    print(update.seq, flush=True)
    if "leave" in sys.argv:
        updates = None
    if len(sys.argv) > 2:
        break
"""


@pytest.mark.parametrize("how", ["leave", "keep"])
def test_an_unclosed_client_at_program_exit_closes_its_connections(how):
    with ScriptedServer(talking(hold=True)) as server:
        command = [sys.executable, "-W", "error", "-c", SCRIPT, server.url, how]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "2\n", "")
        server.wait_until_none_is_open()


WAITING = """
import sys, threading
from tidewire import Client, Hooks

open_streams = threading.Semaphore(0)

def note(request):
    if request.url.endswith("/events"):
        open_streams.release()

def wait(how):
    match how:
        case "result":
            client.submit("count").result()
        case "run":
            client.run("count")
        case "loop":
            for update in client.submit("count"):
                pass
        case "map":
            for value in client.map("count", [{}]):
                pass

client = Client(sys.argv[1], hooks=Hooks(on_request=note))
waits = ["result", "run", "loop", "map"]
for how in waits:
    threading.Thread(target=wait, args=(how,), daemon=True).start()
for how in waits:
    open_streams.acquire()
print("leaving", flush=True)
"""


FINALIZER = """
import sys
from tidewire import Client

class Owner:
    def __init__(self):
        self.client = Client(sys.argv[1])
        self.job = self.client.submit("count")

    def __del__(self):
        try:
            self.job.cancel()
        except RuntimeError as error:
            print(type(error).__name__, flush=True)
        self.client.close()
        print("closed", flush=True)

owner = Owner()
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(WAITING, "leaving\n"), (FINALIZER, "ClientClosedError\nclosed\n")],
    ids=["daemon threads wait", "a finalizer calls the client"],
)
def test_a_program_that_uses_the_client_at_its_exit_ends_without_warnings(program, printed):
    with ScriptedServer(talking(hold=True)) as server:
        command = [sys.executable, "-W", "error", "-c", program, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
        server.wait_until_none_is_open()


CLOSING = """
import sys, threading
from tidewire import Client

client = Client(sys.argv[1])
values = client.map("count", [{}, {}], concurrency=2)
next(values)
values.close()
for attempt in range(3):
    try:
        print("closing", flush=True)
        client.close()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
for thread in set(threading.enumerate()) - {threading.main_thread()}:
    thread.join(10)  # a worker thread of the event loop ends by itself, soon after the loop
    thread.is_alive() and print("left", thread)
"""


def test_close_can_be_repeated_after_interrupts_until_it_completes():
    answered = threading.Event()
    ended = [{"status": "succeeded", "value": 1}]

    def script(request):
        if request.path.endswith("/cancel"):
            answered.wait(10)
            yield answer(202, job())
        elif request.path == "/v1":
            yield answer(200, discovery("count"))
        elif request.method == "GET" and "/endpoints/" in request.path:
            yield answer(200, endpoint())
        elif request.method == "POST":
            yield answer(201, job(id=f"j{sum(one.method == 'POST' for one in server.requests)}"))
        else:
            yield STREAM + hello("j1") + snapshot("1-1", state(1, status="running"))
            yield event([["s", "/items/0/status", "succeeded"]], id="1-2") + done("1-3", ended)
            yield CLOSE

    with ScriptedServer(script) as server:
        command = [sys.executable, "-W", "error", "-c", CLOSING, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            server.wait_until(lambda: any(path.endswith("/cancel") for path in server.paths("POST")), 20)
            for _ in range(2):
                assert process.stdout.readline() == "closing\n"
                # Python does not see a signal that arrives between its last check and the wait for a lock before the next one.
                for _ in range(2):
                    process.send_signal(signal.SIGINT)
                    if select.select([process.stdout], [], [], 5)[0]:
                        break
                assert process.stdout.readline() == "interrupted\n"
            assert process.stdout.readline() == "closing\n"
            answered.set()
            rest, errors = process.communicate(timeout=20)
        assert (process.returncode, rest, errors) == (0, "", "")
        server.wait_until_none_is_open()


# From Python 3.12 on, each fork of a process with threads warns, because they do not exist in the child.
MAY_FORK = ["-W", "ignore:This process:DeprecationWarning"]

FORKED = """
import os, sys
from tidewire import Client
from tidewire.errors import ClientClosedError
client = Client(sys.argv[1])
client.run("count")
child = os.fork()
if not child:
    try:
        client.run("count")
    except ClientClosedError as error:
        print(error, flush=True)
    print(len(Client(sys.argv[1]).run("count")), flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(len(client.run("count")))
"""


FORKED_WITHIN_EVENT_LOOP = """
import asyncio, gc, os, socket, sys
from tidewire import AsyncClient

async def live():
    client = AsyncClient(sys.argv[1])
    updates = (await client.submit("count")).updates()
    await anext(updates)
    (connection,) = client._starter.session.transport.open
    twin = socket.socket(fileno=os.dup(connection._network.get_extra_info("socket").fileno()))
    child = os.fork()
    if not child:
        del updates
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    try:
        print("came:", twin.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        print("stands")
    twin.close()
    await client.aclose()

asyncio.run(live())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_garbage_collection_in_a_forked_child_keeps_the_parents_connection():
    def script(request):
        if request.method == "POST":
            yield answer(201, job(), Location="/v1/jobs/j1")
        else:
            yield STREAM + hello() + event([["s", "/items/0/value", 1]], id="1-2")
            yield HOLD

    with ScriptedServer(script) as server:
        command = [sys.executable, *MAY_FORK, "-c", FORKED_WITHIN_EVENT_LOOP, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stands\n", "")


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_used_client_raises_in_a_forked_child_and_a_new_client_works():
    with ScriptedServer(talking()) as server:
        command = [sys.executable, *MAY_FORK, "-c", FORKED, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    message, *lengths = ended.stdout.splitlines()
    assert "before the process forked" in message
    assert "in each process" in message
    assert lengths == [str(COUNT + 1)] * 2
    assert (ended.returncode, ended.stderr) == (0, "")


CONSTRUCTED = """
import os, sys
from tidewire import Client
client = Client(sys.argv[1])
attached = client.job("j1")
child = os.fork()
print(len(client.run("count")), len(attached.result()), flush=True)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_client_constructed_but_unused_before_a_fork_works_in_both_processes():
    with ScriptedServer(talking()) as server:
        command = [sys.executable, "-W", "error", *MAY_FORK, "-c", CONSTRUCTED, server.url]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.stdout == f"{COUNT + 1} {COUNT + 1}\n" * 2
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interrupt_ends_a_blocking_wait():
    with ScriptedServer(talking(hold=True)) as server:
        command = [sys.executable, "-c", SCRIPT, server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line == f"{COUNT + 2}\n":
                    break
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        assert errors.rstrip().endswith("KeyboardInterrupt")
        server.wait_until_none_is_open()


@pytest.fixture
def interruptible():
    """An event; while it is set, the next SIGINT raises KeyboardInterrupt in the main thread and clears it."""
    ready = threading.Event()

    def interrupt(*_):
        if ready.is_set():
            ready.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield ready
    signal.signal(signal.SIGINT, before)


def test_interrupts_at_any_moment_neither_lose_nor_repeat_updates(interruptible):
    waits = random.Random(2)
    interrupts = 40

    def script(request):
        nonlocal interrupts
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]))
            return
        after = int((request.cursor or "1-1").partition("-")[2])
        yield STREAM + hello()
        if after < 2:
            yield snapshot("1-1", state(None, status="queued"), columns=[TEXT])
            yield event([["s", TEXT, ""]], id="1-2")
        for start in range(max(after + 1, 3), 1003, 20):
            if interrupts and waits.random() < 0.3:
                interrupts -= 1
                os.kill(os.getpid(), signal.SIGINT)
            yield b"".join(event(f"{seq} ", id=f"1-{seq}") for seq in range(start, min(start + 20, 1003)))
        yield done("1-1003", [{"status": "queued", "value": whole}])
        yield CLOSE

    whole = "".join(f"{seq} " for seq in range(3, 1003))
    pieces, interrupted = [], 0
    with ScriptedServer(script) as server, Client(server.url) as client:
        job_ = client.submit("count")
        while not job_.ended or "".join(pieces) != whole:
            try:
                interruptible.set()
                for update in job_:
                    pieces.append(update.text)
                interruptible.clear()
                break
            except KeyboardInterrupt:
                interrupted += 1
        interruptible.clear()
    assert interrupted > 0
    assert "".join(pieces) == whole


def test_an_interrupt_at_any_point_of_a_call_or_loop_neither_loses_nor_repeats_updates():
    """Raise KeyboardInterrupt at each call in the blocking client, in asyncio, and in modules with locks."""
    text = "abcdef"
    items = [{"status": "queued", "value": text}]

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT]), Location="/v1/jobs/j1")
            return
        after = int(request.cursor.partition("-")[2])
        yield STREAM + hello()
        if after < 2:
            yield event([["s", TEXT, ""]], id="1-2")
        for seq in range(max(after + 1, 3), len(text) + 3):
            yield event(text[seq - 3], id=f"1-{seq}")
        yield done(f"1-{len(text) + 3}", items)
        yield CLOSE

    modules = (event_loop_thread, asyncio.base_events, concurrent.futures._base, queue, threading)
    files = {module.__file__ for module in modules}
    at, hit, passed = 0, True, 0

    def watch(frame, what, called):
        # The interpreter checks for signals after each call, except for the `__enter__` of a lock. Python 3.14 checks there, too,
        # and may leave the lock held, which no program can prevent (github.com/python/cpython/issues/148874).
        nonlocal passed, hit
        if getattr(called, "__name__", None) == "__enter__":
            return
        if what in {"call", "c_return"} and frame.f_code.co_filename in files:
            passed += 1
            if passed == at:
                hit = True
                raise KeyboardInterrupt

    with ScriptedServer(script) as server, Client(server.url) as client:
        while hit:
            at, hit, passed, pieces, reading = at + 1, False, 0, [], None
            sys.setprofile(watch)
            try:
                reading = client.submit("count")
                for update in reading:
                    pieces.append(update.text)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            reading = reading or client.submit("count")
            pieces += [update.text for update in reading]
            assert "".join(pieces) == text, f"after an interrupt at call {at}"
    assert at > 40
