"""The JavaScript package `openai` reads the same from the OpenAI surface as the Python package."""

import json
import shutil
import subprocess

import pytest

from support.foreign_programs import INTEROP, NODE, needs_node
from support.openai_surface import openai_client, stepwise_server

pytestmark = needs_node
NPM = shutil.which("npm")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Folder with the script and the installed package."""
    folder = tmp_path_factory.mktemp("openai") / "package"
    shutil.copytree(INTEROP / "openai_package", folder)
    if NPM is None:
        pytest.skip("npm is not installed")
    command = [NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if installed.returncode:
        pytest.skip(f"the package `openai` cannot be installed: {installed.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def url():
    with stepwise_server().running() as url:
        yield url


def javascript(package, url, *requests):
    """The events of each request; a request is an API and a body."""
    command = [NODE, "read_streams.mjs", f"{url}/openai/v1", json.dumps(requests)]
    run = subprocess.run(command, cwd=package, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def python(stream):
    return [event.model_dump(exclude_unset=True) for event in stream]


STEPS = "+né 😀\nsleep 0.02\n+👩‍🚀 \u2028 end\r\nsleep 0.02\n+."


@pytest.mark.heavy
def test_both_packages_read_the_same_text_of_a_completion(package, url):
    request = {"model": "generate", "prompt": STEPS}
    [ours] = javascript(package, url, ("completions", request))
    with openai_client(url) as client:
        theirs = python(client.completions.create(**request, stream=True))
    texts = ["".join(chunk["choices"][0]["text"] for chunk in chunks) for chunks in (ours, theirs)]
    assert texts[0] == texts[1] != ""
    assert "👩‍🚀" in texts[0]
    assert ours[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.heavy
def test_both_packages_resume_a_response_with_the_same_events(package, url):
    with openai_client(url) as client:
        job = client._client.post(
            f"{url}/v1/endpoints/generate/jobs", json={"input": {"prompt": STEPS}}
        ).json()
        name = f"resp_{job['id']}"
        whole = python(client.responses.retrieve(name, stream=True))
        cursors = [event["sequence_number"] for event in whole[::3]]
        theirs = [
            python(client.responses.retrieve(name, stream=True, starting_after=after)) for after in cursors
        ]
    ours = javascript(package, url, *(("retrieve", {"id": name, "after": after}) for after in cursors))
    assert ours == theirs


def test_both_packages_raise_the_error_of_a_stream_that_fails(package, url):
    (*chunks, thrown), [refused] = javascript(
        package,
        url,
        ("completions", {"model": "generate", "prompt": "+one\nsleep 0.05\nfail"}),
        ("chat", {"model": "generate", "messages": [], "tools": [1]}),
    )
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "one"
    assert thrown["thrown"] == "APIError"
    assert "the step failed on purpose" in thrown["message"]
    assert refused == {"thrown": "BadRequestError", "status": 400} | {"message": refused["message"]}
