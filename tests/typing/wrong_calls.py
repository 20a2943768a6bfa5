"""Wrong calls of the client's API. Type checkers report unused `ignore` comments, so each call must be an error."""

from pydantic import BaseModel

from tidewire import AsyncClient, Checkpoint, Client, RetryPolicy
from tidewire.testing import FakeServer


class Caption(BaseModel):
    text: str


def blocking(client: Client, checkpoint: Checkpoint) -> None:
    client.submit(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.submit("caption", returns="Caption")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    client.job(job_id="id")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.job(checkpoint="{}")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.with_options(timeout="30")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.with_options(on_disconnect="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.with_options(idempotency_key="k")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.with_options(time=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    checkpoint.cursor = "1-1"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]

    job = client.submit("caption", returns=Caption)
    job.result().txt  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    number: int = job.result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    for update in job:
        update.text = "other", number  # type: ignore[misc, assignment]  # pyright: ignore[reportAttributeAccessIssue]
    for _, result in client.submit_batch("caption", [], returns=Caption).as_completed():
        result.text  # type: ignore[union-attr]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    client.map("caption", 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.map("caption", [], resume_file=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.map("caption", [], concurrency="4")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    for caption in client.map("caption", [], returns=Caption, return_exceptions=True):
        caption.text  # type: ignore[union-attr]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for token in job.tokens():
        token.logprob + 1  # type: ignore[operator]  # pyright: ignore[reportOptionalOperand, reportUnusedExpression]

    Client(token=b"t")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryPolicy(max_attempts=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def asynchronous(client: AsyncClient) -> None:
    job = client.submit("caption")
    job.id  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for _ in client.map("caption", []):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        pass
    await client.job("id")  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


def testing(server: FakeServer) -> None:
    server.endpoint("generate").streams([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    server.endpoint("generate").cuts_after(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
