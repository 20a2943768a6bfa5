"""Servers killed at random moments and restarted: readers lose nothing, and no event is sent twice.

`CHAOS_SEED` repeats a run.
"""

import random
import threading
import time
from typing import Any

import httpx2
import pytest

from support.checked_reader import PATIENCE, Reader, check_reader
from support.killable_server import killed_server
from support.random_seed import SEED
from support.sample_server import sentence
from tidewire import Client, RetryPolicy

RETRY = RetryPolicy(max_delay=0.1)


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_readers_of_a_killed_server_lose_nothing_and_see_no_repeats(kills):
    draw = random.Random(SEED)
    with killed_server() as server:
        ended = server.submit("shout", input={"text": "before"}).json()["id"]
        server.ended(ended)
        before = server.events(ended)
        words = 250
        jobs = [server.submit("talk", input={"words": words}).json()["id"] for _ in range(3)]
        readers = [Reader([server], job) for job in jobs]
        for reader in readers:
            reader.start()
        values: list[Any] = []
        connected = threading.Event()

        def follow() -> None:
            with Client(server.url, retry=RETRY) as client:
                job, text, seq = client.job(jobs[0]), "", 0
                job.status()
                connected.set()
                for update in job:
                    assert update.first_seq == seq + 1 or seq == 0
                    seq, text = update.seq, update.value
                values.extend([text, job.result()])

        client = threading.Thread(target=follow, daemon=True)
        client.start()
        assert connected.wait(20)
        for _ in range(kills):
            if draw.random() < 0.25:
                server.kill()
                server.start_and_kill_after(draw.uniform(0, 0.15))
                server.start()
            else:
                time.sleep(draw.uniform(0, 0.3))
                server.again()
        for reader, job in zip(readers, jobs, strict=True):
            check_reader(reader, server, job, sentence(words))
        client.join(PATIENCE)
        assert values == [sentence(words), sentence(words)]
        assert server.events(ended) == before


@pytest.mark.heavy
def test_submit_interrupted_by_a_kill_is_retried_by_its_key_and_creates_one_job():
    draw = random.Random(SEED)
    with killed_server() as server:
        first: dict[str, str] = {}
        for number in range(5):
            keys = [f"key-{number}-{each}" for each in range(8)]

            def submit(key: str) -> None:
                try:
                    answer = server.submit("shout", key, input={"text": key})
                except httpx2.TransportError:
                    return
                if answer.status_code == 201:
                    first[key] = answer.json()["id"]

            threads = [threading.Thread(target=submit, args=(key,)) for key in keys]
            for thread in threads:
                thread.start()
            time.sleep(draw.uniform(0, 0.1))
            server.again()
            for thread in threads:
                thread.join()
            for key in keys:
                answer = server.submit("shout", key, input={"text": key})
                assert answer.status_code == 201, answer.text
                job = answer.json()["id"]
                assert first.setdefault(key, job) == job
        listed = server.http.get("/v1/jobs", params={"limit": 1000}).json()["jobs"]
        assert sorted(each["id"] for each in listed) == sorted(first.values())
        for key, job in first.items():
            assert server.ended(job)["state"]["items"][0]["value"] == key.upper()


def test_trimmed_log_continues_after_two_kills_in_a_row():
    with killed_server(max_log_bytes=4096, merge_window=0) as server:
        words = 1500
        job = server.submit("talk", input={"words": words, "pause": 0}).json()["id"]
        held = server.submit("talk", input={"words": words, "pause": 0.05}).json()["id"]
        server.ended(job)
        server.until(held, lambda found: int(found["cursor"].split("-")[1]) > 20)
        before = server.events(job)
        server.again()
        server.again()
        assert server.events(job) == before
        assert server.job(job)["state"]["items"][0]["value"] == sentence(words)
        assert server.job(held)["attempt"] in {
            2,
            3,
        }  # the attempt number depends on whether the job started between the kills
        server.http.post(f"/v1/jobs/{held}/cancel")
        found = server.ended(held)
        assert (found["status"], sentence(words)[: len(text := found["state"]["items"][0]["value"])]) == (
            "cancelled",
            text,
        )
