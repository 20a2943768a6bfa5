"""Submitting a job: the request, retries, and errors."""

import math
import re
from dataclasses import dataclass

import anyio
import pytest
from pydantic import BaseModel, Field

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    RESET,
    ScriptedServer,
    answer,
    discovery,
    endpoint,
    hurried,
    job,
    problem,
)
from tidewire import AsyncClient, RetryPolicy
from tidewire.errors import (
    EndpointNotFoundError,
    InvalidInputError,
    ProtocolError,
    QueueFullError,
    RateLimitError,
    RequestError,
    TidewireError,
    TransportError,
)

pytestmark = pytest.mark.anyio


def by_turn(*turns, offers=None):
    """Script that answers POSTs with the turns in order and repeats the last; `GET /v1` returns `offers`."""
    left = list(turns)
    offers = offers or discovery("count")

    def script(request):
        if request.method == "GET":
            return iter([answer(200, offers)])
        return iter(left.pop(0) if len(left) > 1 else left[0])

    return script


ACCEPTED = [answer(201, job(), Location="/v1/jobs/j1")]


async def submitted(*args, script=None, options=None, client_options=None, **members):
    """Submit to a scripted server; return the job or the error, the POST requests, and the waits."""
    timing, waits = hurried()
    with ScriptedServer(script or by_turn(ACCEPTED)) as server:
        async with with_timing(AsyncClient(server.url, **(client_options or {})), timing) as client:
            try:
                outcome = await client.with_options(**(options or {})).submit(*args, **members)
            except TidewireError as error:
                outcome = error
        return outcome, [request for request in server.requests if request.method == "POST"], waits


# ---- request -----------------------------------------------------------------------------------------------------


async def test_submit_posts_json_with_an_idempotency_key_and_accepts_a_stream():
    started, [post], _ = await submitted("count", n=3)
    assert started.id == "j1"
    assert (post.path, post.json) == ("/v1/endpoints/count/jobs", {"input": {"n": 3}})
    assert post.headers["accept"] == "text/event-stream"
    assert post.headers["content-type"] == "application/json"
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", post.headers["idempotency-key"])


async def test_each_submit_has_a_new_idempotency_key():
    keys = {(await submitted("count"))[1][0].headers["idempotency-key"] for _ in range(3)}
    assert len(keys) == 3


async def test_options_in_seconds_are_sent_in_milliseconds():
    options = {
        "on_disconnect": "cancel",
        "grace": 90.0,
        "deadline": 1.5,
        "headers": {"X-A": "b"},
    }
    _, [post], _ = await submitted("count", options=options, idempotency_key="k")
    assert post.json == {"input": {}, "on_disconnect": "cancel", "grace_ms": 90_000, "deadline_ms": 1500}
    assert (post.headers["idempotency-key"], post.headers["x-a"]) == ("k", "b")


@pytest.mark.parametrize(
    "invalid_options",
    [{"timeout": 0}, {"deadline": -1}, {"grace": math.nan}, {"on_disconnect": "die"}],
)
async def test_with_options_refuses_invalid_values(invalid_options):
    with pytest.raises(ValueError, match=next(iter(invalid_options))):
        AsyncClient("http://127.0.0.1:1").with_options(**invalid_options)


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256, 5])
@pytest.mark.parametrize("call", ["submit", "run", "submit_batch", "map"])
async def test_an_invalid_idempotency_key_raises_before_sending(call, key):
    async def start():
        started = getattr(AsyncClient("http://127.0.0.1:1"), call)("count", [{}], idempotency_key=key)
        await (anext(started) if call == "map" else started)

    with pytest.raises(ValueError, match="idempotency_key must be 1 to 255 visible ASCII characters"):
        await start()


def test_with_options_does_not_accept_idempotency_key():
    client = AsyncClient("http://127.0.0.1:1")
    with pytest.raises(TypeError, match="idempotency_key"):
        client.with_options(idempotency_key="k")


async def test_an_endpoint_name_is_escaped_as_one_path_segment():
    _, [post], _ = await submitted("a/b c")
    assert post.path == "/v1/endpoints/a%2Fb%20c/jobs"


class Picture(BaseModel):
    image: str
    long_side: int = Field(640, alias="longSide")


@dataclass
class Pair:
    a: int
    b: str


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ("text", "text"),
        (None, None),
        ([1, 2.5], [1, 2.5]),
        ((1, 2), [1, 2]),
        (Picture(image="x"), {"image": "x", "longSide": 640}),
        (Pair(1, "b"), {"a": 1, "b": "b"}),
    ],
)
async def test_an_input_may_be_json_a_model_or_a_dataclass(value, wire):
    _, [post], _ = await submitted("count", value)
    assert post.json == {"input": wire}


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**53 + 1, "\ud800", {"a": object()}, {1: 2, "1": 3}, [[]] * 3 + [math.nan]],
)
async def test_an_input_that_is_not_json_raises_before_sending(value):
    error, posts, _ = await submitted("count", value)
    assert isinstance(error, InvalidInputError)
    assert posts == []


async def test_an_input_and_keyword_members_together_raise():
    with pytest.raises(TypeError, match="not both"):
        await submitted("count", {"n": 1}, n=2)


# ---- choice of the endpoint --------------------------------------------------------------------------------------


async def test_submit_without_a_name_uses_the_only_endpoint():
    _, [post], _ = await submitted()
    assert (post.path, post.json) == ("/v1/endpoints/count/jobs", {"input": {}})


async def test_submit_without_a_name_lists_several_endpoints():
    error, posts, _ = await submitted(script=by_turn(ACCEPTED, offers=discovery("a", "b")))
    assert isinstance(error, EndpointNotFoundError)
    assert "this server has 2 endpoints: a, b" in str(error)
    assert posts == []


async def test_endpoint_as_a_keyword_raises_with_advice():
    error, _, _ = await submitted(endpoint="a", script=by_turn(ACCEPTED, offers=discovery("a", "b")))
    assert isinstance(error, EndpointNotFoundError)
    assert "as the first positional argument" in error.advice


async def test_invalid_input_advises_to_read_the_input_schema():
    error, _, _ = await submitted("count", n="x", script=by_turn([problem(422, "invalid_input")]))
    assert isinstance(error, InvalidInputError)
    assert "client.describe('count').input_schema" in error.advice
    assert "with_options" not in error.advice


async def test_an_option_among_the_inputs_advises_to_set_it_on_the_client():
    refused = problem(422, "invalid_input", pointer="/input/timeout")
    error, _, _ = await submitted("count", timeout=3, script=by_turn([refused]))
    assert error.advice.endswith("client.with_options(timeout=…).")


async def test_discovery_is_requested_once():
    with ScriptedServer(by_turn(ACCEPTED)) as server:
        async with AsyncClient(server.url) as client:
            for _ in range(3):
                await client.submit()
        assert server.paths() == ["/v1"]


async def test_an_unknown_endpoint_lists_the_known_ones():
    script = by_turn([problem(404, "endpoint_not_found")], offers=discovery("a", "b"))
    error, _, _ = await submitted("nope", script=script)
    assert isinstance(error, EndpointNotFoundError)
    assert "This server has: a, b." in str(error)


def restarted_server(names, refusal):
    """Return a script of a server whose endpoints are those in the list `names`, and that refuses each submit."""

    def script(request):
        if request.method == "POST":
            return [refusal]
        return [answer(200, discovery(*names) if request.path == "/v1" else endpoint(names[0]))]

    return script


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "endpoint_not_found"), (413, "body_too_large"), (422, "invalid_input"), (422, "batch_too_large")],
)
async def test_a_refused_submit_makes_the_client_read_the_descriptions_again(status, code):
    names = ["old"]
    with ScriptedServer(restarted_server(names, problem(status, code))) as server:
        async with AsyncClient(server.url) as client:
            await client.discover()
            await client.describe("old")
            names[:] = ["new"]
            with pytest.raises(RequestError) as caught:
                await client.submit("old")
            assert "This server has: new." in str(caught.value) or status != 404
            assert [each.name for each in (await client.discover()).endpoints] == ["new"]
            assert (await client.describe("old")).name == "new"


async def test_a_missing_name_is_resolved_again_after_an_error():
    names = ["a", "b"]
    with ScriptedServer(restarted_server(names, problem(422, "invalid_input"))) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(EndpointNotFoundError, match="2 endpoints"):
                await client.submit()
            names[:] = ["a"]
            with pytest.raises(InvalidInputError):
                await client.submit()


# ---- retries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [CLOSE, RESET])
async def test_submit_is_retried_with_the_same_key_and_body_when_its_response_is_lost(how):
    started, posts, waits = await submitted(
        "count", n=1, script=by_turn([how], [answer(201)[:20], how], ACCEPTED)
    )
    assert started.id == "j1"
    assert len(posts) == 3
    assert len({(post.headers["idempotency-key"], post.body) for post in posts}) == 1
    assert len(waits) == 2


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_gateway_errors_are_not_retried_if_the_server_keeps_no_keys(
    status,
):
    script = by_turn(
        [answer(status, b"<h1>Gateway time-out</h1>")], offers=discovery("count", capabilities=[])
    )
    error, posts, _ = await submitted("count", script=script)
    assert (type(error), error.status_code, len(posts)) == (RequestError, status, 1)
    assert "does not keep the idempotency keys" in str(error)


async def test_submit_is_not_retried_if_the_server_keeps_no_keys():
    script = by_turn([CLOSE], ACCEPTED, offers=discovery("count", capabilities=[]))
    error, posts, _ = await submitted("count", script=script)
    assert isinstance(error, TransportError)
    assert error.sent
    assert "may or may not have started" in str(error)
    assert len(posts) == 1


async def test_submit_with_credentials_is_retried_without_the_capability():
    script = by_turn([CLOSE], ACCEPTED, offers=discovery("count", capabilities=[]))
    started, posts, _ = await submitted(
        "count", script=script, client_options={"headers": {"Authorization": "x"}}
    )
    assert (started.id, len(posts)) == ("j1", 2)


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "idempotency_in_flight"), (429, "queue_full"), (429, "rate_limited"), (503, "unavailable")],
)
async def test_submit_waits_for_retry_after(status, code):
    busy = [problem(status, code, retry_after="3", retryable=True)]
    started, posts, waits = await submitted("count", script=by_turn(busy, busy, ACCEPTED))
    assert started.id == "j1"
    assert all(3 <= wait <= 4.5 for wait in waits)
    assert len({post.headers["idempotency-key"] for post in posts}) == 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "queue_full", QueueFullError),
        (429, "too_many_jobs", RateLimitError),
        (503, "unavailable", RequestError),
        (500, "internal", RequestError),
    ],
)
async def test_submit_raises_after_its_attempts(status, code, kind):
    options = {"retry": RetryPolicy(attempts=3)}
    error, posts, waits = await submitted("count", script=by_turn([problem(status, code)]), options=options)
    assert type(error) is kind
    assert (error.status_code, error.code) == (status, code)
    assert (len(posts), len(waits)) == (3, 2)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "malformed_body", InvalidInputError),
        (413, "body_too_large", InvalidInputError),
        (415, "unsupported_media_type", RequestError),
        (422, "invalid_input", InvalidInputError),
        (422, "top_logprobs_too_large", InvalidInputError),
        (422, "https://example.org/too-hot", InvalidInputError),
        (422, "idempotency_key_reused", RequestError),
        (410, "job_expired", RequestError),
    ],
)
async def test_client_errors_are_not_retried(status, code, kind):
    error, posts, _ = await submitted("count", script=by_turn([problem(status, code)]))
    assert isinstance(error, kind)
    assert len(posts) == 1


async def test_invalid_input_names_the_member():
    error, _, _ = await submitted(
        "count", n="x", script=by_turn([problem(422, "invalid_input", pointer="/input/n")])
    )
    assert (error.pointer, error.status_code) == ("/input/n", 422)
    assert "'/input/n'" in str(error)
    assert isinstance(error, ValueError)


async def test_a_response_that_is_not_a_job_raises_a_protocol_error():
    with ScriptedServer(by_turn([answer(201, {"id": "j1"})])) as server:
        async with AsyncClient(server.url) as client:
            await client.discover()
            with pytest.raises(ProtocolError, match="submitted job: /endpoint: this member is required"):
                await client.submit("count")


@pytest.mark.parametrize("link", ["http://[::1", "\0", "http://a\tb/"])
async def test_an_invalid_link_raises_a_protocol_error(link):
    broken = job()
    broken["links"]["events"] = link
    error, _, _ = await submitted("count", script=by_turn([answer(201, broken)]))
    assert isinstance(error, ProtocolError)
    assert "invalid link" in str(error)


async def test_a_link_that_is_too_long_raises_a_protocol_error():
    long = job()
    long["links"]["events"] = "/" + "a" * 2**16
    with ScriptedServer(by_turn([answer(201, long)])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="contains the invalid link .*: URL too long"):
                await client.submit("count")


async def test_a_redirect_to_an_invalid_link_raises_a_protocol_error():
    with ScriptedServer(lambda _: iter([answer(302, Location="javascript:1")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(ProtocolError, match="contains an invalid link"):
                await client.job("j1").result()


async def test_requests_keep_the_base_path_of_the_server():
    with ScriptedServer(by_turn(ACCEPTED)) as server:
        async with AsyncClient(server.url + "/ai/v1/") as client:
            assert client.url == server.url + "/ai"
            await client.submit("count")
        assert server.paths("POST") == ["/ai/v1/endpoints/count/jobs"]


async def test_concurrent_requests_share_one_call_of_auth():
    value = []

    async def auth():
        value.append(f"Bearer {len(value) + 1}")
        await anyio.sleep(0.01)
        return {"Authorization": value[-1]}

    def script(request):
        if request.headers["authorization"] == good:
            yield answer(200, job())
        else:
            yield problem(401, "unauthorized")

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url, auth=auth) as client:
            for good in "Bearer 1", "Bearer 2":
                async with anyio.create_task_group() as tasks:
                    for _ in range(8):
                        tasks.start_soon(client.job("j1").status)
                # The server rejects earlier credentials as expired. All waiting requests share the new
                # credentials of one call of `auth`.
                assert value[-1] == good
