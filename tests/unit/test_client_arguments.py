"""Invalid client arguments: refused at the call, with a message that names the fault and hides secrets."""

import copy
import inspect
import pickle
import ssl

import pytest

from tidewire import AsyncClient, Client, Hooks, RetryPolicy

NOWHERE = "http://127.0.0.1:1"
EXAMPLE = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": "5"}, "timeout must be a number of seconds, not '5'"),
        ({"timeout": True}, "timeout must be a number of seconds, not True"),
        ({"connect_timeout": None}, "connect_timeout must be a number of seconds, not None"),
        ({"answer_timeout": None}, "answer_timeout must be a number of seconds, not None"),
        ({"answer_timeout": True}, "answer_timeout must be a number of seconds, not True"),
        ({"answer_timeout": 0}, "answer_timeout must be more than 0 seconds, not 0"),
        ({"answer_timeout": float("inf")}, "answer_timeout must be finite"),
        ({"deadline": float("inf")}, "deadline .* leave it out"),
        ({"grace": float("inf")}, "grace .* leave it out"),
        ({"retry": 5}, "retry must be a RetryPolicy, not 5"),
        ({"max_state_bytes": 1e6}, "max_state_bytes must be an integer number of bytes, not 1000000.0"),
        ({"max_state_bytes": 0}, "max_state_bytes must be at least 1, not 0"),
        ({"headers": "X: a"}, "headers must be a mapping such as .*, not str"),
        ({"headers": None}, "headers must be a mapping such as .*, not NoneType"),
        ({"headers": {"": "a"}}, "headers: '' is not a valid header name"),
        ({"headers": {"a b": "a"}}, "headers: 'a b' is not a valid header name"),
        ({"headers": {b"X": b"a"}}, "headers: b'X' is not a valid header name"),
        ({"headers": {"X": "a\r\nb"}}, "headers: the value of 'X' must be one line of printable ASCII"),
        ({"headers": {"X": "a "}}, "headers: the value of 'X' .* without leading or trailing spaces"),
        ({"headers": {"X": "\N{SNOWMAN}"}}, "headers: the value of 'X' must be one line of printable ASCII"),
        ({"headers": {"X": 5}}, "headers: the value of 'X' must be one line of printable ASCII"),
        ({"headers": {"content-length": "5"}}, "'content-length' is set by the client itself"),
        ({"headers": {"Idempotency-Key": "k"}}, "submit.*idempotency_key="),
        ({"headers": {"Last-Event-ID": "1-1"}}, "client.job.checkpoint="),
    ],
)
def test_invalid_option_is_refused_by_with_options(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Client(NOWHERE).with_options(**settings)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_with_options_names_the_calls_that_accept_an_idempotency_key(client):
    expected = (
        rf"^{client.__name__}\.with_options\(\) got an unexpected keyword argument 'idempotency_key'\. .*"
        "pass idempotency_key=… to the call .* submit, run, submit_batch or map$"
    )
    with pytest.raises(TypeError, match=expected):
        client(NOWHERE).with_options(idempotency_key="k")
    accepting = [
        name
        for name, call in inspect.getmembers(client, inspect.isfunction)
        if "idempotency_key" in inspect.signature(call).parameters
    ]
    assert accepting == ["map", "run", "submit", "submit_batch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": 5}, "url must be a string such as .*, not 5"),
        ({"url": "http://127.0.0.1:0"}, "not a valid server URL: write it like"),
        ({"url": "http://a b"}, "not a valid server URL: write it like"),
        ({"url": "127.0.0.1:8321"}, "not a valid server URL: write it like http://127.0.0.1:8321$"),
        ({"url": "localhost:8321/gpu"}, "not a valid server URL: write it like http://localhost:8321/gpu$"),
        ({"url": "ada:secret@gpu:8321"}, "not a valid server URL: write it like http://127.0.0.1:8000$"),
        ({"url": "http:/gpu"}, "not a valid server URL: write it like http://127.0.0.1:8000$"),
        ({"url": "gpu:x"}, "not a valid server URL: write it like http://127.0.0.1:8000$"),
        ({"hooks": 5}, "hooks must be a Hooks object, not 5"),
        ({"headers": {"X": "a\nb"}}, "headers: the value of 'X'"),
        (
            {"auth": ("user", "secret")},
            "auth must be a function that returns headers, not tuple: .* headers=",
        ),
        (
            {"verify": "/etc/ca.pem"},
            "verify must be True, False .* not '/etc/ca.pem': .*create_default_context",
        ),
        ({"verify": None}, "verify must be True, False or an ssl.SSLContext, not None"),
        ({"verify": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)}, "verify is a TLS context for servers"),
        ({"answer_timeout": None}, "answer_timeout must be a number of seconds, not None"),
        ({"proxy": 5}, f"proxy must be a URL such as '{EXAMPLE}', not 5"),
    ],
)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_invalid_constructor_argument_is_refused_by_the_constructor(client, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        client(**{"url": NOWHERE} | arguments)


@pytest.mark.parametrize(
    "proxy",
    [
        "",
        "nonsense",
        "proxy.example:3128",
        "user:secret@proxy.example:3128",
        "ftp://user:secret@proxy.example",
        "http://user:se/cret@proxy.example",
        "http://:3128",
        "http://a b:3128",
        "http://proxy.example:65536",
        "http://proxy.example:0",
        "http://[::1",
    ],
)
def test_invalid_proxy_url_is_refused_with_an_example_and_without_its_password(proxy):
    with pytest.raises(ValueError, match=f"not a valid proxy URL: write it like {EXAMPLE}") as caught:
        Client(NOWHERE, proxy=proxy)
    assert "cret" not in str(caught.value)


def test_missing_proxy_package_raises_an_error_that_names_the_package(monkeypatch):
    monkeypatch.setattr("tidewire.http.connection_arguments.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"socks5://proxy.example .*: run `pip install socksio`") as caught:
        Client(NOWHERE, proxy="socks5://user:secret@proxy.example")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://proxy.example", "https://user:pass@[::1]:3128"])
def test_valid_proxy_url_is_accepted(proxy):
    Client(NOWHERE, proxy=proxy).close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda client: client.job(5), "a job's id must be a string, not 5"),
        (lambda client: client.job(""), "a job's id must not be empty"),
        (lambda client: client.job("j1", returns=5), "returns must be a type .* not 5"),
        (
            lambda client: client.job("j1", returns="int"),
            "returns must be a type, not the name of a type: 'int'",
        ),
        (lambda client: client.map("count", "abc"), "inputs must be a list .* not str"),
        (lambda client: client.map("count", {"a": 1}), "inputs must be a list .* not dict"),
        (lambda _: RetryPolicy(attempts="3"), "attempts must be an integer or None, not '3'"),
        (lambda _: RetryPolicy(patience=None), "patience must be a number, not None"),
        (lambda _: Hooks(on_end=5), "on_end must be a function with one argument, not 5"),
    ],
)
@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_invalid_argument_of_a_call_is_refused_before_a_request_is_sent(client, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make(client(NOWHERE))


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_a_client_or_job_raises_an_error_with_an_alternative(client, copy_of):
    with pytest.raises(TypeError, match="create a new client where you need one"):
        copy_of(client(NOWHERE))
    for job in client(NOWHERE).job("j1"), client(NOWHERE).batch_job("j1"):
        with pytest.raises(TypeError, match="client.job.checkpoint=job.checkpoint"):
            copy_of(job)
