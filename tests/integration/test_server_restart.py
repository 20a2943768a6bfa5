"""Restarting the server after a kill or an orderly stop: jobs, logs and keys of the SQLite log are recovered."""

import contextlib
import resource
import shutil
import sqlite3
import threading
from typing import Any

import httpx2
import pytest

from support.killable_server import Killed, killed_server
from support.reference_server import eventually
from tidewire import Client
from tidewire.errors import JobCancelledError
from tidewire.protocol.sse import Decoder
from tidewire_server import Server
from tidewire_server.store.store_errors import StoreError

LONG_SCRIPT = {"script": [{"append": "Hel"}, {"sleep_ms": 60_000}]}


@pytest.fixture
def server():
    with killed_server() as server:
        yield server


def events(server: Killed, job: str) -> list[Any]:
    return [each for each in Decoder().feed(server.events(job)) if each.id]


def has_value(found: dict[str, Any]) -> bool:
    return bool(found["state"]["items"][0]["value"])


def cancel(server: Killed, job: str) -> dict[str, Any]:
    assert server.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
    return server.ended(job)


def test_ended_jobs_and_keys_are_unchanged_after_a_restart(server):
    job = server.submit("shout", "key", input={"text": "hello"}).json()["id"]
    gone = server.submit("shout", "other", input={"text": "bye"}).json()["id"]
    found, before = server.ended(job), server.events(job)
    server.ended(gone)
    assert server.http.delete(f"/v1/jobs/{gone}").status_code == 204
    server.again()
    assert server.http.get("/v1").json()["durability"] == "host"
    assert server.job(job) == found
    assert server.events(job) == before
    done = {"last-event-id": found["cursor"]}
    assert server.http.get(f"/v1/jobs/{job}/events", headers=done).status_code == 204
    assert server.http.get(f"/v1/jobs/{gone}").status_code == 410
    again = server.submit("shout", "key", input={"text": "hello"})
    assert (again.json()["id"], again.headers["idempotency-replayed"]) == (job, "true")
    assert server.submit("shout", "key", input={"text": "other"}).status_code == 422
    assert server.submit("shout", "other", input={"text": "bye"}).status_code == 410
    assert [each["id"] for each in server.http.get("/v1/jobs").json()["jobs"]] == [job]


def test_a_stream_token_stays_valid_after_a_restart(server):
    job = server.submit("shout", input={"text": "hello"}).json()["id"]
    server.ended(job)
    url = server.http.post(f"/v1/jobs/{job}/stream-token").json()["url"]
    before = server.http.get(url).content
    server.again()
    assert (
        server.http.get(url).content.partition(b"\n")[2] == before.partition(b"\n")[2]
    )  # The first line is skipped because it holds the random `retry`.
    assert b"event:problem\n" in server.http.get(url[:-4]).content


def test_a_principal_with_a_name_keeps_its_jobs_when_its_token_is_replaced(tmp_path):
    def server_with(*tokens: str) -> Server:
        server = Server(log=f"sqlite:///{tmp_path / 'log.db'}", tokens=tokens)
        server.endpoint(name="double")(lambda: 2)
        return server

    with server_with("ann:old", "nameless").running() as url:
        jobs = []
        for token in ("old", "nameless"):
            with Client(url, token=token) as client:
                jobs.append(client.submit("double"))
                assert jobs[-1].result() == 2
        bearer = {"authorization": "Bearer old"}
        stream = httpx2.post(f"{url}/v1/jobs/{jobs[0].id}/stream-token", headers=bearer).json()["url"]
    with server_with("ann:new", "other").running() as url:
        for job, token, status in zip(jobs, ("new", "other"), (200, 404), strict=True):
            headers = {"authorization": f"Bearer {token}"}
            assert httpx2.get(f"{url}/v1/jobs/{job.id}", headers=headers).status_code == status
        assert httpx2.get(f"{url}/v1/jobs/{jobs[0].id}", headers=bearer).status_code == 401
        assert b"event:done\n" in httpx2.get(f"{url}{stream}").content


def test_running_jobs_begin_a_new_attempt_and_queued_jobs_run(server):
    running = server.submit("tidewire.script", input=LONG_SCRIPT).json()["id"]
    server.until(running, has_value)
    payers = [server.submit("pay", input={"pause": pause}).json()["id"] for pause in (60, 0)]
    server.until(payers[0], lambda found: found["status"] == "running")
    server.again()
    found = server.until(running, lambda found: found["attempt"] == 2 and has_value(found))
    assert found["cursor"].endswith("-6")
    cancel(server, running)
    logged = events(server, running)
    assert [each.id.split("-")[1] for each in logged] == [str(seq) for seq in range(1, 9)]
    epoch = int(logged[3].id.split("-")[0])
    assert 2 <= epoch <= 10_001
    assert '"reason":"restart"' in logged[3].data
    assert '"status":"queued","items":[{"status":"queued","value":""}]' in logged[3].data
    assert {each.id.split("-")[0] for each in logged[3:]} == {str(epoch)}
    waited = server.ended(payers[1])
    assert (waited["attempt"], waited["state"]["items"]) == (1, [{"status": "succeeded", "value": "paid"}])


def test_ended_items_of_an_interrupted_batch_keep_value_and_usage(server):
    inputs = [{"text": "quick"}, {"text": "slow", "pause": 60}, {"text": "later", "pause": 60}]
    job = server.submit("shout", inputs=inputs).json()["id"]
    server.until(job, lambda found: found["state"]["items"][2]["status"] == "running")
    server.again()
    found = server.until(job, lambda found: found["attempt"] == 2)
    opening = next(each for each in [*server.http.get(f"/v1/jobs/{job}").json()["state"]["items"]])
    assert opening == {"status": "succeeded", "value": "QUICK"}
    assert found["started_at"] >= found["created_at"]
    found = cancel(server, job)
    assert found["status"] == "partially_failed"
    assert found["done"]["usage"]["tokens"] >= len("quick")
    restart = next(each for each in events(server, job) if '"reason":"restart"' in each.data)
    assert '{"status":"succeeded","value":"QUICK"},{"status":"queued","value":""}' in restart.data


def test_a_function_that_must_not_be_retried_runs_once(server, tmp_path):
    once = tmp_path / "payments"
    server.kill()
    server.start(once=str(once))
    job = server.submit("pay", inputs=[{"pause": 60}, {"pause": 0}]).json()["id"]
    server.until(job, lambda found: once.exists() and found["status"] == "running")
    server.kill()
    server.start(once=str(once))
    found = server.ended(job)
    first, second = found["state"]["items"]
    assert (first["status"], first["error"]["code"], second) == (
        "failed",
        "worker_lost",
        {"status": "succeeded", "value": "paid"},
    )
    assert (found["status"], found["attempt"], once.read_text()) == ("partially_failed", 1, "paid\n" * 2)
    assert '"reason":"rewound"' in str(events(server, job))


@pytest.mark.parametrize(("endpoint", "members"), [("pay", {"crash": True}), ("pay_together", {"pause": 0})])
def test_a_function_that_must_not_be_retried_runs_once_if_it_ends_the_server_at_once(
    server, tmp_path, endpoint, members
):
    once = tmp_path / "payments"
    server.kill()
    server.start(once=str(once))
    with contextlib.suppress(httpx2.TransportError):  # the function may end the server before the response
        server.submit(endpoint, "key", input=members)
    server.died()
    server.start(once=str(once))
    job = server.submit(endpoint, "key", input=members).json()["id"]
    found = server.ended(job)
    assert found["state"]["items"][0]["error"]["code"] == "worker_lost"
    assert once.read_text() == "paid\n"


@pytest.mark.parametrize(("endpoint", "members"), [("poison", {}), ("poison_together", {"number": 1})])
def test_a_job_that_ends_the_server_at_once_fails_after_its_attempts(server, endpoint, members):
    with contextlib.suppress(httpx2.TransportError):  # the function may end the server before the response
        server.submit(endpoint, "key", input=members)
    server.died()
    crashes = 1
    while True:
        try:
            server.start(max_attempts=2)
            found = server.ended(server.submit(endpoint, "key", input=members).json()["id"])
            break
        except (ChildProcessError, httpx2.TransportError):
            if server.pid:
                server.died()
            crashes += 1
            assert (
                crashes <= 3
            )  # the two attempts, and one more if the server lost the start of the first one
    assert found["state"]["items"][0]["error"]["code"] == "worker_lost"


def test_an_interrupted_job_of_a_removed_endpoint_fails(server):
    ran = server.submit("tidewire.script", input=LONG_SCRIPT).json()["id"]
    server.until(ran, has_value)
    server.kill()
    server.start(hide=["tidewire.script"])
    found = server.ended(ran)
    error = found["state"]["items"][0]["error"]
    assert (found["status"], error["code"]) == ("failed", "worker_lost")
    assert "'tidewire.script' no longer existed" in error["detail"]
    assert found["state"]["items"][0]["value"] == "Hel"


def test_a_job_interrupted_max_attempts_times_fails(server):
    job = server.submit("tidewire.script", input=LONG_SCRIPT).json()["id"]
    for attempt in (1, 2):
        server.until(job, lambda found, attempt=attempt: found["attempt"] == attempt and has_value(found))
        server.kill()
        server.start(max_attempts=2)
    found = server.ended(job)
    assert found["state"]["items"][0]["error"]["code"] == "worker_lost"
    assert "max_attempts" in found["state"]["items"][0]["error"]["detail"]


@pytest.mark.heavy
def test_deadlines_include_time_before_a_restart(server):
    job = server.submit("tidewire.script", input=LONG_SCRIPT, deadline_ms=1500).json()["id"]
    server.until(job, has_value)
    server.again()
    found = server.ended(job)
    assert found["state"]["items"][0]["error"]["code"] == "deadline_exceeded"
    assert found["done"]["error"]["detail"] == "the item had not ended 1.5 s after the job was submitted"


def test_a_job_whose_deadline_passed_while_the_server_was_down_does_not_run(server, tmp_path):
    once = tmp_path / "payments"
    first, behind = [server.submit("pay", input={}, deadline_ms=60_000).json()["id"] for _ in range(2)]
    server.until(first, lambda found: found["status"] == "running")
    server.kill()
    with contextlib.closing(sqlite3.connect(server.log)) as db, db:  # Let a minute pass.
        db.execute("UPDATE job SET created_at = created_at - 61")
    server.start(once=str(once))
    for job in (first, behind):
        found = server.ended(job)
        assert (found["state"]["items"][0]["error"]["code"], found["attempt"]) == ("deadline_exceeded", 1)
    assert not once.exists()


def test_an_orderly_stop_sends_goaway_and_the_next_server_continues_the_job(server):
    server.kill()
    server.start(shutdown_timeout=0.2, cancel_timeout=0.2)
    job = server.submit("tidewire.script", input=LONG_SCRIPT).json()["id"]
    waiting = server.submit("pay", input={"pause": 60}).json()["id"]
    behind = server.submit("pay", input={"pause": 0}).json()["id"]
    server.until(job, has_value)
    server.until(waiting, lambda found: found["status"] == "running")
    seen: list[bytes] = []

    def read() -> None:
        with server.http.stream("GET", f"/v1/jobs/{job}/events") as answer:
            seen.extend(answer.iter_raw())

    reader = threading.Thread(target=read)
    reader.start()
    while not seen:
        assert reader.is_alive()
    assert server.stop() == 0
    reader.join()
    kinds = [each.type for each in Decoder().feed(b"".join(seen))]
    assert kinds[-1] == "goaway"
    assert "done" not in kinds
    server.start()
    server.until(job, lambda found: found["attempt"] == 2 and has_value(found))
    assert server.ended(behind)["attempt"] == 1
    assert events(server, behind)[0].id == "1-1"
    assert not any('"rewound"' in each.data for each in events(server, behind))
    cancel(server, job)


# ---- cancelled jobs -------------------------------------------------------------------------------------------------

SLOW_CANCEL = {"cancel_timeout": 60.0}
"""Settings with which a job does not end before its function, which ignores the cancel, has returned."""


def test_a_cancelled_job_stays_cancelled_if_the_server_is_killed_before_its_function_returns(tmp_path):
    once = tmp_path / "starts"
    with killed_server(once=str(once), **SLOW_CANCEL) as server, Client(server.url) as client:
        job = client.submit("deaf", text="draft")
        server.until(job.id, has_value)
        assert job.cancel() == "running"
        server.again()
        with pytest.raises(JobCancelledError) as cancelled:
            job.result()
        assert cancelled.value.value == "draft"
        found = server.job(job.id)
        assert (found["status"], found["attempt"]) == ("cancelled", 1)
        assert once.read_text() == "draft\n"


@pytest.mark.parametrize(
    ("stop", "settings"),
    [(Killed.kill, SLOW_CANCEL), (Killed.stop, {"shutdown_timeout": 0.0, "cancel_timeout": 0.5})],
    ids=["killed", "stopped"],
)
def test_cancelled_items_stay_cancelled_after_a_restart_and_the_others_run_again(tmp_path, stop, settings):
    once = tmp_path / "starts"
    inputs = [{"text": text} for text in ("a", "b", "c", "d")]
    with killed_server(once=str(once), default_concurrency_limit=2, **settings) as server:
        job = server.submit("deaf", inputs=inputs).json()["id"]
        server.until(job, lambda found: all(item["value"] for item in found["state"]["items"][:2]))
        cancel = f"/v1/jobs/{job}/cancel"
        for items in ([0], [3], [3, 0], []):
            assert server.http.post(cancel, json={"items": items}).status_code == 202
        stop(server)
        once.with_name("starts.go").touch()
        server.start()
        found = server.ended(job)
        assert [(item["status"], item["value"]) for item in found["state"]["items"]] == [
            ("cancelled", "a"),
            ("succeeded", "b"),
            ("succeeded", "c"),
            ("cancelled", ""),
        ]
        assert (found["status"], found["attempt"]) == ("partially_failed", 2)
        assert sorted(once.read_text().split()) == ["a", "b", "b", "c"]


def test_a_cancelled_job_that_waited_does_not_run_after_a_restart(tmp_path):
    once = tmp_path / "starts"
    with killed_server(once=str(once), default_concurrency_limit=1, **SLOW_CANCEL) as server:
        ahead = server.submit("deaf", input={"text": "ahead"}).json()["id"]
        behind = server.submit("deaf", inputs=[{"text": "b"}, {"text": "c"}]).json()["id"]
        server.until(ahead, has_value)
        assert server.http.post(f"/v1/jobs/{behind}/cancel").status_code == 202
        server.kill()
        once.with_name("starts.go").touch()
        server.start()
        assert server.ended(behind)["status"] == "cancelled"
        assert server.ended(ahead)["status"] == "succeeded"
        assert sorted(once.read_text().split()) == ["ahead", "ahead"]


def test_a_cancelled_row_of_a_batch_stays_cancelled_after_a_restart(tmp_path):
    once = tmp_path / "starts"
    with killed_server(once=str(once), **SLOW_CANCEL) as server:
        job = server.submit("deaf_together", inputs=[{"text": "a"}, {"text": "b"}]).json()["id"]
        server.until(job, lambda found: all(item["value"] for item in found["state"]["items"]))
        assert server.http.post(f"/v1/jobs/{job}/cancel", json={"items": [1]}).status_code == 202
        server.kill()
        once.with_name("starts.go").touch()
        server.start()
        items = server.ended(job)["state"]["items"]
        assert [item["status"] for item in items] == ["succeeded", "cancelled"]
        assert once.read_text().split() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("endpoint", "members"),
    [("hide", {"hide": ["deaf"]}), ("max_attempts", {"max_attempts": 1}), ("deadline", {})],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_cancelled_job_ends_as_cancelled_if_it_could_not_run_again_either(tmp_path, endpoint, members):
    deadline = {"deadline_ms": 60_000} if endpoint == "deadline" else {}
    with killed_server(once=str(tmp_path / "starts"), **SLOW_CANCEL) as server:
        job = server.submit("deaf", input={"text": "draft"}, **deadline).json()["id"]
        server.until(job, has_value)
        assert server.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
        server.kill()
        if deadline:
            with contextlib.closing(sqlite3.connect(server.log)) as db, db:  # Let a minute pass.
                db.execute("UPDATE job SET created_at = created_at - 61")
        server.start(**members)
        found = server.ended(job)
        assert (found["status"], found["state"]["items"][0]["value"]) == ("cancelled", "draft")


@pytest.mark.parametrize("request_", [("POST", "/cancel"), ("DELETE", "")], ids=["cancel", "delete"])
def test_a_cancel_that_cannot_be_recorded_is_refused_and_changes_nothing(tmp_path, request_):
    method, path = request_
    with killed_server(once=str(tmp_path / "starts"), **SLOW_CANCEL) as server:
        job = server.submit("deaf", input={"text": "draft"}).json()["id"]
        server.until(job, has_value)
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        refused = server.http.request(method, f"/v1/jobs/{job}{path}")
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        tmp_path.joinpath("starts.go").touch()
        assert server.ended(job)["status"] == "succeeded"


# ---- invalid log files ----------------------------------------------------------------------------------------------


def refusal(log: str) -> str:
    with pytest.raises(StoreError) as refused, Server(log=log).running():
        pass
    return str(refused.value)


def test_a_second_server_on_the_same_log_file_is_refused(server):
    assert f"another server is using this file (process {server.pid})" in refusal(f"sqlite:///{server.log}")
    assert server.ended(server.submit("shout", input={"text": "a"}).json()["id"])["status"] == "succeeded"


def test_a_file_that_is_not_a_log_is_refused_and_unchanged(tmp_path):
    foreign, text, newer = tmp_path / "foreign.db", tmp_path / "text", tmp_path / "newer.db"
    with contextlib.closing(sqlite3.connect(foreign)) as db, db:
        db.execute("CREATE TABLE users (name)")
    text.write_text("not a database " * 500)
    with Server(log=f"sqlite:///{newer}").running():
        pass
    with contextlib.closing(sqlite3.connect(newer)) as db, db:
        db.execute("PRAGMA user_version = 99")
    for file, why in [
        (foreign, "this file belongs to another program"),
        (text, "the file belongs to another program or is damaged"),
        (newer, "a newer version of Tidewire created this file (format 99"),
        (tmp_path, "this path is a folder"),
        (tmp_path / "none" / "log.db", f"the folder {tmp_path / 'none'} does not exist"),
    ]:
        before = file.read_bytes() if file.is_file() else None
        found = refusal(f"sqlite:///{file}")
        assert why in found
        assert str(file) in found
        assert before == (file.read_bytes() if file.is_file() else None)
    with contextlib.closing(sqlite3.connect(foreign)) as db, db:
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_a_path_that_cannot_be_examined_is_refused(tmp_path):
    assert "File name too long; use another path" in refusal(f"sqlite:///{tmp_path}/{'x' * 300}")


def test_an_unwritable_folder_is_refused():
    assert "cannot create the lock file" in refusal("sqlite:////proc/log.db")


def test_a_damaged_file_is_refused(tmp_path):
    file = tmp_path / "log.db"
    with Server(log=f"sqlite:///{file}").running():
        pass
    raw = bytearray(file.read_bytes())
    raw[100:4096] = b"\xff" * 3996
    file.write_bytes(raw)
    assert "damaged" in refusal(f"sqlite:///{file}")


@pytest.mark.heavy
def test_with_a_full_disk_reads_continue_and_writes_resume_once_there_is_space(server):
    ended = server.submit("shout", input={"text": "before"}).json()["id"]
    server.ended(ended)
    before = server.events(ended)
    running = server.submit("talk", input={"words": 250}).json()["id"]
    server.until(running, has_value)
    limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    refused = server.submit("shout", "key", input={"text": "x"})
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert "retry-after" in refused.headers
    assert server.http.get("/readyz").status_code == 503
    assert server.http.get("/healthz").status_code == 200
    assert server.events(ended) == before
    assert server.job(running)["status"] == "running"
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
    found = server.ended(running)
    assert (found["status"], found["attempt"]) == ("succeeded", 1)
    assert server.http.get("/readyz").status_code == 200
    assert server.submit("shout", "key", input={"text": "x"}).status_code == 201
    server.again()
    assert server.job(running) == found


@pytest.mark.parametrize("limit", [0, 512 * 1024], ids=["no space", "some space"])
def test_readiness_follows_the_space_on_the_disk_while_no_job_is_written(server, limit):
    """With some space, small writes still succeed, for example into the write-ahead log."""
    assert server.http.get("/readyz").json() == {"status": "ready"}
    limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, limits[1]))
    eventually(lambda: server.http.get("/readyz").status_code == 503)
    refused = server.submit("shout", "key", input={"text": "x" * 1_000_000})
    for answer in (server.http.get("/readyz"), refused, server.http.get("/readyz")):
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "cannot read or write its stored jobs" in answer.json()["detail"]
        assert "retry-after" in answer.headers
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
    assert server.http.get("/readyz").status_code == 200
    assert server.submit("shout", "key", input={"text": "x" * 1_000_000}).status_code == 201
    errors = server.errors().splitlines()
    assert len([line for line in errors if "space" in line]) <= 2, errors  # not one for each request


def test_an_async_function_fails_before_its_unwritten_changes_fill_the_memory(tmp_path):
    stopped = tmp_path / "stopped"
    with killed_server(once=str(stopped)) as server:
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        failing = server.submit("churn", input={"chunks": 100_000}).json()["id"]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        eventually(stopped.exists, within=30)
        assert server.http.get("/readyz").status_code == 503
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        found = server.ended(failing)
        error = found["state"]["items"][0]["error"]
        assert (found["status"], error["code"]) == ("failed", "unavailable")
        assert "cannot write its log at the moment" in error["detail"]
        assert server.http.get("/readyz").status_code == 200


def test_a_reader_ahead_of_the_recovered_log_receives_a_rewound_snapshot(server):
    ran = server.submit("talk", input={"words": 40, "pause": 0.02}).json()["id"]
    blocked = [server.submit("pay", input={}).json()["id"] for _ in range(2)][1]
    seen = server.until(ran, lambda found: int(found["cursor"].split("-")[1]) > 6)["cursor"]
    server.kill()
    with contextlib.closing(sqlite3.connect(server.log)) as db, db:
        # Delete the last events as if their commits had never reached the disk.
        db.execute("DELETE FROM block WHERE seq > 4")
        db.execute("DELETE FROM state WHERE seq > 4")
    server.start()
    server.until(ran, lambda found: found["attempt"] == 2)
    first = next(
        each
        for each in Decoder().feed(
            server.http.get(f"/v1/jobs/{ran}/events", headers={"last-event-id": seen}).content
        )
        if each.id
    )
    assert (first.type, '"reason":"rewound"' in first.data) == ("snapshot", True)
    # The unstarted job continues in the same attempt. Its log may have lost its tail as well, so its epoch
    # changes.
    found = server.job(blocked)
    assert (found["attempt"], found["cursor"].startswith("1-")) == (1, False)


@pytest.mark.parametrize("fsync", [False, True])
def test_a_reader_ahead_of_a_restored_backup_receives_a_rewound_snapshot(tmp_path, fsync):
    """The steps are those of "Back up and restore" in docs/how-to/survive-a-restart.md."""
    with killed_server(log_fsync=fsync) as server:
        running = [server.submit("shout", input={"text": "a", "pause": 60}).json()["id"] for _ in range(2)]
        waiting = server.submit("shout", input={"text": "b"}).json()["id"]
        copy = tmp_path / "copy.db"
        with contextlib.closing(sqlite3.connect(server.log)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))
        for job in running:
            cancel(server, job)
        seen = server.until(waiting, has_value)["cursor"]
        server.kill()
        for name in ("log.db-wal", "log.db-shm"):
            (server.folder / name).unlink()
        shutil.copyfile(copy, server.log)
        server.start()
        found = server.job(waiting)
        assert (found["status"], found["attempt"]) == ("queued", 1)
        assert found["cursor"].partition("-")[0] != seen.partition("-")[0]
