"""Delivery of the outcomes of a store's thread to the event loop."""

import pytest

from tidewire_server.store.database.thread_tasks import Task, TaskQueue


async def test_an_error_after_one_task_of_a_group_reaches_only_its_caller(caplog):
    def fail(_):
        raise RuntimeError("a bug")

    tasks = TaskQueue()
    first, second = Task("first", fail), Task("second", None)
    futures = [tasks.add(task) for task in (first, second)]
    first.outcome = second.outcome = "committed"
    tasks.settle([first, second])
    with pytest.raises(RuntimeError, match="a bug"):
        await futures[0]
    assert await futures[1] == "committed"
    assert "after a transaction of the store" in caplog.text
