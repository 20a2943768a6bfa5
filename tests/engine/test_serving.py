"""Settings of the text engine, its startup messages, its description, and profiles of its steps."""

import inspect
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from support.model_checkpoints import CONTEXT, generate_one, random_llama
from tidewire_server import Server
from tidewire_server.commands.configuration import configure
from tidewire_server.commands.configured_server import default_server
from tidewire_server.commands.serve_command import serve
from tidewire_server.generation import add_generate
from tidewire_server.generation.torch_engine import LoadError, TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, logged_progress
from tidewire_server.generation.upstream import add_upstream

Start = Callable[..., TorchEngine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_llama(tmp_path_factory.mktemp("model"))


async def test_description_has_the_model_its_dtype_device_context_and_features(folder: Path):
    server = Server()
    add_generate(server, model=folder, device="cpu", dtype="bfloat16", slots=2, context=64, max_top=3)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(server.app), base_url="http://test"
    ) as client:
        described = (await client.get("/v1/endpoints/generate")).json()
    await server.app.close()
    features = described["capabilities"]["model"].pop("features")
    assert described["capabilities"]["model"] == {
        "name": folder.name,
        "architecture": "llama",
        "dtype": "bfloat16",
        "device": "cpu",
        "context": 64,
    }
    assert (
        {"prompt", "max_tokens", "top_logprobs"}
        <= set(features)
        <= set(described["input_schema"]["properties"])
    )
    assert "messages" not in features  # the model has no chat template
    assert described["capabilities"]["logprobs"] == {"max_top": 3}
    examples = described["examples"]
    assert max(each.get("top_logprobs", 0) for each in examples) == 3
    assert max(each.get("max_tokens", 0) for each in examples) == 32


def test_memory_of_weights_and_cache_is_logged(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    engine = TorchEngine.load(folder, device="cpu", slots=3, context=40)
    file = (folder / "model.safetensors").read_bytes()
    weights = len(file) - 8 - int.from_bytes(file[:8], "little")  # without the header
    assert f"memory: {weights / 1000:.3g} kB of weights, " in caplog.text
    # keys and values, layers, heads, head size, bytes; one more position per slot
    assert engine.cache_bytes == 2 * 2 * 2 * 8 * 4 * 3 * 41
    assert f"{engine.cache_bytes / 1000:.3g} kB of cache (3 slots of 40 tokens)" in caplog.text


def test_context_is_a_setting_with_the_model_as_its_limit(start: Start, random_checkpoint: Checkpoint):
    assert start(random_checkpoint, context=CONTEXT).caps.context == CONTEXT
    engine = start(random_checkpoint, context=2, max_cache_bytes=1)
    assert engine.caps.context == 2
    assert generate_one(engine, prompt="a", max_tokens=1).finish_reason == "length"
    with pytest.raises(
        LoadError, match=f"is {CONTEXT + 1} tokens, but .* supports at most {CONTEXT}; choose a shorter"
    ):
        start(random_checkpoint, context=CONTEXT + 1)


def test_cache_that_cannot_be_allocated_is_refused(start: Start, random_checkpoint: Checkpoint):
    with pytest.raises(
        LoadError, match=r"slots of 128 tokens needs .* GB, which cannot be allocated; use fewer slots"
    ):
        start(random_checkpoint, slots=1 << 40, step_tokens=1 << 41, context=CONTEXT)


def test_loading_logs_its_progress(caplog: pytest.LogCaptureFixture, folder: Path):
    caplog.set_level(logging.INFO)
    with logged_progress(interval=0):
        AutoModelForCausalLM.from_pretrained(folder)
    lines = [record.getMessage() for record in caplog.records if "loading the weights" in record.getMessage()]
    assert lines[0] == f"loading the weights: 0 % (0 of {len(lines)} tensors)"
    assert len(lines) > 10


ADDS_ENDPOINT = {"add_generate": add_generate, "add_upstream": add_upstream}


@pytest.mark.parametrize(
    ("flag", "value", "call"),
    [
        ("model", "folder", "add_generate(server, model=…)"),
        ("device", "cpu", "add_generate(server, device=…)"),
        ("dtype", "bfloat16", "add_generate(server, dtype=…)"),
        ("slots", "2", "add_generate(server, slots=…)"),
        ("context", "128", "add_generate(server, context=…)"),
        ("max-top-logprobs", "3", "add_generate(server, max_top=…)"),
        ("max-num-beams", "3", "add_generate(server, max_num_beams=…)"),
        ("max-schema-bytes", "300", "add_generate(server, max_schema_bytes=…)"),
        ("max-mask-share", "0.5", "add_generate(server, max_mask_share=…)"),
        ("on-restart", "continue", "add_generate(server, on_restart=…)"),
        ("profile", "traces", "add_generate(server, profile=…)"),
        ("upstream", "http://127.0.0.1:1/v1", "add_upstream(server, URL)"),
        ("upstream-kind", "vllm", "add_upstream(server, kind=…)"),
        ("upstream-concurrency", "2", "add_upstream(server, concurrency=…)"),
        ("upstream-timeout", "9", "add_upstream(server, timeout=…)"),
        ("tokenizer", "folder", "add_upstream(server, tokenizer=…)"),
    ],
)
def test_setting_of_the_default_server_is_refused_with_a_target(flag: str, value: str, call: str):
    ended = CliRunner().invoke(serve, ["mine.py:server", f"--{flag}", value, "--show-config"])
    assert ended.exit_code == 2
    name = flag.replace("-", "_")
    assert (
        f"--{flag}: {name} applies only to the default server, not to the target mine.py:server"
        in ended.stderr
    )
    assert ended.stderr.rstrip().endswith(f" in the target's code, as in {call}")
    # The function accepts the arguments of the suggested call.
    function, arguments = call.removesuffix(")").split("(")
    positional = [each for each in arguments.split(", ") if "=" not in each]
    keywords = {each.removesuffix("=…"): ... for each in arguments.split(", ") if "=" in each}
    inspect.signature(ADDS_ENDPOINT[function]).bind(*positional, **keywords)


def test_profile_is_a_trace_of_some_steps(start: Start, random_checkpoint: Checkpoint, tmp_path: Path):
    folder = tmp_path / "new" / "traces"
    engine = start(random_checkpoint, profile=folder)
    assert not [*folder.iterdir()]
    generate_one(engine, prompt="abc", max_tokens=30)
    (file,) = folder.iterdir()
    assert file.name.startswith("steps-11-20-")
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {f"step {number}: 1 texts, 0 prompt tokens" for number in range(11, 21)} <= names
    assert "step 21: 1 texts, 0 prompt tokens" not in names
    assert "aten::embedding" in names


def test_only_the_user_of_the_server_can_read_a_profile(
    start: Start, random_checkpoint: Checkpoint, tmp_path: Path
):
    engine = start(random_checkpoint, profile=tmp_path)
    generate_one(engine, prompt="abc", max_tokens=30)
    (file,) = tmp_path.iterdir()
    assert oct(file.stat().st_mode & 0o777) == oct(0o600)


def test_folder_for_profiles_that_cannot_be_created_is_refused(random_checkpoint: Checkpoint, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoadError, match="folder for profiles .* cannot be created: Not a directory"):
        TorchEngine(random_checkpoint, profile=tmp_path / "file" / "traces")


def test_flags_the_environment_and_the_file_configure_the_engine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "tidewire.toml"
    file.write_text('slots = 9\nmax_top_logprobs = 9\ndtype = "bfloat16"\n')
    monkeypatch.setenv("TIDEWIRE_SLOTS", "5")
    monkeypatch.setenv("TIDEWIRE_MAX_TOP_LOGPROBS", "5")
    flags = {"model": str(folder), "device": "cpu", "slots": "3", "context": "128", "on_restart": "continue"}
    endpoint = default_server(configure(flags, file)).endpoints["generate"]
    capabilities = endpoint.capabilities(1)
    assert endpoint.concurrency_limit == 3  # flag
    assert endpoint.on_restart == "continue"  # flag
    assert capabilities.logprobs.max_top == 5  # environment
    assert (capabilities.model.dtype, capabilities.model.context) == ("bfloat16", 128)  # file, flag


SLOW_IMPORT = '''
import importlib.abc, logging, pathlib, sys, time


class SlowImport(importlib.abc.MetaPathFinder):
    """The import takes 1,000 s of a clock that this program controls."""

    def find_spec(self, name, path, target=None):
        if name == "tidewire_server.generation.torch_engine":
            clock = time.perf_counter
            time.perf_counter = lambda: clock() + 1000


sys.meta_path.insert(0, SlowImport())
logging.basicConfig(level="INFO", stream=sys.stdout)
from tidewire_server.commands.configuration import configure
from tidewire_server.commands.configured_server import default_server

default_server(configure({"model": sys.argv[1], "device": "cpu"}, None))
'''


@pytest.mark.slow
def test_the_logged_duration_of_loading_contains_the_import_of_torch(folder: Path):
    ended = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    logged = re.search(r"loaded the model .* in ([\d.]+) s", ended.stdout)
    assert logged is not None
    assert float(logged[1]) >= 1000


@pytest.mark.parametrize("is_default", [True, False])
def test_the_line_while_a_model_loads_names_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_default: bool
):
    shown = []

    @contextmanager
    def line(text: str) -> Iterator[None]:
        shown.append(text)
        yield

    monkeypatch.setattr("tidewire_server.commands.banner.transient_line", line)
    default_server(configure({"device": "cpu"} | ({} if is_default else {"model": str(folder)}), None))
    name = "the default model" if is_default else f"the model {folder.name}"
    assert re.fullmatch(rf"loading {name} \([\d.]+ [kM]B\) …", shown[0])
