"""`job.tokens()` and `job.logprobs()`: each token once with the requested members; arrays and their shapes."""

import builtins
import itertools
import math

import numpy as np
import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    done,
    endpoint,
    event,
    hello,
    hurried,
    job,
    state,
)
from tidewire import AsyncClient, Checkpoint, Client
from tidewire.errors import JobFailedError, ProtocolError, TidewireError, VoidTextError
from tidewire.jobs.generated_tokens import Alternative, Token
from tidewire.protocol.document.view import View
from tidewire.testing import FakeServer, FakeToken

TOKENS = [
    FakeToken("Hel", -0.5, [("Hel", -0.5), ("Jel", -1.25)], rank=1),
    FakeToken("lo", None, [("p", -0.25), ("m", None)], rank=3),
    FakeToken("!", -2.0, [("?", -0.75)], rank=2),
]


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("generate").generates(TOKENS)
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


# ---- tokens ------------------------------------------------------------------------------------------------------


def test_a_token_has_all_requested_members(server, client):
    job = client.submit("generate", top_logprobs=2, ranks=True)
    first, second, third = job.tokens()
    assert first == Token("Hel", 0, -0.5, 1, (Alternative("Hel", 0, -0.5), Alternative("Jel", 1, -1.25)))
    assert (second.text, second.logprob, second.rank) == ("lo", -math.inf, 3)
    assert second.alternatives[1] == Alternative("m", 4, -math.inf)
    assert len(third.alternatives) == 1
    assert ("GET", "/v1/endpoints/generate/vocabulary") in server.requests


def test_a_token_omits_members_that_were_not_requested(client):
    assert next(client.submit("generate", logprobs=True).tokens()) == Token("Hel", 0, -0.5)
    assert next(client.submit("generate", ranks=True).tokens()) == Token("Hel", 0, None, 1)


def test_tokens_read_only_the_columns_that_a_token_uses(client, monkeypatch):
    read = set()
    elements = View.elements
    monkeypatch.setattr(
        View, "elements", lambda view, pointer, start: (read.add(pointer), elements(view, pointer, start))[1]
    )
    assert len([*client.submit("generate", top_logprobs=1).tokens()]) == 3
    names = {"token_ids", "logprobs", "ranks", "top_ids", "top_logprobs", "token_text", "top_text"}
    assert read == {f"/items/0/value/{name}" for name in names}


def test_token_text_from_the_job_needs_no_vocabulary(server, client):
    tokens = [*client.submit("generate", top_logprobs=1, token_text=True).tokens()]
    assert [token.text for token in tokens] == ["Hel", "lo", "!"]
    assert [token.alternatives[0].text for token in tokens] == ["Hel", "p", "?"]
    assert ("GET", "/v1/endpoints/generate/vocabulary") not in server.requests


def test_the_vocabulary_is_downloaded_once_and_revalidated(server, client):
    for _ in range(3):
        assert len([*client.submit("generate", logprobs=True).tokens()]) == 3
    assert server.requests.count(("GET", "/v1/endpoints/generate/vocabulary")) == 3
    assert server.vocabularies_sent == 1


def test_a_changed_vocabulary_is_downloaded_again(server, client):
    assert len([*client.submit("generate", logprobs=True).tokens()]) == 3
    server.endpoint("other").generates([FakeToken("new")])
    assert [token.text for token in client.submit("other", logprobs=True).tokens()] == ["new"]
    assert [token.text for token in client.submit("generate", logprobs=True).tokens()] == ["Hel", "lo", "!"]
    assert server.vocabularies_sent == 3


@pytest.mark.parametrize("cut", range(4))
def test_each_token_is_delivered_once_despite_a_cut(cut):
    with FakeServer() as server, Client(server.url) as client:
        server.endpoint("generate").generates(TOKENS).cuts_after(cut)
        tokens = [*client.submit("generate", logprobs=True).tokens()]
        assert ([token.text for token in tokens], server.cuts) == (["Hel", "lo", "!"], 1)


def resumed(client, job):
    """Read a part of a job, and return the job that is restored from the checkpoint at this point."""
    list(itertools.islice(job, 2))
    return client.job(checkpoint=Checkpoint.from_json(job.checkpoint().to_json()))


BEFORE = {
    "nothing": lambda _client, job: job,
    "a loop": lambda _client, job: (list(job), job)[1],
    "a part of a loop": lambda _client, job: (list(itertools.islice(job, 2)), job)[1],
    "iter_text": lambda _client, job: (list(job.iter_text()), job)[1],
    "result": lambda _client, job: (job.result(), job)[1],
    "all tokens": lambda _client, job: (list(job.tokens()), job)[1],
    "a part of the tokens": lambda _client, job: (list(itertools.islice(job.tokens(), 2)), job)[1],
    "a resume": resumed,
    "a resume after the end": lambda client, job: (list(job), client.job(checkpoint=job.checkpoint()))[1],
    "another job object": lambda client, job: client.job(job.id),
}
"""What a program may do with a job before it reads the tokens. Each entry returns the job to read."""


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_tokens_are_always_complete(client, before):
    job = before(client, client.submit("generate", logprobs=True))
    for _ in range(2):
        assert [token.text for token in job.tokens()] == ["Hel", "lo", "!"]


@pytest.mark.anyio
@pytest.mark.parametrize("before", ["loop", "part", "result", "tokens"])
async def test_async_tokens_are_always_complete(server, before):
    async with AsyncClient(server.url) as client:
        job = await client.submit("generate", logprobs=True)
        if before == "result":
            await job.result()
        elif before == "tokens":
            async for _ in job.tokens():
                break
        else:
            async for _ in job:
                if before == "part":
                    break
        assert [token.text async for token in job.tokens()] == ["Hel", "lo", "!"]


@pytest.mark.parametrize("taken", range(4))
def test_tokens_consume_no_updates(client, taken):
    job = client.submit("generate", logprobs=True)
    text = "".join(update.text for update in itertools.islice(job, taken))
    before = job.checkpoint()
    assert next(job.tokens()).text == "Hel"
    assert len(list(job.tokens())) == 3
    assert job.checkpoint() == before
    assert text + "".join(update.text for update in job) == "Hello!"


def test_tokens_that_are_already_known_need_no_event():
    """The server sends nothing more, but the tokens that the loop has received are yielded."""
    value = {"text": "a", "token_ids": [0], "logprobs": [-1]}

    def script(request):
        if request.path.endswith("/events"):
            yield STREAM + hello()
            yield HOLD
        elif request.method == "POST":
            yield answer(201, job(state(value), columns=COLUMNS, endpoint="generate"))
        else:
            yield from rollback_script(request)

    with ScriptedServer(script) as server, Client(server.url) as client:
        submitted = client.submit("generate", logprobs=True)
        assert next(iter(submitted)).text == "a"
        assert next(submitted.tokens()).id == 0


def test_tokens_of_a_text_only_job_raise_and_name_the_argument(client):
    with pytest.raises(TidewireError, match=r"no token columns.*top_logprobs=n"):
        list(client.submit("generate").tokens())


def test_tokens_of_a_job_that_is_not_a_generation_raise(server, client):
    server.endpoint("count").returns(5)
    with pytest.raises(TidewireError, match=r"no token columns.*top_logprobs=n"):
        list(client.submit("count").tokens())


def test_tokens_of_a_failed_job_raise_its_failure(server, client):
    server.endpoint("count").fails()
    with pytest.raises(JobFailedError):
        list(client.submit("count").tokens())


def test_tokens_raise_if_a_restart_retracts_delivered_tokens():
    with FakeServer() as server, Client(server.url) as client:
        server.endpoint("generate").generates(TOKENS).restarts_after(2)
        tokens = client.submit("generate", logprobs=True).tokens()
        assert [next(tokens).text, next(tokens).text] == ["Hel", "lo"]
        with pytest.raises(VoidTextError, match="retracted tokens|code points of text"):
            next(tokens)


VALUE = "/items/0/value"
COLUMNS = [f"{VALUE}/text", f"{VALUE}/token_ids", f"{VALUE}/logprobs"]
EMPTY = {"text": "", "token_ids": [], "logprobs": [], "finish_reason": None}
VOCABULARY = {"hash": "h", "tokens": ["YQ==", "4pI=", "gg==", "Yg=="], "special": []}
"""Tokens for `a`, for the two parts of one UTF-8 character, and for `b`."""


def rollback_script(request):
    if request.path.endswith("/vocabulary"):
        yield answer(200, VOCABULARY)
    elif request.path.endswith("/generate"):
        found = endpoint("generate", rollback=True)
        found["links"] = {"vocabulary": "/v1/endpoints/generate/vocabulary"}
        yield answer(200, found)
    elif request.method == "POST":
        yield answer(201, job(state(EMPTY), columns=COLUMNS, endpoint="generate"))
    else:
        stable = f"{VALUE.removesuffix('/value')}/stable"
        value = {
            "text": "a⒂b",
            "token_ids": [0, 1, 2, 3],
            "logprobs": [-1, -4, -5, -6],
            "finish_reason": "stop",
        }
        yield STREAM + hello()
        yield event([["r", "a", 0, -1]], id="1-2")
        # Half of a character yields no text yet, so the token that the server takes back has no text.
        yield event([["s", stable, {"/text": 1}], ["r", "", 1, -2]], id="1-3")
        yield event([["t", COLUMNS[1], 1], ["t", COLUMNS[2], 1], ["r", "b", 3, -3]], id="1-4")
        yield event([["t", COLUMNS[0], 1], ["t", COLUMNS[1], 1], ["t", COLUMNS[2], 1]], id="1-5")
        yield event([["r", "", 1, -4], ["r", "⒂", 2, -5]], id="1-6")
        yield event(
            [["r", "b", 3, -6], ["s", stable, {"/text": 3}], ["s", f"{VALUE}/finish_reason", "stop"]],
            id="1-7",
        )
        yield event([["s", "/items/0/status", "succeeded"]], id="1-8")
        yield done("1-9", [{"status": "succeeded", "value": value, "stable": {"/text": 3}}])
        yield CLOSE


@pytest.mark.parametrize("cut", range(2, 7))
@pytest.mark.parametrize("taken", range(7))
def test_tokens_of_a_rollback_endpoint_wait_until_their_text_is_stable(taken, cut):
    """The connection ends after some events, so the client reads them before the remaining ones."""

    def script(request):
        first, *events = rollback_script(request)
        seen = int((request.cursor or "1-1").partition("-")[2])  # The first event is 1-2.
        yield from (
            [first, *events[: cut - 1], CLOSE] if events and seen == 1 else [first, *events[seen - 1 :]]
        )

    timing, _ = hurried()
    with ScriptedServer(script) as server, with_timing(Client(server.url), timing) as client:
        submitted = client.submit("generate", logprobs=True)
        list(itertools.islice(submitted, taken))
        tokens = [*submitted.tokens()]
    assert [(token.id, token.logprob) for token in tokens] == [(0, -1), (1, -4), (2, -5), (3, -6)]
    assert [token.text for token in tokens] == ["a", "�", "�", "b"]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["no base64!"], "not a valid vocabulary"),
        ([], "token id 0 is not in the vocabulary of 0 tokens"),
    ],
)
def test_an_invalid_vocabulary_raises_a_protocol_error(tokens, message):
    def script(request):
        if request.path.endswith("/vocabulary"):
            yield answer(200, {"hash": "h", "tokens": tokens})
        else:
            yield from rollback_script(request)

    with ScriptedServer(script) as server, Client(server.url) as client:
        with pytest.raises(ProtocolError, match=message):
            list(client.submit("generate", logprobs=True).tokens())


# ---- arrays ------------------------------------------------------------------------------------------------------


def test_logprobs_arrays_have_dtypes_shapes_and_minus_infinity_padding(client):
    found = client.submit("generate", top_logprobs=2, ranks=True).logprobs()
    assert (found.token_ids.dtype, found.token_ids.tolist()) == (np.int64, [0, 2, 5])
    assert (found.logprobs.dtype, found.logprobs.tolist()) == (np.float64, [-0.5, -math.inf, -2.0])
    assert np.exp(found.logprobs).tolist()[1] == 0
    assert found.ranks.tolist() == [1, 3, 2]
    assert found.top_ids.tolist() == [[0, 1], [3, 4], [6, -1]]
    assert found.top_logprobs.tolist() == [[-0.5, -1.25], [-0.25, -math.inf], [-0.75, -math.inf]]
    assert (found.mode, found.scored_logprobs, found.prompt_logprobs) == ("raw", None, None)


def test_the_first_prompt_token_has_no_log_probability(server, client):
    prompt = {"prompt_token_ids": [4, 5], "prompt_logprobs": [None, -1.5]}
    tops = {"prompt_top_ids": [[], [5, 6]], "prompt_top_logprobs": [[], [-1.5, -3]]}
    server.endpoint("prompt").returns(
        {"text": "x", "finish_reason": "length", "logprobs_mode": "raw", **prompt, **tops}
    )
    found = client.submit("prompt").logprobs()
    assert math.isnan(found.prompt_logprobs[0])
    assert found.prompt_logprobs.tolist()[1:] == [-1.5]
    assert found.prompt_top_ids.tolist() == [[-1, -1], [5, 6]]
    assert found.token_ids.shape == (0,)


@pytest.mark.parametrize(
    "columns",
    [
        {"token_ids": ["a"]},
        {"token_ids": [1.5]},
        {"token_ids": [1], "logprobs": ["x"]},
        {"token_ids": [1], "logprobs": 5},
        {"token_ids": [1], "top_ids": [5], "top_logprobs": [-1]},
        {"token_ids": [1], "top_ids": [[1]], "top_logprobs": [[{}]]},
    ],
)
def test_columns_of_wrong_types_raise_a_protocol_error(server, client, columns):
    texts = {"token_text": ["a"], "top_text": [["a"]]}
    server.endpoint("odd").returns({"text": "", **texts, **columns})
    with pytest.raises(ProtocolError, match="token columns of this job are not valid"):
        client.submit("odd").logprobs()
    with pytest.raises(ProtocolError, match="token columns of this job are not valid"):
        list(client.submit("odd").tokens())


@pytest.mark.parametrize(("name", "of"), [("logprobs", "token_ids"), ("prompt_top_ids", "prompt_token_ids")])
def test_columns_of_different_lengths_raise_a_protocol_error(server, client, name, of):
    server.endpoint("odd").returns({"token_ids": [1, 2], "prompt_token_ids": [3, 4], name: [[]]})
    with pytest.raises(ProtocolError, match=f"{name} and {of} differ in length"):
        client.submit("odd").logprobs()


@pytest.mark.anyio
async def test_async_logprobs(server):
    async with AsyncClient(server.url) as client:
        assert (await (await client.submit("generate", logprobs=True)).logprobs()).logprobs.shape == (3,)


def test_logprobs_of_a_text_only_job_raise_and_name_the_argument(client):
    with pytest.raises(TidewireError, match="no token columns.*logprobs=True"):
        client.submit("generate").logprobs()


def test_logprobs_without_numpy_name_the_package_to_install(client, monkeypatch):
    load = builtins.__import__

    def without_numpy(name, *rest):
        if name == "numpy":
            raise ImportError("No module named 'numpy'")
        return load(name, *rest)

    job = client.submit("generate", logprobs=True)
    monkeypatch.setattr(builtins, "__import__", without_numpy)
    with pytest.raises(ImportError, match="pip install numpy"):
        job.logprobs()
