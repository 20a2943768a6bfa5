"""Thread safety of document views, of appends to one stream, and of resume files."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio

from support.stream_harness import StreamHarness
from tidewire.jobs.map.resume_file import ResumeFile
from tidewire.protocol.document import Document


def test_views_stay_correct_while_another_thread_writes():
    document = Document({"t": "", "n": []}, ["/t", "/n"])
    views, mismatches, done = [], [], threading.Event()

    def read():
        while not done.is_set() or views:
            if views:
                count, view = views.pop()
                value = view.value()
                if value != {"t": "ab" * count, "n": list(range(count))}:
                    mismatches.append((count, value))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(3000):
            document.apply([["r", "ab", n]])
            if len(views) < 20:
                views.append((n + 1, document.view()))
    finally:
        done.set()
        reader.join(30)
    assert not reader.is_alive()
    assert mismatches == []


async def test_concurrent_appends_are_complete_and_ordered_per_thread():
    job = StreamHarness({"a": "", "b": ""}, ("/a",), merge_window=0.001)

    def write(place: str, letter: str) -> None:
        for number in range(3000):
            job.stream.append(f"{letter}{number},", at=place)

    threads = [
        threading.Thread(target=write, args=(place, letter)) for place in ("/a", "/b") for letter in "xy"
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0)
    value = await job.read()
    for place in "ab":
        pieces = value[place].split(",")[:-1]
        for letter in "xy":
            assert [p for p in pieces if p[0] == letter] == [f"{letter}{n}" for n in range(3000)]


FIRST_VALIDATIONS = """
import sys, threading
from tidewire.protocol.messages import Hello, State
from tidewire.protocol.resources import Batch

sys.setswitchinterval(1e-5)
begin, wrong = threading.Barrier(8), []

def validate():
    begin.wait()
    for model, value in (
        (State, {"status": "queued", "items": [{"status": "queued"}]}),
        (Hello, {"protocol": "p", "job": "j", "events": "/e", "head": "1-1", "heartbeat_ms": 1}),
        (Batch, {"max_items": 1}),
    ):
        try:
            if type(model.model_validate(value)) is not model:
                wrong.append(model)
        except Exception as error:
            wrong.append(error)

threads = [threading.Thread(target=validate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""


def test_threads_that_use_a_model_first_at_the_same_time_validate_with_that_model():
    # Models build their validators when they are first used: only in a new process is that still to come.
    done = subprocess.run(
        [sys.executable, "-c", FIRST_VALIDATIONS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_threads_that_open_resume_files_do_not_disturb_each_other(tmp_path):
    async def open_files(thread):
        files = [ResumeFile(tmp_path / f"{thread}-{at}", retry_failed=False) for at in range(150)]
        for file in files:
            await file.open()
        for file in files:
            file.close()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda thread: anyio.run(open_files, thread), range(8)))
    finally:
        sys.setswitchinterval(interval)
