"""Streams of the OpenAI surface whose text is retracted, fails, is cancelled, or arrives late; a real server and socket."""

import json
import threading
import zlib

import httpx2
import openai
import pytest

from support.openai_surface import openai_client, read_until_error, stepwise_server
from support.reference_server import eventually
from support.server_process import ServerProcess
from tidewire_server.openai.response_events import CRC_BITS


@pytest.fixture(scope="module")
def url():
    server = stepwise_server(heartbeat=0.02, cors_origins=["http://page.example"], min_grace=0.2)
    with server.running() as url:
        yield url


@pytest.fixture
def client(url):
    with openai_client(url) as client:
        yield client


def steps(*lines):
    return {"model": "generate", "prompt": "\n".join(lines)}


def lines_of(url, path, **body):
    """The lines of a stream, without empty ones."""
    with httpx2.stream(
        "POST", f"{url}/openai/v1/{path}", json={"stream": True, **body}, timeout=20
    ) as response:
        assert response.status_code == 200, response.read()
        return [line for line in response.iter_lines() if line]


def background(url, *lines):
    """Submit a response by the endpoint itself. Return the id of the response."""
    job = httpx2.post(
        f"{url}/v1/endpoints/generate/jobs", json={"input": {"prompt": "\n".join(lines)}}
    ).json()
    return f"resp_{job['id']}"


def read(client, response, after=None):
    more = {} if after is None else {"starting_after": after}
    return client.responses.retrieve(response, stream=True, **more)


def test_a_stream_ends_with_done(url):
    lines = lines_of(url, "completions", **steps("+one ", "+two"))
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one two"
    assert all("usage" not in chunk for chunk in chunks)


def test_a_failure_in_the_middle_is_an_error_without_done(url, client):
    lines = lines_of(url, "completions", **steps("+one", "sleep 0.05", "fail"))
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert error == {
        "message": "the step failed on purpose", "type": "server_error", "param": None, "code": "internal"
    }  # fmt: skip
    with pytest.raises(openai.APIError, match="failed on purpose"):
        list(client.completions.create(**steps("+one", "fail"), stream=True))
    with pytest.raises(openai.InternalServerError, match="failed on purpose"):
        client.completions.create(**steps("+one", "fail"))


def release_at_first_text(stream, file):
    """Yield the events of a stream. Create a file when the first text has arrived."""
    for event in stream:
        yield event
        choices = getattr(event, "choices", [])
        if getattr(event, "delta", "") or any(choice.text for choice in choices):
            file.touch()


@pytest.mark.parametrize("change", ["-2", "=one else", "=other text that is longer"])
def test_retracted_text_ends_the_stream_with_an_error(client, change, tmp_path):
    lines = ("+one two", f"wait {tmp_path / 'go'}", change)
    stream = client.completions.create(**steps(*lines, "sleep 0.1", "+x"), stream=True)
    chunks, error = read_until_error(release_at_first_text(stream, tmp_path / "go"))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "one two"
    assert error.code == "text_retracted"
    # Without a stream, nothing was sent that could be retracted.
    whole = client.completions.create(**steps(*lines)).choices[0].text
    assert whole == {"-2": "one t"}.get(change, change[1:])


def test_a_response_is_not_resumed_after_a_position_whose_text_was_retracted(url, client, tmp_path):
    response = background(url, "+one two", f"wait {tmp_path / 'go'}", "=one else", "+ x")
    events, error = read_until_error(release_at_first_text(read(client, response), tmp_path / "go"))
    assert "no longer begins with the text" in str(error)
    received = events[-1].sequence_number
    assert received == (len("one two") << CRC_BITS) + (zlib.crc32(b"one two") & (1 << CRC_BITS) - 1)
    eventually(lambda: client.responses.retrieve(response).status == "completed")
    for number in (received, 1000 << CRC_BITS):
        with pytest.raises(openai.APIError, match="no longer begins with the text"):
            list(read(client, response, number))
    assert client.responses.retrieve(response).output_text == "one else x"


def test_a_failed_response_is_an_event_and_an_error(url, client):
    response = background(url, "+one", "fail")
    eventually(lambda: client.responses.retrieve(response).status == "failed")
    found = client.responses.retrieve(response)
    assert found.error.message == "the step failed on purpose"
    events, error = read_until_error(read(client, response))
    assert "on purpose" in str(error)
    assert [event.type for event in events][-2:] == ["response.output_text.delta", "response.failed"]


def test_a_cancel_in_the_middle_is_an_error_without_done(url, client):
    events, errors = [], []
    response = background(url, "+one", "sleep 20")

    def reading():
        try:
            events.extend(event for event in read(client, response))
        except openai.APIError as error:
            errors.append(error)

    reader = threading.Thread(target=reading)
    reader.start()
    eventually(lambda: client.responses.retrieve(response).output_text == "one")
    assert client.responses.cancel(response).status == "cancelled"
    reader.join(10)
    assert not reader.is_alive()
    assert [error.code for error in errors] == ["cancelled"]


def test_comments_keep_a_silent_stream_open(url):
    lines = lines_of(url, "completions", **steps("+one", "sleep 0.5", "+two"))
    assert lines.count(": keep-alive") >= 2
    assert lines[-1] == "data: [DONE]"


def test_a_reader_of_this_surface_keeps_its_job_alive(url, client):
    """The job has a grace of 0.2 s, and is silent for longer than that."""
    found = client.completions.create(**steps("+one", "sleep 0.6", "+two"), stream=True)
    assert "".join(chunk.choices[0].text for chunk in found) == "onetwo"
    assert client.completions.create(**steps("+one", "sleep 0.6", "+two")).choices[0].text == "onetwo"


FOREGROUND = {
    "chat": lambda client, text: client.chat.completions.create(
        model="generate", messages=[{"role": "user", "content": text}], stream=True
    ),
    "completions": lambda client, text: client.completions.create(model="generate", prompt=text, stream=True),
    "responses": lambda client, text: client.responses.create(model="generate", input=text, stream=True),
}


@pytest.mark.parametrize("api", FOREGROUND)
def test_a_request_in_the_foreground_is_cancelled_with_its_reader(client, url, api):
    with FOREGROUND[api](client, "+one\nsleep 20") as stream:
        next(iter(stream))
        job = stream.response.headers["tidewire-job"]
        assert httpx2.get(url + job).json()["status"] == "running"
    eventually(lambda: httpx2.get(url + job).json()["status"] == "cancelled")


def test_the_job_of_a_request_that_timed_out_is_cancelled(client, url):
    before = {job["id"] for job in httpx2.get(f"{url}/v1/jobs").json()["jobs"]}
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(**steps("+one", "sleep 20"))
    (job,) = [job for job in httpx2.get(f"{url}/v1/jobs").json()["jobs"] if job["id"] not in before]
    eventually(lambda: httpx2.get(f"{url}/v1/jobs/{job['id']}").json()["status"] == "cancelled")


def test_a_response_in_the_background_survives_its_reader_and_is_cancelled(client):
    with client.responses.create(
        model="generate", input="+one\nsleep 20", background=True, stream=True
    ) as stream:
        response = next(iter(stream)).response.id
    assert client.responses.retrieve(response).status in {"queued", "in_progress"}
    assert client.responses.cancel(response).status == "cancelled"
    assert client.responses.cancel(response).status == "cancelled"
    with pytest.raises(openai.APIError, match="was cancelled"):
        list(read(client, response))


def test_the_header_of_the_job_is_exposed_to_pages(url):
    origin = {"origin": "http://page.example"}
    answer = httpx2.post(f"{url}/openai/v1/completions", json=steps("+one"), headers=origin)
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert "Tidewire-Job" in exposed
    job = httpx2.get(url + answer.headers["tidewire-job"]).json()
    assert job["state"]["items"][0]["value"]["text"] == "one"


def test_a_browser_may_send_the_headers_of_the_javascript_package(url):
    asked = "authorization,content-type,x-stainless-arch,x-stainless-retry-count,x-stainless-timeout"
    preflight = {
        "origin": "http://page.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": asked,
    }
    answer = httpx2.options(f"{url}/openai/v1/completions", headers=preflight)
    assert answer.status_code == 204, answer.text
    assert "x-stainless-arch" in answer.headers["access-control-allow-headers"].lower()


def test_unknown_urls_and_methods_have_errors_in_the_shape_of_openai(url):
    for method, path in (
        ("GET", "/openai/v1/files"),
        ("DELETE", "/openai/v1/models"),
        ("GET", "/openai"),
        ("PUT", "/openai/v1/responses"),
    ):
        answer = httpx2.request(method, f"{url}{path}")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize("base", ["", "/v1"])
def test_a_wrong_base_url_has_an_error_with_the_right_one(url, base):
    with (
        openai.OpenAI(base_url=f"{url}{base}", api_key="any", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="the API starts at /openai/v1"),
    ):
        client.completions.create(**steps("+one"))


def test_jobs_with_several_items_and_of_other_endpoints_are_not_responses(url, client):
    batch = httpx2.post(
        f"{url}/v1/endpoints/generate/jobs", json={"inputs": [{"prompt": "+a"}, {"prompt": "+b"}]}
    ).json()
    for name in (f"resp_{batch['id']}", batch["id"], "resp_", "resp_unknown", "x" * 5000):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)


@pytest.mark.parametrize("after", ["-1", "x", "1e3", "9" * 13, "9" * 5000, "1.5"])
def test_a_starting_after_that_is_not_a_number_is_refused(url, after):
    response = background(url, "+one")
    answer = httpx2.get(
        f"{url}/openai/v1/responses/{response}", params={"stream": "true", "starting_after": after}
    )
    assert answer.status_code == 400
    assert "starting_after" in answer.json()["error"]["message"]


def test_a_stop_of_the_server_ends_streams_and_requests_with_an_error():
    server = stepwise_server(shutdown_timeout=0.2)
    lines, answers = [], []
    with server.running() as url:
        body = steps("+one", "sleep 30")
        threads = [
            threading.Thread(target=lambda: lines.extend(lines_of(url, "completions", **body))),
            threading.Thread(
                target=lambda: answers.append(
                    httpx2.post(f"{url}/openai/v1/completions", json=body, timeout=20)
                )
            ),
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(httpx2.get(f"{url}/v1/jobs").json()["jobs"]) == 2)
        eventually(
            lambda: all(job["status"] == "running" for job in httpx2.get(f"{url}/v1/jobs").json()["jobs"])
        )
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert "error" in json.loads(lines[-1].removeprefix("data: "))
    (answer,) = answers
    assert answer.status_code in {500, 503}
    assert answer.json()["error"]["type"] == "server_error"


@pytest.mark.heavy
@pytest.mark.parametrize("again", ["one two", "another text"])
def test_a_job_that_runs_again_after_a_crash_is_resumed_only_if_its_text_is_the_same(tmp_path, again):
    text, go = tmp_path / "text", tmp_path / "go"
    text.write_text("one two")
    log = f"sqlite:///{tmp_path / 'log.db'}"
    with ServerProcess(tmp_path, "support.openai_surface:stepwise_server", log=log) as process:
        with openai_client(process.url) as client:
            response = background(process.url, f"read {text}", f"wait {go}", "+ three")
            stream = read(client, response)
            events = []
            while not events or events[-1].type != "response.output_text.delta":
                events.append(next(stream))
            process.kill()
            assert isinstance(read_until_error(stream)[1], openai.APIConnectionError)
            text.write_text(again)
            process.start()
            eventually(lambda: client.responses.retrieve(response).output_text == again)
            rest = read(client, response, events[-1].sequence_number)
            go.touch()
            if again == "one two":
                found = [event.delta for event in rest if event.type == "response.output_text.delta"]
                assert "".join(found) == " three"
            else:
                assert read_until_error(rest)[1].code == "text_retracted"
            eventually(lambda: client.responses.retrieve(response).output_text == f"{again} three")


def test_the_function_that_names_callers_covers_this_surface():
    def caller(scope):
        return dict(scope["headers"]).get(b"x-account", b"").decode() or None

    with stepwise_server(principal=caller).running() as url:
        with openai_client(url) as nobody, pytest.raises(openai.AuthenticationError) as found:
            nobody.completions.create(**steps("+one"))
        assert found.value.code == "invalid_api_key"
        accounts = [openai_client(url, default_headers={"x-account": name}) for name in ("ann", "bob")]
        with accounts[0] as ann, accounts[1] as bob:
            name = "resp_" + ann.completions.create(**steps("+one")).id.removeprefix("cmpl-")
            assert ann.responses.retrieve(name).output_text == "one"
            with pytest.raises(openai.NotFoundError):
                bob.responses.retrieve(name)


def test_routes_are_added_only_before_the_app_is_used():
    server = stepwise_server()
    assert any(route.path == "/openai/v1/responses" for route in server.app._routes)
    with pytest.raises(RuntimeError, match="already|in use"):
        server.add_routes(lambda _: [])
