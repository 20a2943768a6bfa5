"""Hostile requests to the OpenAI surface: each gets an error in the shape of OpenAI's API, and the server goes on."""

import json
import random
import tracemalloc

import httpx2
import pytest

from support.openai_surface import stepwise_server
from tidewire_server.openai.request_members import ENDPOINTS

VALUES = [
    *(True, False, 0, -1, 1, 10**15, 2**53, 1.5, -0.0, 1e300, "", "x", "\x00", "\u2028", "𝔘" * 1000),
    *([], {}, [[]], [None], [1, 2], ["x", 1], {"type": "text"}, {"type": 1}, {"": {}}, {"__class__": "x"}),
    *(
        [{"role": "user", "content": "x"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": []}],
    ),
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}, "name": "x"}},
    {"type": "json_schema", "json_schema": {"type": "text"}},
    {"format": {"format": {"format": {}}}},
    {"include_usage": 1},
]

BASES = {
    "completions": {"model": "generate", "prompt": "+x"},
    "chat/completions": {
        "model": "generate",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 1,
    },
    "responses": {"model": "generate", "input": "x"},
}


@pytest.fixture(scope="module")
def http():
    server = stepwise_server(max_body_bytes=100_000, max_body_values=5000, body_timeout=2)
    with server.running() as url, httpx2.Client(base_url=f"{url}/openai/v1", timeout=30) as http:
        yield http


def check_error(answer, *statuses):
    assert answer.status_code in statuses, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    (error,) = answer.json().values()
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(answer.content) < 20_000
    for word in ("Traceback", "tidewire_server", 'File "', "pydantic"):
        assert word not in error["message"]


def check_alive(http):
    assert http.post("/completions", json=BASES["completions"]).json()["choices"][0]["text"] == "x"


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_no_value_of_any_member_fails_the_server(http, path, share):
    """With a share of 4, each member gets every fourth value, and each value goes to every fourth member."""
    for number, name in enumerate([*ENDPOINTS[path], "unknown", "x" * 5000]):
        for value in VALUES[number % share :: share]:
            if name == "stream" and value is True:
                continue
            answer = http.post(f"/{path}", json=BASES[path] | {name: value})
            if answer.status_code != 200:
                check_error(answer, 400, 404)
    check_alive(http)


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_random_nested_values_get_an_error_or_an_answer(http, path, count):
    rng = random.Random(path)

    def value(depth):
        kind = rng.randrange(4 if depth else 2)
        if kind < 2:
            return rng.choice(VALUES)
        if kind == 2:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        return {
            rng.choice(["type", "text", "role", "content", "schema", "name", "x"]): value(depth - 1)
            for _ in range(3)
        }

    for _ in range(count):
        body = BASES[path] | {rng.choice([*ENDPOINTS[path]]): value(3)}
        if body.get("stream") is True:
            continue
        answer = http.post(f"/{path}", json=body)
        if answer.status_code != 200:
            check_error(answer, 400, 404)
    check_alive(http)


BODIES = {
    "empty": b"",
    "not JSON": b"{",
    "a list": b"[]",
    "a text": b'"x"',
    "NaN": b'{"model": NaN}',
    "twice": b'{"model": "generate", "model": "generate"}',
    "not UTF-8": b'{"model": "\xff"}',
    "lone surrogate": b'{"model": "generate", "prompt": "\\ud800"}',
    "deep": b'{"model": "generate", "prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep metadata": b'{"model": "generate", "metadata": ' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}",
    "huge number": b'{"model": "generate", "n": 1' + b"0" * 5000 + b"}",
    "infinite": b'{"model": "generate", "prompt": "x", "temperature": 1e999}',
}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_refused(http, path, name):
    headers = {"content-type": "application/json"}
    check_error(http.post(f"/{path}", content=BODIES[name], headers=headers), 400, 415)
    check_alive(http)


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_body_that_is_too_large_is_refused(http, path):
    check_error(http.post(f"/{path}", json=BASES[path] | {"user": "x" * 100_000}), 413)
    check_error(http.post(f"/{path}", json=BASES[path] | {"metadata": [[]] * 6000}), 413)
    check_error(
        http.post(f"/{path}", json={"model": "generate", "prompt": ["+x"] * 4000, "messages": []}), 400, 413
    )
    check_alive(http)


def test_a_body_that_is_not_json_is_refused(http):
    check_error(http.post("/completions", content=b"x=1", headers={"content-type": "text/plain"}), 415)


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "é"])
def test_an_idempotency_key_that_is_not_valid_is_refused(http, key):
    headers = {b"idempotency-key": key.encode("latin-1")}
    check_error(http.post("/completions", json=BASES["completions"], headers=headers), 400)


def test_a_model_name_in_a_url_is_not_trusted(http):
    for name in ("..%2f..%2fetc%2fpasswd", "%00", "x" * 4000, "generate/extra"):
        check_error(http.get(f"/models/{name}"), 404)


def test_repeated_parameters_are_refused(http):
    job = json.loads(http.post("/completions", json=BASES["completions"]).text)["id"].removeprefix("cmpl-")
    check_error(http.get(f"/responses/resp_{job}?stream=true&stream=false"), 400)
    check_error(http.get(f"/responses/resp_{job}?stream=maybe"), 400)
    check_error(http.get(f"/responses/resp_{job}?stream=true&starting_after=1&starting_after=2"), 400)


@pytest.mark.parametrize(
    ("members", "status", "code"),
    [
        ({"prompt": ["+x"] * 2000}, 400, "batch_too_large"),
        ({"prompt": ["+" + "x" * 90_000, "+x"]}, 413, "body_too_large"),
        ({"prompt": ["+x"] * 15, "stop": "x" * 90_000}, 413, "body_too_large"),
    ],
    ids=["many prompts", "a long prompt", "a long stop string"],
)
def test_copies_for_samples_are_limited_before_they_are_created(http, members, status, code):
    """A request of 100 kB would otherwise become a job of many megabytes."""
    tracemalloc.start()
    try:
        answer = http.post("/completions", json={"model": "generate", "n": 64} | members)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    check_error(answer, status)
    assert peak < 3_000_000
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("prompt", code)
    check_alive(http)
