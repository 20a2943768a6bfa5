"""Correct calls of the client's API: mypy and pyright, both strict, must not report anything."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_type

from pydantic import BaseModel, TypeAdapter

import tidewire
from tidewire import (
    AsyncBatchJob,
    AsyncClient,
    AsyncJob,
    AsyncMap,
    BatchJob,
    Checkpoint,
    Client,
    ItemUpdate,
    Job,
    Logprobs,
    TextDelta,
    Update,
)
from tidewire.errors import ItemFailedError
from tidewire.jobs.generated_tokens import Alternative, Token
from tidewire.testing import Answer, FakeServer, FakeToken, Submit


class Caption(BaseModel):
    text: str


EITHER: TypeAdapter[int | str] = TypeAdapter(int | str)


def names() -> None:
    assert_type(tidewire.__version__, str)
    try:
        raise tidewire.errors.QueueTimeoutError("late")
    except tidewire.TidewireError as error:
        assert_type(error.retryable, bool)


async def in_threads(client: Client, caption: type[Caption] | None) -> None:
    found = await asyncio.to_thread(client.run, "caption", {"image": "…"})
    assert_type(found, Any)
    job = await asyncio.to_thread(client.submit, "caption", prompt="x")
    assert_type(job, Job[Any])
    with ThreadPoolExecutor() as threads:
        assert_type(threads.submit(client.run, "caption", returns=Caption).result(), Caption)
        assert_type(list(map(client.run, ["caption"])), list[Any])
    assert_type(client.run("caption", returns=caption), Caption)


def blocking(client: Client, checkpoint: Checkpoint) -> None:
    job = client.submit("caption", {"image": "…"}, returns=Caption)
    assert_type(job, Job[Caption])
    assert_type(job.result(), Caption)
    assert_type(iter(job), Iterator[Update[Caption]])
    for update in job:
        assert_type(update.parse(), Caption)
        assert_type(update.value, Any)
        assert_type(update.text, str)
    for delta in job.iter_text_deltas():
        assert_type(delta, TextDelta)

    assert_type(job.result(timeout=3), Caption)
    job.wait(timeout=3)

    assert_type(client.submit(), Job[Any])
    assert_type(client.submit("caption", returns=Caption, idempotency_key="k", tone="dry"), Job[Caption])
    assert_type(client.run("caption", idempotency_key="k", returns=Caption), Caption)
    assert_type(client.submit("generate", prompt="x").result(), Any)
    assert_type(client.submit("either", returns=EITHER), Job[int | str])
    assert_type(client.submit("list", returns=list[int]).result(), list[int])
    assert_type(client.run("caption", returns=Caption), Caption)
    assert_type(client.run("caption"), Any)
    assert_type(client.job("id"), Job[Any])
    assert_type(client.job(checkpoint=checkpoint, returns=Caption), Job[Caption])
    assert_type(client.with_options(timeout=3.0), Client)

    assert_type(client.run("detect")["boxes"][0], Any)
    assert_type(Client(token="t"), Client)

    batch = client.submit_batch("caption", [{"image": "…"}], returns=Caption, tone="dry")
    assert_type(batch, BatchJob[Caption])
    assert_type(batch.results(), list[Caption])
    assert_type(batch.results(return_exceptions=True), list[Caption | ItemFailedError])
    assert_type(batch.results(timeout=3), list[Caption])
    assert_type(batch.results(return_exceptions=True, timeout=3), list[Caption | ItemFailedError])
    shared = {"tone": "dry"}
    keyed = client.submit_batch("caption", [], returns=Caption, shared=shared, idempotency_key="k")
    assert_type(keyed, BatchJob[Caption])
    for index, result in batch.as_completed():
        assert_type(index, int)
        assert_type(result, Caption | ItemFailedError)
    for item in batch:
        assert_type(item, ItemUpdate[Caption])
    assert_type(client.submit_batch("caption", []), BatchJob[Any])
    assert_type(client.batch_job("id", returns=Caption), BatchJob[Caption])

    inputs = ({"image": str(number)} for number in range(3))
    assert_type(client.map("caption", inputs, returns=Caption, tone="dry"), Iterator[Caption])
    assert_type(client.map("caption", inputs), Iterator[Any])
    assert_type(
        client.map("caption", inputs, returns=Caption, shared=shared, idempotency_key="k"), Iterator[Caption]
    )
    resumed = client.map("caption", inputs, returns=Caption, resume_file=Path("run.jsonl"), retry_failed=True)
    assert_type(resumed, Iterator[Caption])
    both = client.map("caption", inputs, returns=Caption, return_exceptions=True)
    assert_type(both, Iterator[Caption | ItemFailedError])
    assert_type(
        client.map("either", inputs, returns=EITHER, concurrency=2, batch_size=8), Iterator[int | str]
    )

    for token in job.tokens():
        assert_type(token, Token)
        assert_type(token.logprob, float | None)
        for alternative in token.alternatives:
            assert_type(alternative, Alternative)
            assert_type(alternative.logprob, float)
    assert_type(job.logprobs(), Logprobs)


async def asynchronous(client: AsyncClient) -> None:
    job = await client.submit("caption", {"image": "…"}, returns=Caption)
    assert_type(job, AsyncJob[Caption])
    assert_type(await job.result(timeout=3), Caption)
    await job.wait(timeout=3)
    async for update in job:
        assert_type(update, Update[Caption])
    async for text in job.iter_text():
        assert_type(text, str)
    assert_type(client.job("id", returns=Caption), AsyncJob[Caption])
    assert_type(await client.run("either", returns=EITHER), int | str)
    assert_type(await client.submit_batch("caption", [], returns=Caption), AsyncBatchJob[Caption])

    async def inputs() -> AsyncIterator[str]:
        yield "…"

    async for caption in client.map("caption", inputs(), returns=Caption):
        assert_type(caption, Caption)
    async for value in client.map("caption", ["…"]):
        assert_type(value, Any)
    async with client.map("caption", ["…"], returns=Caption, return_exceptions=True) as both:
        assert_type(both, AsyncMap[Caption | ItemFailedError])
    async for token in job.tokens():
        assert_type(token, Token)
    assert_type(await job.logprobs(), Logprobs)


def testing() -> None:
    with FakeServer() as server:
        assert_type(server, FakeServer)
        endpoint = server.endpoint("generate")
        assert_type(endpoint.streams(["Hel", "lo"]).cuts_after(1), Answer)
        endpoint.generates([FakeToken("Hel", -0.5, [("Hel", -0.5)])])
        assert_type(server.submits, list[Submit])
