"""Every example in `docs/examples` is short, is listed in the index, and does what it says."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from docs.test_code_blocks import start_command, wait_for_port
from support.chromium import CHROMIUM
from support.free_port import free_port
from tidewire import Client
from tidewire_server.model import default_model

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
SCRIPTS_FOR_DOCS = {
    "demo.py",
    "draw_logprobs.py",
    "pictured_server.py",
    "record_demo.py",
    "record_notebook.py",
    "record_terminal.py",
    "screenshots.py",
    "streaming_diffs.py",
}
"""Longer programs, which draw the pictures of the documentation or demonstrate a claim."""
MAX_LINES = 40
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"

pytestmark = pytest.mark.timeout(180)


def names():
    return sorted(each.name for each in EXAMPLES.iterdir() if each.suffix in {".py", ".html"})


@pytest.mark.parametrize("name", sorted({*names()} - SCRIPTS_FOR_DOCS))
def test_an_example_has_fewer_than_40_lines(name):
    assert len((EXAMPLES / name).read_text().splitlines()) < MAX_LINES


def test_the_index_lists_every_example_once():
    index = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[\S+\]\((\S+)\)", index, re.MULTILINE)) == names()


def serving(folder, *arguments):
    return start_command(
        "tidewire", "serve", *arguments, "--port", "0", "--port-file", str(folder / "port"), cwd=folder
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """URL of a server with the bundled model."""
    folder = tmp_path_factory.mktemp("generate")
    with serving(folder) as process:
        yield f"http://127.0.0.1:{wait_for_port(process, folder / 'port')}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def run(name, *arguments, cwd, url=None, **options):
    env = os.environ | ({} if url is None else {"TIDEWIRE_URL": url})
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, timeout=120, **options)
    # Not with `text=True`, which turns a carriage return into a line break.
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, done.stderr
    return done


def jobs(url, endpoint):
    """Return the ended jobs of an endpoint, newest first."""
    with Client(url) as client:
        return [client.job(job.id).read() for job in client.jobs() if job.endpoint == endpoint]


def text_of(job):
    return job.state["items"][0]["value"]["text"]


@pytest.mark.heavy
def test_stream_prints_the_text(url, tmp_path):
    done = run("stream.py", cwd=tmp_path, url=url)
    assert done.stdout == text_of(jobs(url, "generate")[0]) + "\n"
    assert done.stderr == ""


@pytest.mark.heavy
def test_resume_continues_after_a_kill_and_prints_the_whole_text(url, tmp_path):
    command, env = [sys.executable, str(EXAMPLES / "resume.py")], os.environ | {"TIDEWIRE_URL": url}
    before = len(jobs(url, "generate"))
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE) as process:
        begun = process.stdout.read(8)
        process.kill()
        begun += process.stdout.read()
    saved = json.loads((tmp_path / "resume.json").read_text())
    done = run("resume.py", cwd=tmp_path, url=url)
    newest, *earlier = jobs(url, "generate")
    assert len(earlier) == before, "one job for both runs"
    assert saved["job"] == newest.id
    assert done.stdout == text_of(newest) + "\n"
    assert done.stdout.startswith(begun.decode())
    assert not (tmp_path / "resume.json").exists()


FIRST_VECTOR = "5000 vectors. The nearest one to 'Order 0: 0 parts for customer 0' is 'Order "


@pytest.mark.heavy
def test_embeddings_are_written_to_a_file(tmp_path):
    done = run("embeddings.py", cwd=tmp_path)
    assert done.stdout.startswith(FIRST_VECTOR)
    assert len((tmp_path / "embeddings.jsonl").read_bytes().splitlines()) >= 5000


@pytest.mark.slow
def test_embeddings_continue_after_a_kill(tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "embeddings.py")],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file, give_up = tmp_path / "embeddings.jsonl", time.monotonic() + 60
    while not file.exists() or file.stat().st_size < 500_000:
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.005)
    process.kill()
    process.wait()
    size = file.stat().st_size
    done = run("embeddings.py", cwd=tmp_path)
    assert done.stdout.startswith(FIRST_VECTOR)
    assert done.stderr.endswith("5,000 of 5,000")
    assert file.stat().st_size > size
    again = run("embeddings.py", cwd=tmp_path)
    assert again.stdout == done.stdout


@pytest.mark.heavy
def test_progress_is_shown_until_the_last_epoch(tmp_path):
    done = run("progress.py", cwd=tmp_path)
    assert "\rtraining: 20 of 20 epochs\n" in done.stdout
    assert done.stdout.endswith("{'x': 3.0}\n")


@pytest.mark.heavy
def test_rollback_shows_each_draft(tmp_path):
    done = run("rollback.py", cwd=tmp_path)
    lines = done.stdout.split("\r\x1b[K")
    assert {"The answer is 41", "The answer is 4", "The answer is 42"} <= {*lines}
    assert done.stdout.endswith("The question comes first\nThe text is: The question comes first\n")


@pytest.mark.heavy
def test_surprise_draws_a_picture(url, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = run("surprise.py", "surprise.png", cwd=tmp_path, url=url)
    assert re.fullmatch(r"\d+ tokens, \d+ bits; perplexity \d+\.\d\n", done.stdout)
    assert (tmp_path / "surprise.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
def test_a_picture_refines_itself(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    done = run("refine_picture.py", "picture.png", cwd=tmp_path)
    sizes = [*map(int, re.findall(r"a picture with (\d+) bytes", done.stdout))]
    assert sizes == sorted(sizes)
    assert len(sizes) >= 2, "the client may merge steps, but not all of them"
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) == sizes[-1]


@pytest.fixture(scope="module")
def chat_url(tmp_path_factory):
    """URL of a server with a copy of the bundled model that has a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    model = folder / "model"
    shutil.copytree(default_model(), model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    with serving(folder, "--model", str(model)) as process:
        yield f"http://127.0.0.1:{wait_for_port(process, folder / 'port')}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.heavy
def test_chat_keeps_the_history(chat_url, tmp_path):
    done = run("chat.py", cwd=tmp_path, url=chat_url, input=b"Hello.\nAnd then?\n")
    second, first = map(text_of, jobs(chat_url, "generate"))
    assert done.stdout == f"> {first}\n> {second}\n> "
    with Client(chat_url) as client:
        history = [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "And then?"},
        ]
        counted = client.run("generate", messages=history, max_tokens=1, prompt_logprobs=0)[
            "prompt_token_ids"
        ]
    assert len(counted) > len(first) / 4


def in_background(command, cwd, env=None):
    return subprocess.Popen(command, cwd=cwd, env=os.environ | (env or {}), stderr=subprocess.PIPE, text=True)


def until_it_answers(process, url):
    give_up = time.monotonic() + 60
    while True:
        try:
            return httpx2.get(url)
        except httpx2.TransportError:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < give_up
            time.sleep(0.05)


@pytest.mark.heavy
@pytest.mark.skipif(find_spec("fastapi") is None, reason="needs FastAPI: pip install -e '.[peers]'")
def test_the_relay_streams_text_and_attaches_again(url, tmp_path):
    relay = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "--app-dir",
        str(EXAMPLES),
        "fastapi_relay:app",
        "--port",
        str(port),
    ]
    with in_background(command, tmp_path, {"TIDEWIRE_URL": url}) as process:
        try:
            until_it_answers(process, f"{relay}/openapi.json")
            written = httpx2.post(
                f"{relay}/texts", params={"prompt": "import ", "max_tokens": 20}, timeout=60
            )
            newest = jobs(url, "generate")[0]
            assert written.headers["job-id"] == newest.id
            assert written.text == text_of(newest)
            assert httpx2.get(f"{relay}/texts/{newest.id}", timeout=60).text == written.text
        finally:
            process.terminate()
            process.wait(20)


@pytest.mark.browser
@pytest.mark.heavy
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_page_of_ones_own_follows_a_job(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    site = f"http://127.0.0.1:{(port := free_port())}"
    with in_background([sys.executable, str(EXAMPLES / "own_page.py"), str(port)], tmp_path) as process:
        try:
            page = until_it_answers(process, site).text
            assert page == (EXAMPLES / "own_page.html").read_text()
            with Client(f"{site}/ai") as client:
                job = client.submit("poem", topic="brooks")
                with sync_api.sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                    page = browser.new_page()
                    page.goto(f"{site}/#{job.id}")
                    status, poem = page.locator("#status"), page.locator("#poem")
                    sync_api.expect(status).to_have_text("succeeded", timeout=30_000)
                    assert poem.text_content() == job.result()
                    page.get_by_role("button").click()
                    written = job.result().replace("brooks", "rivers")
                    sync_api.expect(poem).to_have_text(written, timeout=30_000)
                    assert client.job(page.evaluate("location.hash.slice(1)")).result() == written
                    browser.close()
        finally:
            process.terminate()
            process.wait(20)
