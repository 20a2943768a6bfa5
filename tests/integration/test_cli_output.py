"""What the commands accept and show: values by schema, TIDEWIRE_URL, notes, retries, descriptions and advice."""

import functools
import io
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import Field
from rich.console import Console

from support.terminal import Terminal, run, shown_on_terminal
from tidewire import Client
from tidewire.commands import cli
from tidewire.commands.describe_text import describe_endpoint
from tidewire.http import transport
from tidewire.protocol.resources import EndpointDescription
from tidewire.testing import FakeServer
from tidewire_server import Binary, ItemError, Server, Stream


def make_server() -> Server:
    server, gate = Server(default_concurrency_limit=None), threading.Event()

    @server.endpoint
    def story(hero: str, words: int = 3, stop: str | list[str] | None = None) -> Iterator[str]:
        """Tell a story about a hero."""
        yield f"{hero} {words} {stop}"

    @server.endpoint
    async def noted(stream: Stream[str]) -> None:
        stream.note("the prompt was shortened", level="warning")
        stream.usage(tokens=1234)
        stream.progress(2, 12, unit="token")
        stream.append("text")

    @server.endpoint
    def gated(stream: Stream[str]) -> None:
        stream.append("one ")
        gate.wait(30)
        stream.append("two")

    @server.endpoint
    def counted(stream: Stream[str], end: str = "", error: bool = False) -> None:
        for number in range(1, 10):
            stream.progress(number, 9, unit="page")
            if number == 1:
                # The first progress must arrive before the first text, because a line of text holds progress back.
                time.sleep(0.1)
            stream.append(f"text{number} ")
            time.sleep(0.05)
        stream.append(end)
        if error:
            raise ItemError("no ink")

    @server.endpoint
    def open_gate() -> None:
        gate.set()

    @server.endpoint(examples=[{"prompt": "the sea", "size": 2}])
    def draw(
        prompt: str = Field(description="What to draw. " * 20),
        size: int = Field(1, ge=1, le=8, title="Size"),
        style: str | None = None,
    ) -> dict[str, float]:
        """Draw a picture."""
        return {}

    return server


def make_server_of_objects() -> Server:
    """Create a server whose inputs have bytes, and whose values have a text among other members."""
    server = Server(default_concurrency_limit=None)

    @server.endpoint
    def size(picture: Binary | None = None, text: str = "", number: int = 0) -> str:
        return f"{picture!r} {text!r} {number}"

    @server.endpoint(columns=["/text"])
    def fitted(steps: int = 2, named: bool = False) -> Iterator[dict[str, Any]]:
        for step in range(1, steps + 1):
            text, losses = "".join(f"step {at} " for at in range(step)), [1 / at for at in range(1, step + 1)]
            yield {"text": text} | ({"losses": losses, "name": "run"} if named else {})

    @server.endpoint(columns=["/reply/text"])
    def replied() -> Iterator[dict[str, Any]]:
        for step in range(2):
            yield {"reply": {"text": "word " * (step + 1), "words": step + 1}, "model": "m"}

    return server


@pytest.fixture(scope="module")
def url():
    with make_server().running() as url:
        yield url


@pytest.fixture(scope="module")
def objects_url():
    with make_server_of_objects().running() as url:
        yield url


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("TIDEWIRE_URL", raising=False)
    monkeypatch.delenv("TIDEWIRE_TOKEN", raising=False)


# ---- input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["hero=12"], "12 3 None"),
        (["hero=true", "words=5"], "true 5 None"),
        (["hero=Ada", 'stop=["a"]'], "Ada 3 ['a']"),
        (["hero=Ada", "stop=12"], "Ada 3 12"),
        (["hero=Ada", "stop=null"], "Ada 3 None"),
    ],
)
def test_values_have_the_types_of_the_schema(url, words, text):
    result = run("call", url, "story", *words)
    assert (result.exit_code, result.stdout) == (0, text + "\n")


def test_shared_members_of_map_have_the_types_of_the_schema(url):
    result = run("map", url, "story", "-", "hero=7", stdin="{}\n")
    assert json.loads(result.stdout)["value"] == "7 3 None"


def test_the_index_in_a_refused_input_is_that_of_the_line(url):
    result = run("map", url, "story", "-", stdin='{"hero":"a"}\n{"hero":1}\n')
    message = json.loads(result.stdout.splitlines()[1])["error"]["message"]
    assert message.startswith("input 1 was refused: /hero: Input should be a valid string")


def test_the_url_may_be_in_the_environment(url, monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEWIRE_URL", url + "/")
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text('{"hero":"b"}\n')
    assert run("call", "story", "hero=http://a").stdout == "http://a 3 None\n"
    assert run("call", url, "story", "hero=a").stdout == "a 3 None\n"
    assert run("call", "--timeout", "30", "noted", "--json").exit_code == 0
    assert json.loads(run("map", "story", str(inputs)).stdout)["value"] == "b 3 None"
    assert "story" in run("describe").stdout
    assert "tidewire call story hero=TEXT" in run("describe", "story").stdout
    job = run("call", "story", "hero=c", "--detach").stdout.strip()
    assert run("attach", job).stdout == "c 3 None\n"
    assert run("cancel", job).exit_code == 0
    assert job in run("jobs").stdout
    assert "class TypedClient" in run("codegen", "--endpoint", "story").stdout


def test_without_a_url_the_error_names_the_variable(url):
    result = run("call", "story", "hero=a")
    assert (result.exit_code, "TIDEWIRE_URL" in result.stderr) == (2, True)
    assert "'story' is not the URL of a server" in result.stderr
    for command in ("attach", "cancel"):
        result = run(command, "a9b3c1")
        assert (result.exit_code, "TIDEWIRE_URL" in result.stderr) == (2, True)
        result = run(command, url)
        assert (result.exit_code, "TIDEWIRE_URL" in result.stderr) == (2, False)


def test_a_tilde_in_a_file_name_is_the_home_folder(url, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "input.json").write_text('{"hero":"d"}')
    (tmp_path / "token").write_text("secret\n")
    result = run("call", url, "story", "-i", "@~/input.json", "--token-file", "~/token")
    assert result.stdout == "d 3 None\n"


PNG = b"\x89PNG\r\n\x1a\n\0"


@pytest.mark.parametrize(
    ("content", "word", "value"),
    [
        (PNG, "picture=@{file}", f"{PNG!r} '' 0"),
        (b"", "picture=@{file}", "b'' '' 0"),
        (b"two\nlines\n", "text=@{file}", r"None 'two\nlines\n' 0"),
        (b"12\n", "number=@{file}", "None '' 12"),
    ],
)
def test_a_file_is_sent_as_base64_or_as_text(objects_url, tmp_path, content, word, value):
    file = tmp_path / "content"
    file.write_bytes(content)
    assert run("call", objects_url, "size", word.format(file=file)).stdout == value + "\n"
    shared = run("map", objects_url, "size", "-", word.format(file=file), stdin="{}\n")
    assert json.loads(shared.stdout)["value"] == value


@pytest.mark.parametrize(
    ("word", "error"),
    [
        (
            "text=@{picture}",
            "is not UTF-8 text, and the endpoint's input schema does not say that 'text' is base64",
        ),
        (
            "number=@{picture}",
            "is not UTF-8 text, and the endpoint's input schema does not say that 'number' is",
        ),
        ("text=@{folder}", "text=@{folder}: Is a directory. To send a text that begins with @, use --input"),
        ("text=@dataclass", "No such file or directory. To send a text that begins with @, use --input"),
        ("picture=@no.png", "tidewire: picture=@no.png: No such file or directory\n"),
        ("picture=@{folder}", "tidewire: picture=@{folder}: Is a directory\n"),
        ("--input=@{picture}", "tidewire: --input @{picture}: the file is not UTF-8\n"),
    ],
)
def test_a_file_that_cannot_be_sent_is_an_error_that_says_what_to_do(objects_url, tmp_path, word, error):
    names = {"folder": tmp_path, "picture": tmp_path / "picture"}
    names["picture"].write_bytes(PNG)
    result = run("call", objects_url, "size", word.format(**names))
    assert (result.exit_code, result.stdout) == (2, "")
    assert error.format(**names) in result.stderr


def test_a_text_that_begins_with_an_at_sign_can_be_passed_as_json(objects_url):
    assert (
        run("call", objects_url, "size", "--input", '{"text":"@dataclass"}').stdout == "None '@dataclass' 0\n"
    )


def test_describe_shows_that_a_member_of_bytes_may_be_a_file():
    server = Server()

    @server.endpoint
    def crop(picture: Binary) -> int:
        return len(picture)

    with server.running() as url:
        assert f"tidewire call {url} crop picture=@FILE\n" in run("describe", url, "crop").stdout


# ---- output -------------------------------------------------------------------------------------------------------


def test_notes_usage_and_progress_are_apart_from_the_text(url):
    result = run("call", url, "noted")
    assert result.stdout == "text\n"
    lines = result.stderr.splitlines()
    assert lines[-2:] == ["warning: the prompt was shortened", "usage: tokens 1 234"]
    assert set(lines[:-2]) <= {"running: 2 of 12 tokens"}
    last = json.loads(run("call", url, "noted", "--json").stdout.splitlines()[-1])
    assert last["usage"] == {"tokens": 1234}
    assert last["notes"] == [{"level": "warning", "text": "the prompt was shortened"}]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["fitted", "named=true"], 'step 0 step 1 \n{"losses":[1.0,0.5],"name":"run"}\n'),
        (["fitted"], "step 0 step 1 \n"),
        (["replied"], 'word word \n{"reply":{"words":2},"model":"m"}\n'),
    ],
)
def test_the_members_next_to_the_text_follow_it_as_json(objects_url, words, output):
    assert run("call", objects_url, *words).stdout == output
    job = run("call", objects_url, *words, "--detach").stdout.strip()
    assert run("attach", objects_url, job).stdout == output


def test_on_a_terminal_the_members_next_to_the_text_follow_it_as_json(objects_url):
    with Terminal("call", objects_url, "fitted", "named=true") as terminal:
        assert terminal.end() == 0
    shown = re.sub(r"\s+", " ", terminal.text)
    assert 'step 0 step 1 { "losses": [ 1.0, 0.5 ], "name": "run" } succeeded after' in shown


@pytest.mark.parametrize("words", [[], ["end=\n"], ["error=true"]], ids=["open", "break", "error"])
def test_on_a_dumb_terminal_progress_does_not_interrupt_the_text(url, words):
    with Terminal("call", url, "counted", *words, columns=200, TERM="dumb") as terminal:
        assert terminal.end() == (words == ["error=true"])
    _, first, *others = [line.strip() for line in terminal.lines if line.strip()]
    assert first == "running: 1 of 9 pages"
    assert others[0] == " ".join(f"text{number}" for number in range(1, 10))
    assert ("no ink" in terminal.text) == (words == ["error=true"])


def test_a_lost_connection_is_shown_with_the_wait_and_the_number_of_the_attempt():
    with FakeServer() as server:
        server.endpoint("talk").streams(["one ", "two"]).cuts_after(1)
        result = run("call", server.url, "talk")
    assert result.stdout == "one two\n"
    pattern = r"connection lost; retrying in [\d.]+ s \(attempt 1, giving up in \d+ s\)\n"
    assert re.fullmatch(pattern, result.stderr)


def test_a_wait_of_a_busy_server_is_shown():
    with FakeServer() as server:
        server.endpoint("talk").refuses("queue_full", "the queue is full")
        server.endpoint("talk").streams(["text"])
        result = run("call", server.url, "talk")
    assert result.stdout == "text\n"
    assert re.fullmatch(r"the queue is full \[queue_full\]; retrying in [\d.]+ s\n", result.stderr)


def test_attach_from_now_omits_what_has_arrived(url):
    with Client(url) as client:
        job = client.submit("gated")
        assert next(iter(job)).text == "one "
        assert run("attach", url, job.id, "--timeout", "0.5").stdout == "one \n"
        waiting = run("attach", url, job.id, "--from-now", "--timeout", "0.5")
        assert (waiting.exit_code, waiting.stdout) == (124, "")
        client.run("open_gate")
        client.job(job.id).wait()
    ended = run("attach", url, job.id, "--from-now")
    assert (ended.exit_code, ended.stdout) == (0, "")
    assert "the job has already ended; to see its result, omit --from-now" in ended.stderr


def test_progress_and_notes_of_an_endpoint_are_one_line_each():
    server = Server()

    @server.endpoint
    async def talk(stream: Stream[str]) -> None:
        stream.note("short\nusage: tokens 9")
        stream.append("text")

    with server.running() as url:
        ended = run("call", url, "talk")
    assert ended.stderr == "info: short usage: tokens 9\n"
    with FakeServer() as fake:
        fake.endpoint("talk").streams(["text"]).progresses(1, 2, "a\nusage: tokens 9")
        ended = run("call", fake.url, "talk")
    assert ended.stderr == "running: 1 of 2 a usage: tokens 9\n"


def test_an_error_is_printed_on_a_terminal_whose_width_is_0(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    command = [sys.executable, "-m", "tidewire", "jobs", "http:///"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr[:10]) == (2, "tidewire: ")


def test_a_pipe_stays_a_pipe_with_force_color(monkeypatch):
    """Programs for continuous integration set these variables, with which rich writes to a pipe as to a terminal."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    with FakeServer() as server:
        server.endpoint("talk").streams(["a", "b", "c"]).restarts_after(2)
        server.endpoint("pair").returns({"x": [1]}).queued(1)
        retracted, pair = run("call", server.url, "talk"), run("call", server.url, "pair")
        listed = run("jobs", server.url)
    assert (retracted.exit_code, retracted.stdout) == (6, "ab\n")
    assert (pair.exit_code, pair.stdout, pair.stderr) == (0, '{"x":[1]}\n', "queued: position 1\n")
    assert "\x1b" not in retracted.stderr + listed.stdout


# ---- descriptions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_description_is_short_and_fits_the_terminal(url, width):
    shown = shown_on_terminal(width, "describe", url, "draw")
    lines = shown.splitlines()
    assert len(lines) <= 12
    assert all(len(line) <= width for line in lines if not line.startswith("tidewire call"))
    assert f"tidewire call {url} draw 'prompt=the sea' size=2" in lines
    assert shown.count("Draw a picture.") == 1
    assert re.search(r"size +integer +1 +\(?≥ 1, ≤ 8", shown)
    assert "Size" not in shown
    everything = shown_on_terminal(width, "describe", url, "draw", "--all")
    assert " ".join(everything.split()).count("What to draw.") == 20
    assert all(len(line) <= width for line in everything.splitlines() if not line.startswith("tidewire call"))


def test_a_narrow_terminal_shows_the_whole_names_of_members_and_which_are_required():
    types = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}
    members = {"response_format": types, "repetition_penalty": {"type": "number", "default": 1.5}}
    schema = {"type": "object", "properties": members, "required": ["response_format"]}
    description = {
        "name": "talk",
        "input_schema": schema,
        "value_schema": {},
        "capabilities": {"streams": True},
    }
    console = Console(width=40, file=io.StringIO())
    for part in describe_endpoint(EndpointDescription.model_validate(description), "", show_all=False):
        console.print(part)
    shown = console.file.getvalue()
    assert re.search(r"^response_format +array of.*… +required", shown, re.MULTILINE)
    assert re.search(r"^repetition_penalty +number +1.5", shown, re.MULTILINE)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_description_of_a_server_is_one_line_for_each_endpoint(url, width):
    lines = [line.rstrip() for line in shown_on_terminal(width, "describe", url).splitlines()]
    assert len(lines) <= 12
    assert all(len(line) <= width for line in lines if "tidewire describe" not in line)
    assert "jobs are lost when the server stops" in lines
    assert "max_state_bytes" not in " ".join(lines)
    assert any(line.startswith("noted") and line.endswith("(input optional)") for line in lines)
    assert re.search(r"max_state_bytes +16 777 216", shown_on_terminal(width, "describe", url, "--all"))


def test_an_endpoint_without_examples_has_a_call_with_its_required_members(url):
    assert f"tidewire call {url} story hero=TEXT" in run("describe", url, "story").stdout


# ---- errors -------------------------------------------------------------------------------------------------------


def test_advice_names_commands_and_options(url):
    refused = run("call", url, "story", "hero=a", "words=many").stderr
    assert f"run: tidewire describe {url} story" in " ".join(refused.split())
    with Server(tokens=["me:s3cret"]).running() as closed:
        denied = run("call", closed, "story", "--header", "Authorization: Bearer t0ken").stderr
    assert "--token-file" in denied
    assert "--header" in denied
    assert "TIDEWIRE_TOKEN" in denied
    assert "t0ken" not in denied
    for text in (refused, denied):
        assert not re.search(r"client\.|Client\(|with_options", text)


def test_a_line_of_the_servers_token_file_as_token_gets_a_hint(tmp_path, monkeypatch):
    file = tmp_path / "token.txt"
    with Server(tokens=["alice:s3cret"]).running() as closed:
        file.write_text("alice:s3cret\n")
        of_file = run("jobs", closed, "--token-file", str(file)).stderr
        monkeypatch.setenv("TIDEWIRE_TOKEN", "alice:s3cret")
        of_variable = run("jobs", closed).stderr
        file.write_text("alice:s3cret\nbob:open\n")
        of_whole_file = run("jobs", closed, "--token-file", str(file))
    for text in (of_file, of_variable):
        assert "a line `name:token` of the server's token file, pass only the part after" in text
        assert "s3cret" not in text
    assert (of_whole_file.exit_code, of_whole_file.stderr) == (
        2,
        f"tidewire: --token-file {file}: the file has more than one line; it must contain only your token\n",
    )


@pytest.mark.parametrize("command", ["call", "attach"])
def test_advice_for_a_value_above_the_size_limit_names_the_argument_of_the_client(monkeypatch, url, command):
    monkeypatch.setattr(cli, "Client", functools.partial(Client, max_state_bytes=1000))
    monkeypatch.setattr(transport, "LEAST_BODY_BYTES", 1000)
    with Client(url) as client:
        job = client.submit("story", hero="x" * 3_000_000)
        job.wait()
    words = ["story", f"hero={'x' * 3_000_000}"] if command == "call" else [job.id]
    result = run(command, url, *words)
    assert result.exit_code != 0
    pattern = re.escape(f"Client({url!r}, max_state_bytes=…).job('") + r"[\w-]+'\)\.result\(\)"
    assert re.search(pattern, "".join(result.stderr.splitlines()))


def test_a_malformed_header_is_refused_without_its_value(url):
    result = run("describe", url, "--header", "Authorization Bearer s3cret")
    assert result.exit_code == 2
    assert "NAME: VALUE" in result.stderr
    assert "s3cret" not in result.output


# ---- help ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["call", "map", "attach", "jobs", "chat", "describe", "codegen"])
def test_examples_in_the_help_are_commands(monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.strip() for line in run(command, "--help").stdout.splitlines()]
    examples = [line for line in lines if line.startswith("tidewire ")]
    assert examples
    assert all(line.startswith(f"tidewire {command} ") for line in examples)


def test_the_jq_example_in_the_help_prints_the_text(monkeypatch, url):
    monkeypatch.setenv("COLUMNS", "200")
    (example,) = [line for line in run("call", "--help").stdout.splitlines() if "jq" in line]
    (program,) = re.findall(r"jq '(.*)'", example)
    assert program == 'select(.type == "result").value.text'
    lines = [json.loads(line) for line in run("call", url, "noted", "--json").stdout.splitlines()]
    assert [line["value"] for line in lines if line["type"] == "result"] == ["text"]


def test_the_shell_can_complete_commands(monkeypatch):
    # Without this, the result depends on the program that has started the tests.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    script = run("--show-completion", "bash")
    assert "_TIDEWIRE_COMPLETE" in script.stdout + script.stderr or script.exit_code == 0
    assert "--install-completion" in run("--help").stdout
    done = subprocess.run(
        [sys.executable, "-m", "tidewire"],
        env={"_TIDEWIRE_COMPLETE": "complete_bash", "COMP_WORDS": "tidewire des", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.split() == ["describe"]
