"""Calls through the module that `tidewire codegen` writes; checked by type checkers, and never executed."""

from typing import assert_type

from tidewire import AsyncClient, AsyncJob, BatchJob, Client, Job

from . import generated_module_of_one_endpoint as of_one_endpoint
from .generated_module import PointInput, PointValue, TalkInput, TypedAsyncClient, TypedClient


def blocking(client: Client) -> None:
    typed = TypedClient(client.with_options(timeout=3))
    assert_type(typed.submit("point", PointInput(x=1)), Job[PointValue])
    assert_type(typed.run("point", PointInput(x=1)).label, str)
    assert_type(typed.run("talk", TalkInput(words=1)), str)
    assert_type(typed.submit_batch("point", [PointInput(x=1)]).results()[0].x, float)
    for value in typed.map("point", [PointInput(x=1)]):
        assert_type(value, PointValue)
    assert_type(typed.submit("point", PointInput(x=1), idempotency_key="k"), Job[PointValue])
    assert_type(typed.run("talk", TalkInput(words=1), idempotency_key="k"), str)
    assert_type(typed.submit_batch("point", [], idempotency_key="k", shared={"x": 1}), BatchJob[PointValue])
    for value in typed.map("point", [], idempotency_key="k", shared={"x": 1}):
        assert_type(value, PointValue)
    for value in typed.map("point", [], resume_file="points.jsonl"):
        assert_type(value, PointValue)
    typed.submit("point", TalkInput())  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    typed.submit("nope", TalkInput())  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]


async def asynchronous(client: AsyncClient) -> None:
    typed = TypedAsyncClient(client)
    assert_type(await typed.submit("point", PointInput(x=1)), AsyncJob[PointValue])
    assert_type((await typed.run("point", PointInput(x=1))).x, float)
    async for value in typed.map("point", [PointInput(x=1)]):
        assert_type(value, PointValue)


def blocking_with_one_endpoint(client: Client) -> None:
    typed = of_one_endpoint.TypedClient(client)
    assert_type(typed.run("near", of_one_endpoint.NearInput()).label, str)
    assert_type(of_one_endpoint.NearInput().to, tuple[int, str])
