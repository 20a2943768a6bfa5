"""The thread pool of the event loop when the system refuses threads."""

import threading

import pytest

from tidewire_server.serving.daemon_threads import MAX_THREADS, DaemonThreads


def test_a_refused_thread_takes_no_place_in_the_pool(monkeypatch):
    pool, start = DaemonThreads(), threading.Thread.start

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    for _ in range(MAX_THREADS):
        with pytest.raises(RuntimeError, match="new thread"):
            pool.submit(int)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert pool.submit(lambda: 7).result(timeout=10) == 7
    pool.drain(10)


def test_a_call_waits_for_a_running_thread_if_the_system_refuses_another_one(monkeypatch):
    pool, gate = DaemonThreads(), threading.Event()
    first = pool.submit(gate.wait, 10)

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    second = pool.submit(lambda: 7)
    assert not second.done()
    gate.set()
    assert (first.result(timeout=10), second.result(timeout=10)) == (True, 7)
    pool.drain(10)
