"""`iter_text` and the functions that it reads: text as it arrives, and an error where there is none to yield."""

import queue
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import BaseModel

from tidewire import AsyncClient, Client
from tidewire.errors import JobFailedError, NoTextError, TidewireError, VoidTextError
from tidewire_server import Append, Server, Stream

WORDS = ["the ", "sea ", "went ", "on"]
server = Server(default_concurrency_limit=None)
turns: queue.Queue[None] = queue.Queue()
"""The test puts one object for each further step of a function."""


def next_turn() -> None:
    turns.get(timeout=30)


class Message(BaseModel):
    role: str
    content: str


@server.endpoint
def whole_texts() -> Iterator[str]:
    text = ""
    for word in WORDS:
        text += word
        yield text
        next_turn()


@server.endpoint
def pieces() -> Iterator[Append[str]]:
    for word in WORDS:
        yield Append(word)
        next_turn()


@server.endpoint
def stream(stream: Stream[str]) -> None:
    for word in WORDS:
        stream.append(word)
        next_turn()


@server.endpoint(columns=["/1/content"])
def chat_with_a_column() -> Iterator[list[Message]]:
    answer = Message(role="assistant", content="")
    for word in WORDS:
        answer.content += word
        yield [Message(role="user", content="hi"), answer]
        next_turn()


@server.endpoint
def chat() -> Iterator[list[Message]]:
    yield [Message(role="user", content="hi")]
    next_turn()


@server.endpoint
async def numbers() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@server.endpoint(columns=["/rows"], initial={"rows": []})
def rows(stream: Stream[dict[str, list[int]]]) -> None:
    stream.append([1])


@server.endpoint
def a_returned_number() -> int:
    return 1


@server.endpoint
def a_returned_conversation() -> list[Message]:
    return [Message(role="user", content="hi")]


@server.endpoint
def a_returned_text() -> str:
    return "text"


@server.endpoint
def nothing() -> Iterator[str]:
    yield ""


@server.endpoint
def fails_without_text() -> Iterator[str]:
    raise RuntimeError
    yield ""


@server.endpoint
def corrected() -> Iterator[str]:
    yield "the sea"
    next_turn()
    yield "the sky"


@pytest.fixture(scope="module")
def url():
    with server.running() as url:
        yield url


@pytest.fixture(scope="module")
def client(url):
    with Client(url) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_turn_is_left():
    yield
    assert turns.empty()


@pytest.mark.parametrize("name", ["whole_texts", "pieces", "stream", "chat_with_a_column"])
def test_each_piece_is_yielded_before_the_function_goes_on(client, name):
    texts = []
    for text in client.submit(name).iter_text():
        texts.append(text)
        turns.put(None)
    assert texts == WORDS


@pytest.mark.anyio
async def test_the_async_client_yields_each_piece_before_the_function_goes_on(url):
    async with AsyncClient(url) as client:
        texts = []
        async for text in (await client.submit("whole_texts")).iter_text():
            texts.append(text)
            turns.put(None)
    assert texts == WORDS


@pytest.mark.parametrize("name", ["chat", "numbers", "rows", "a_returned_number"])
def test_a_value_without_text_raises_and_names_the_remedy(client, name):
    job = client.submit(name)
    with pytest.raises(NoTextError, match=r"streams no text.*update.value.*columns"):
        list(job.iter_text())
    if name == "chat":  # the function was still running
        assert not job.ended
        turns.put(None)
    assert job.result() is not None


def test_the_advice_names_columns_that_work_for_a_list_of_messages(client):
    job = client.submit("a_returned_conversation")
    with pytest.raises(NoTextError) as caught:
        list(job.iter_text())
    advised = re.search(r"columns=\['(\S+)'\] for the second message of a list", caught.value.advice)
    assert advised is not None
    assert "docs/how-to/chat.md" in caught.value.advice
    corrected_server = Server()

    @corrected_server.endpoint(columns=[advised[1]])
    def converse() -> list[Message]:
        return [Message(role="user", content="hi"), Message(role="assistant", content="hello")]

    with corrected_server.running() as url, Client(url) as other:
        assert "".join(other.submit("converse").iter_text()) == "hello"


@pytest.mark.anyio
async def test_the_async_client_raises_for_a_value_without_text(url):
    async with AsyncClient(url) as client:
        with pytest.raises(TidewireError, match="streams no text"):
            async for _ in (await client.submit("numbers")).iter_text():
                pass


@pytest.mark.parametrize(("name", "texts"), [("a_returned_text", ["text"]), ("nothing", [])])
def test_a_text_that_never_grows_is_no_error(client, name, texts):
    assert list(client.submit(name).iter_text()) == texts


def test_a_failed_job_raises_its_own_error(client):
    with pytest.raises(JobFailedError):
        list(client.submit("fails_without_text").iter_text())


def test_retracted_text_raises_and_names_the_iterator_that_reports_it(client):
    texts = client.submit("corrected").iter_text()
    assert next(texts) == "the sea"
    turns.put(None)
    with pytest.raises(VoidTextError, match=r"retracted 2 code points.*iter_text_deltas"):
        next(texts)


@pytest.mark.heavy
def test_a_command_whose_text_is_retracted_in_a_pipe_fails(url):
    command = [sys.executable, "-m", "tidewire", "call", url, "corrected"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as called:
        assert called.stdout.read(7) == "the sea"
        turns.put(None)
        output, errors = called.communicate(timeout=60)
    assert (called.returncode, output) == (6, "\n")
    assert "retracted 2 code points of text that this command had already printed" in errors
    assert "is not the result" in errors
    assert "tidewire attach" in errors
