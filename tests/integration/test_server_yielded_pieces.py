"""Generators that produce a text piece by piece: `Append` in plain generators, and the warning for plain strings."""

import itertools
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tidewire import Client
from tidewire.errors import NoTextError
from tidewire_server import Append, Last, Server
from tidewire_server.errors import InvalidValueError, ItemError

TOKENS = [word + " " for word in ["echo", "of", "hi", "and", "more", "words"]]

server = Server(default_concurrency_limit=None)


@server.endpoint
def appended() -> Iterator[Append[str]]:
    for token in TOKENS:
        yield Append(token)


@server.endpoint
async def appended_on_the_loop() -> AsyncIterator[Append[str]]:
    for token in TOKENS:
        yield Append(token)


@server.endpoint
def annotated_with_the_value() -> Iterator[str]:
    for token in TOKENS:
        yield Append(token)  # type: ignore[misc]


@server.endpoint
def unannotated():
    yield ""
    for token in TOKENS:
        yield Append(token)


@server.endpoint
def unannotated_with_an_append_first():
    for token in TOKENS:
        yield Append(token)


@server.endpoint
async def unannotated_on_the_loop():
    for token in TOKENS:
        yield Append(token)


@server.endpoint(capabilities={"rollback": False})
def unannotated_without_rollback():
    for token in TOKENS:
        yield Append(token, at="")


@server.endpoint
def optional_text() -> Iterator[Append[str | None]]:
    for token in TOKENS:
        yield Append(token)


@server.endpoint
async def count(n: int = 10):
    for i in range(n):
        yield Append(f"{i} ")


@server.endpoint
def unannotated_whole_texts():
    for end in range(1, len(TOKENS) + 1):
        yield "".join(TOKENS[:end])


@server.endpoint
def text_or_nothing() -> Iterator[str | None]:
    yield from itertools.accumulate(TOKENS)


@server.endpoint(batch=True)
def unannotated_words(words: list[str]):
    for token in TOKENS:
        yield {row: Append(token) for row in range(len(words))}
    yield {row: Last() for row in range(len(words))}


@server.endpoint
def unannotated_numbers():
    yield from range(3)


@server.endpoint
def unannotated_member():
    yield {"role": "assistant", "content": ""}
    for token in TOKENS:
        yield Append(token, at="/content")


@server.endpoint
async def unannotated_reply():
    yield {"role": "assistant", "content": ""}
    for token in TOKENS:
        yield Append(token, at="/content")


@server.endpoint(columns=["/content"])
def unannotated_column():
    yield {"role": "assistant", "content": ""}
    for token in TOKENS:
        yield Append(token, at="/content")


@server.endpoint
def unannotated_elements():
    batch = [0]
    for number in range(1, 6):
        yield Append(batch)
        batch.clear()
        batch.append(number)


@server.endpoint
async def unannotated_elements_on_the_loop():
    for number in range(5):
        yield Append((number,) if number == 0 else [number])


@server.endpoint(batch=True)
def unannotated_rows(words: list[str]) -> Iterator[dict]:  # type: ignore[type-arg]
    for token in TOKENS:
        yield {row: Append(token) for row in range(len(words))}


@server.endpoint
def appended_to_null_of_a_number() -> Iterator[int]:
    yield Append("x")  # type: ignore[misc]


@server.endpoint
def appended_nothing_first():
    yield Append(None)


@server.endpoint
def appended_to_a_later_null():
    yield None
    yield Append("x")


@server.endpoint(capabilities={"rollback": False})
def appended_without_rollback() -> Iterator[Append[str]]:
    for token in TOKENS:
        yield Append(token)


@server.endpoint
def appended_after_whole_texts() -> Iterator[str | Append[str]]:
    yield "draft"
    yield TOKENS[0]
    for token in TOKENS[1:]:
        yield Append(token)


@server.endpoint
def elements() -> Iterator[Append[list[int]]]:
    for number in range(5):
        yield Append([number])


@server.endpoint
def appended_at_a_member() -> Iterator[dict[str, str] | Append[str]]:
    yield {"role": "assistant", "content": ""}
    for token in TOKENS:
        yield Append(token, at="/content")


@server.endpoint
def pieces() -> Iterator[str]:
    yield from TOKENS


@server.endpoint
async def pieces_on_the_loop() -> AsyncIterator[str]:
    for token in 20 * TOKENS:
        yield token


@server.endpoint(batch=True)
def batched_pieces(words: list[str]) -> Iterator[dict[int, str]]:
    for token in TOKENS:
        yield dict.fromkeys(range(len(words)), token)


@server.endpoint
def whole_texts() -> Iterator[str]:
    text = ""
    for token in TOKENS:
        text += token
        yield text


@server.endpoint
def whole_texts_with_one_correction() -> Iterator[str]:
    yield from ("a", "ab", "abc", "abd", "abde", "abdef")


@server.endpoint(capabilities={"rollback": True})
def replaced_deliberately() -> Iterator[str]:
    yield from TOKENS


@server.endpoint
def status_then_result() -> Iterator[str]:
    yield from ("loading", "the whole result")


@server.endpoint
def appended_to_a_number() -> Iterator[int]:
    yield 1
    yield Append("x")  # type: ignore[misc]


@server.endpoint
def appended_nothing() -> Iterator[str]:
    yield "a"
    yield Append(None)  # type: ignore[misc]


@server.endpoint
def last_in_a_plain_generator() -> Iterator[str]:
    yield Last("x")  # type: ignore[misc]


@server.endpoint
def returns_an_append() -> str:
    return Append("x")  # type: ignore[return-value]


@server.endpoint
def returns_an_item_error() -> str:
    return ItemError("no such word")  # type: ignore[return-value]


@pytest.fixture(scope="module")
def client():
    with server.running() as url, Client(url) as client:
        yield client


APPENDING = (
    appended,
    appended_on_the_loop,
    annotated_with_the_value,
    unannotated,
    unannotated_with_an_append_first,
    unannotated_on_the_loop,
    unannotated_without_rollback,
    optional_text,
    appended_without_rollback,
    appended_after_whole_texts,
)


@pytest.mark.parametrize("function", APPENDING, ids=lambda function: function.__name__)
def test_an_append_in_a_plain_generator_adds_to_the_text(client, function):
    job = client.submit(function.__name__)
    assert job.result() == "".join(TOKENS)
    assert job.read().state["notes"] == []


def test_an_append_adds_elements_to_an_array_or_text_to_a_member():
    assert server.call("elements") == [0, 1, 2, 3, 4]
    assert server.call("appended_at_a_member") == {"role": "assistant", "content": "".join(TOKENS)}


@pytest.mark.parametrize("name", ["unannotated_elements", "unannotated_elements_on_the_loop"])
def test_the_first_append_of_an_unannotated_generator_can_be_a_list(client, name):
    assert client.run(name) == [0, 1, 2, 3, 4]


def test_the_first_append_sets_each_row_of_an_unannotated_batched_generator(client):
    results = client.submit_batch("unannotated_rows", [{"words": "a"}, {"words": "b"}]).results()
    assert results == ["".join(TOKENS)] * 2


@pytest.mark.parametrize("name", ["unannotated_with_an_append_first", "unannotated_elements_on_the_loop"])
def test_each_update_of_an_unannotated_generator_extends_the_value(client, name):
    values = [update.value for update in client.submit(name) if update.value is not None]
    assert all(later[: len(value)] == value for value, later in itertools.pairwise(values))
    assert len(values[-1]) >= 5


@pytest.mark.parametrize(
    "name",
    [
        "unannotated",
        "unannotated_with_an_append_first",
        "unannotated_on_the_loop",
        "unannotated_without_rollback",
        "unannotated_whole_texts",
        "unannotated_words",
        "optional_text",
        "text_or_nothing",
    ],
)
def test_the_first_value_decides_that_a_value_without_a_type_is_a_text(client, name, caplog):
    given = {"words": "a"} if name == "unannotated_words" else {}
    job = client.submit(name, given)
    assert "".join(update.text for update in job) == job.result() == "".join(TOKENS)
    assert "".join(client.submit(name, given).iter_text()) == "".join(TOKENS)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_loop_of_the_readme_prints_an_endpoint_without_annotation(client, capsys):
    job = client.submit("count", n=5)
    for update in job:
        print(update.text, end="", flush=True)
    assert capsys.readouterr().out == job.result() == "0 1 2 3 4 "
    assert server.endpoints["count"].value.schema == {}


def test_the_items_of_a_batch_without_annotation_have_text(client):
    texts = {0: "", 1: ""}
    for update in client.submit_batch("unannotated_words", [{"words": "a"}, {"words": "b"}]):
        texts[update.index] += update.text
    assert texts == {0: "".join(TOKENS), 1: "".join(TOKENS)}


@pytest.mark.parametrize("name", ["unannotated_numbers", "unannotated_elements", "unannotated_member"])
def test_iter_text_of_a_value_that_turns_out_not_to_be_a_text_says_so(client, name):
    with pytest.raises(NoTextError, match=r"Read the value instead.*columns="):
        list(client.submit(name).iter_text())


def test_text_that_is_not_in_a_column_is_reported_once_in_the_log(client, caplog):
    for _ in range(2):
        job = client.submit("unannotated_reply")
        assert "".join(update.text for update in job) == ""
        assert job.result()["content"] == "".join(TOKENS)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "columns=['/content']" in record.getMessage()
    assert "-> AsyncIterator[Append[str]]" in record.getMessage()


def test_text_in_a_column_of_the_author_is_not_reported(client, caplog):
    job = client.submit("unannotated_column")
    assert "".join(update.text for update in job) == "".join(TOKENS) == job.result()["content"]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_an_annotation_with_append_describes_the_value():
    assert server.endpoints["appended"].value.schema == {"type": "string"}
    assert server.endpoints["elements"].value.schema == {"type": "array", "items": {"type": "integer"}}


@server.endpoint
def returned_at_the_end() -> Iterator[int]:
    yield 1
    return 7  # type: ignore[return-value]


def test_a_value_that_a_generator_returns_is_reported(client, caplog):
    with caplog.at_level(logging.WARNING, "tidewire_server"):
        job = client.submit("returned_at_the_end")
        assert job.result() == 1
    (note,) = job.read().state["notes"]
    assert note["level"] == "warning"
    assert note["text"].startswith(
        "endpoint 'returned_at_the_end' is a generator and returned a value, which is not used"
    )
    assert note["text"] in [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("name", ["pieces", "pieces_on_the_loop"])
def test_pieces_as_whole_values_are_reported_once_in_the_log_and_in_the_notes_of_the_job(
    client, name, caplog
):
    server.endpoints[name].warned_about_pieces = False
    with caplog.at_level(logging.WARNING, "tidewire_server"):
        jobs = [client.submit(name), client.submit(name), client.submit_batch(name, [{}, {}])]
        for job in jobs:
            job.wait()
            (note,) = job.read().state["notes"]
            assert note["level"] == "warning"
            assert "yield Append(piece)" in note["text"]
            assert repr(name) in note["text"]
    assert jobs[0].result() == TOKENS[-1]
    messages = [record.getMessage() for record in caplog.records]
    # A busy machine may block the event loop, which the server logs as well.
    assert [each for each in messages if "event loop was blocked" not in each] == [note["text"]]


@pytest.mark.parametrize(
    "name",
    ["whole_texts", "whole_texts_with_one_correction", "replaced_deliberately", "status_then_result"],
)
def test_texts_that_extend_the_text_before_are_not_reported(client, name, caplog):
    job = client.submit(name)
    job.wait()
    assert job.read().state["notes"] == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_pieces_of_a_batched_generator_are_reported_once_for_a_job(client):
    job = client.submit_batch("batched_pieces", [{"words": "a"}, {"words": "b"}])
    assert job.results() == [TOKENS[-1], TOKENS[-1]]
    (note,) = job.read().state["notes"]
    assert "'batched_pieces'" in note["text"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("appended_to_a_number", ValueError, "only to a text or an array"),
        ("appended_to_null_of_a_number", InvalidValueError, "integer"),
        ("appended_to_a_later_null", ValueError, "cannot append to null"),
        (
            "appended_nothing_first",
            ValueError,
            "only a string or a list of elements can be appended, not None",
        ),
        ("appended_nothing", ValueError, "only a string or a list of elements can be appended, not None"),
        ("last_in_a_plain_generator", InvalidValueError, "`Last` ends one row of a batched generator"),
        ("returns_an_append", InvalidValueError, "returned an `Append`"),
        ("returns_an_item_error", InvalidValueError, "returned an `ItemError`; raise it instead"),
    ],
)
def test_an_object_in_the_wrong_place_fails_with_the_reason(name, error, message):
    with pytest.raises(error, match=message):
        server.call(name)
