"""The Python package `openai` with the OpenAI surface of `tidewire serve` and the bundled model."""

import asyncio
import contextlib
import gc
import io
import re
import signal
from importlib.metadata import metadata

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from support.free_port import free_port
from support.openai_surface import ALIAS, CONTEXT, chat_model, openai_client, read_until_error
from support.reference_server import eventually
from support.serve_command import served
from tidewire import Client

MESSAGES = [{"role": "developer", "content": "Write Python."}, {"role": "user", "content": "def f("}]

EXAMPLES = [
    block
    for block in re.findall(r"```py(?:thon)?\n(.*?)```", metadata("openai").get_payload(), re.DOTALL)
    if re.search(
        r"(responses|chat\.completions)(\.with_raw_response)?\.create\(|fine_tuning\.jobs\.create", block
    )
    and not re.search(
        r"workload|input_image|aiohttp|Aio|img_url|realtime|httpx2|[Bb]edrock|Azure|tools=", block
    )
]
"""Examples of the README about texts and about errors."""


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    return chat_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def surface(chat, tmp_path_factory):
    """URL of a server with the bundled model and a chat template."""
    folder = tmp_path_factory.mktemp("server")
    names = ("--served-model-name", ALIAS, "--served-model-name", "gpt-4o")
    log = f"sqlite:///{folder / 'log.db'}"
    with served(folder, "--model", str(chat), *names, "--log", log, model=True) as (
        _,
        peer,
    ):
        yield peer.url


@pytest.fixture
def client(surface):
    with openai_client(surface) as client:
        yield client


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def newest_text(surface):
    job = httpx2.get(f"{surface}/v1/jobs").json()["jobs"][0]["id"]
    return httpx2.get(f"{surface}/v1/jobs/{job}").json()["state"]["items"][0]["value"]["text"]


def test_the_examples_of_the_readme_were_found():
    kinds = (
        "responses.create",
        "chat.completions.create",
        "AsyncOpenAI",
        "stream=True",
        "APIStatusError",
        "raw",
    )
    assert [kind for kind in kinds if not any(kind in example for example in EXAMPLES)] == []


@pytest.mark.heavy
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # The examples close no client.
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_readme_works_with_another_base_url(example, surface, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{surface}/openai/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    printed = io.StringIO()
    if (
        re.search("^(?:    )?(?:await|async with|[a-z_]+ = await)", example, re.MULTILINE)
        and "def main" not in example
    ):
        lines = "".join(f"    {line}\n" for line in example.splitlines())
        example = f"from openai import AsyncOpenAI\nimport asyncio\nasync def main():\n    client = AsyncOpenAI()\n{lines}\nasyncio.run(main())"
    with contextlib.redirect_stdout(printed):
        exec(
            compile(example, "README", "exec"),
            {"client": openai.OpenAI(), "openai": openai, "OpenAI": openai.OpenAI},
        )
    gc.collect()
    said = printed.getvalue()
    # The model may write only white space.
    assert said.strip() or "print" not in example or "raise" in example or newest_text(surface) + "\n" == said


def test_models_have_their_own_name_and_the_aliases(client):
    assert [model.id for model in client.models.list()] == ["chat", ALIAS, "gpt-4o"]
    assert client.models.retrieve("gpt-4o").id == "gpt-4o"
    with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist; there is chat"):
        client.models.retrieve("gpt-9")


def test_a_streamed_chat_equals_the_same_chat_without_a_stream(client):
    same = {
        "model": ALIAS,
        "messages": MESSAGES,
        "seed": 5,
        "max_tokens": 24,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**same)
    chunks = [*client.chat.completions.create(**same, stream=True, stream_options={"include_usage": True})]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    (choice,) = whole.choices
    assert "".join(each.delta.content or "" for each in choices) == choice.message.content
    tokens = [token for each in choices if each.logprobs for token in each.logprobs.content]
    assert tokens == choice.logprobs.content
    assert len(tokens) == 24
    assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace") == choice.message.content
    assert all(len(token.top_logprobs) == 3 for token in tokens)
    assert [each.finish_reason for each in choices if each.finish_reason] == ["length"]
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 24
    assert choices[0].delta.role == "assistant"


@pytest.mark.heavy
def test_an_absent_limit_is_the_rest_of_the_context_and_16_for_completions(client):
    chat = client.chat.completions.create(model=ALIAS, messages=MESSAGES, seed=1, logit_bias={"0": -100})
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage.total_tokens == CONTEXT
    completion = client.completions.create(model=ALIAS, prompt="def f(", logit_bias={"0": -100})
    assert completion.usage.completion_tokens == 16


def test_the_samples_of_a_chat_are_choices(client):
    chat = client.chat.completions.create(model=ALIAS, messages=MESSAGES, n=3, seed=2, max_tokens=8)
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in chat.choices}) > 1
    one = client.chat.completions.create(model=ALIAS, messages=MESSAGES, seed=2, max_tokens=8)
    assert one.choices[0].message.content == chat.choices[0].message.content
    assert one.usage.prompt_tokens == chat.usage.prompt_tokens


def test_completions_of_several_prompts_are_choices_in_order(client):
    same = {"model": ALIAS, "n": 2, "seed": 3, "max_tokens": 6, "logprobs": 2}
    found = client.completions.create(prompt=["def f(", "import "], **same)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    alone = client.completions.create(prompt="import ", **same)
    assert [choice.text for choice in found.choices[2:]] == [choice.text for choice in alone.choices]
    for choice in found.choices:
        assert list(choice.logprobs.text_offset) == sorted(choice.logprobs.text_offset)
        assert "".join(choice.logprobs.tokens) == choice.text
        assert all(len(top) in {2, 3} for top in choice.logprobs.top_logprobs)
    texts = ["", "", "", ""]
    for chunk in client.completions.create(prompt=["def f(", "import "], **same, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in found.choices]


def test_a_response_format_is_a_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    named = {"name": "answer", "strict": True, "schema": schema}
    chat = client.chat.completions.create(
        model=ALIAS, messages=MESSAGES, response_format={"type": "json_schema", "json_schema": named}
    )
    assert chat.choices[0].message.content.replace(" ", "").strip() == '{"a":"x"}'
    assert chat.choices[0].finish_reason == "stop"
    text = {"format": {"type": "json_schema", **named}}
    response = client.responses.create(model=ALIAS, input="def", text=text)
    assert response.output_text.replace(" ", "").strip() == '{"a":"x"}'
    assert response.status == "completed"


def test_a_schema_may_have_the_bounds_of_int64(client):
    schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    chosen = {"type": "json_schema", "json_schema": {"name": "id", "schema": schema}}
    same = {"model": ALIAS, "messages": MESSAGES, "seed": 2**62 + 1, "max_tokens": 4}
    chat = client.chat.completions.create(**same, response_format=chosen)
    assert chat.choices[0].message.content.strip().isdecimal()


def test_a_conversation_is_continued_with_the_objects_of_earlier_answers(client):
    chat = client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=4)
    again = [
        *MESSAGES,
        chat.choices[0].message,
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    assert (
        client.chat.completions.create(model=ALIAS, messages=again, max_tokens=4).usage.completion_tokens == 4
    )
    first = client.responses.create(model=ALIAS, input="def f(", max_output_tokens=4)
    more = [{"role": "user", "content": "def f("}, *first.output, {"role": "user", "content": "go on"}]
    assert client.responses.create(model=ALIAS, input=more, max_output_tokens=4).usage.output_tokens == 4


def test_a_raw_response_names_the_job(client, surface):
    raw = client.chat.completions.with_raw_response.create(model=ALIAS, messages=MESSAGES, max_tokens=4)
    job = raw.headers["tidewire-job"].rpartition("/")[2]
    assert raw.headers["x-request-id"] == job
    assert raw.parse().id == f"chatcmpl-{job}"
    with Client(surface) as tidewire:
        assert tidewire.job(job).result()["text"] == raw.parse().choices[0].message.content


REFUSED = [
    ({"tools": [{"type": "function"}]}, "tools", "the model only generates text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type", "'text'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'assistant'"),
    ({"messages": [{"role": "user", "name": "bob", "content": "x"}]}, "messages[0].name",
     "messages[0].name is not supported; remove it"),
    ({"messages": []}, "messages", "at least 1"),
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": -1}, "temperature", "greater than or equal to 0"),
    ({"max_tokens": 10**6}, "max_tokens", "room for only"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "must equal"),
    ({"n": 0}, "n", "from 1 to 64"),
    ({"seed": -1}, "seed", "greater than or equal to 0"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "the maximum on this server is 20"),
    ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "needs a schema"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
    ({"store": True}, "store", "cannot be retrieved"),
    ({"extra_body": {"frobnicate": 1}}, "frobnicate", "is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "param", "message"), REFUSED, ids=[str(param) for _, param, _ in REFUSED]
)
def test_a_member_that_is_not_served_is_refused_by_name(client, members, param, message):
    with pytest.raises(openai.BadRequestError, match=re.escape(message)) as found:
        client.chat.completions.create(**({"model": ALIAS, "messages": MESSAGES} | members))
    assert found.value.param == param
    assert found.value.type == "invalid_request_error"


def test_members_of_responses_and_completions_that_are_not_served_are_refused(client):
    for members in (
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"store": False, "background": True},
        {"include": ["reasoning.encrypted_content"]},
        {"truncation": "auto"},
    ):
        with pytest.raises(openai.BadRequestError) as found:
            client.responses.create(model=ALIAS, input="def", **members)
        assert found.value.param in members
    for members in ({"prompt": [1, 2, 3]}, {"prompt": []}, {"echo": True}, {"best_of": 2}):
        with pytest.raises(openai.BadRequestError) as found:
            client.completions.create(**({"model": ALIAS, "prompt": "def"} | members))
        assert found.value.param in members


def test_neutral_values_are_accepted(client):
    chat = {
        "user": "u",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "stop": None,
        "logit_bias": None,
        "store": False,
        "response_format": {"type": "text"},
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_p": 1,
        "modalities": ["text"],
    }
    client.chat.completions.create(model=ALIAS, messages=MESSAGES, max_tokens=2, **chat)
    response = {"store": True, "background": False, "truncation": "disabled", "tools": [], "reasoning": None}
    client.responses.create(
        model=ALIAS, input="def", max_output_tokens=2, text={"format": {"type": "text"}}, **response
    )


def test_a_background_response_is_resumed_at_each_event(client):
    created = client.responses.create(
        model=ALIAS, input="def f(", background=True, max_output_tokens=30, top_logprobs=2
    )
    assert created.status in {"queued", "in_progress"}
    events = [*client.responses.retrieve(created.id, stream=True, include=[])]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    whole = client.responses.retrieve(created.id)
    assert text_of(events) == whole.output_text
    (part,) = whole.output[0].content
    assert len(part.logprobs) == 30
    assert [
        each for event in events for each in getattr(event, "logprobs", []) if event.type.endswith("delta")
    ] != []
    for at, event in enumerate(events):
        rest = [*client.responses.retrieve(created.id, stream=True, starting_after=event.sequence_number)]
        assert text_of(events[: at + 1]) + text_of(rest) == whole.output_text
        assert [e.type for e in rest if "delta" not in e.type] == [
            e.type for e in events[at + 1 :] if "delta" not in e.type
        ]
    assert events[-1].response.model_dump(exclude={"background"}) == whole.model_dump(exclude={"background"})


def test_an_idempotency_key_names_one_job(client):
    same = {
        "model": ALIAS,
        "messages": MESSAGES,
        "max_tokens": 6,
        "extra_headers": {"Idempotency-Key": "once"},
    }
    first = client.chat.completions.with_raw_response.create(**same)
    again = client.chat.completions.with_raw_response.create(**same)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.parse() == again.parse()
    with pytest.raises(openai.BadRequestError, match="different body"):
        client.chat.completions.create(**(same | {"max_tokens": 7}))


def test_a_response_that_is_not_stored_is_deleted(client, surface):
    raw = client.responses.with_raw_response.create(
        model=ALIAS, input="def", max_output_tokens=3, store=False
    )
    assert httpx2.get(surface + raw.headers["tidewire-job"]).status_code == 410
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(raw.parse().id)
    events = [
        *client.responses.create(model=ALIAS, input="def", max_output_tokens=3, store=False, stream=True)
    ]
    job = events[0].response.id.removeprefix("resp_")
    eventually(lambda: httpx2.get(f"{surface}/v1/jobs/{job}").status_code == 410)


@pytest.mark.heavy
@pytest.mark.timeout(240)  # Two servers load a model.
def test_a_stream_resumes_after_the_server_was_killed(chat, tmp_path):
    port = free_port()
    arguments = ("--model", str(chat), "--log", f"sqlite:///{tmp_path / 'log.db'}")
    same = {"model": "chat", "input": "def f(", "temperature": 0, "max_output_tokens": 200}
    with (
        served(tmp_path, *arguments, port=port, model=True) as (process, peer),
        openai_client(peer.url) as client,
    ):
        stream = client.responses.create(**same, background=True, stream=True)
        events = [next(stream) for _ in range(20)]
        process.send_signal(signal.SIGKILL)
        more, error = read_until_error(stream)
        assert isinstance(error, openai.APIConnectionError)
        events += more
    response = events[0].response.id
    assert text_of(events)
    with served(tmp_path, *arguments, port=port, model=True) as (_, peer), openai_client(peer.url) as client:
        rest = [*client.responses.retrieve(response, stream=True, starting_after=events[-1].sequence_number)]
        whole = client.responses.retrieve(response)
        assert text_of(events) + text_of(rest) == whole.output_text
        assert rest[-1].type == "response.incomplete"
        unbroken = client.responses.create(**same)
        assert whole.output_text == unbroken.output_text


def test_an_api_key_is_a_token(chat, tmp_path):
    (tmp_path / "tokens").write_text("ann:secret-a\nbob:secret-b\n")
    with served(tmp_path, "--model", str(chat), "--token-file", str(tmp_path / "tokens"), model=True) as (
        _,
        peer,
    ):
        with (
            openai_client(peer.url, api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError) as found,
        ):
            client.models.list()
        assert found.value.code == "invalid_api_key"
        with (
            openai_client(peer.url, api_key="secret-a") as ann,
            openai_client(peer.url, api_key="secret-b") as bob,
        ):
            response = ann.responses.create(model="chat", input="def", max_output_tokens=3)
            assert ann.responses.retrieve(response.id).id == response.id
            for call in (bob.responses.retrieve, bob.responses.cancel):
                with pytest.raises(openai.NotFoundError, match="does not exist"):
                    call(response.id)


@pytest.mark.heavy
def test_a_model_without_a_chat_template_has_only_completions(tmp_path):
    with served(tmp_path, model=True) as (_, peer), openai_client(peer.url) as client:
        (model,) = client.models.list()
        assert client.completions.create(model=model.id, prompt="def f(").usage.completion_tokens == 16
        for call in (
            lambda: client.chat.completions.create(model=model.id, messages=MESSAGES),
            lambda: client.responses.create(model=model.id, input="def f("),
        ):
            with pytest.raises(openai.BadRequestError, match="chat template"):
                call()


async def test_the_async_client_reads_two_streams_at_once(surface):
    async with AsyncOpenAI(base_url=f"{surface}/openai/v1", api_key="any", max_retries=0) as client:

        async def read(seed):
            chunks = await client.chat.completions.create(
                model=ALIAS, messages=MESSAGES, seed=seed, max_tokens=20, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        first, same, other = await asyncio.gather(read(1), read(1), read(2))
    assert first == same != other
