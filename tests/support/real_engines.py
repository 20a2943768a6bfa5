"""Engines of other projects in their own processes: llama.cpp's server and `transformers serve`, on a CPU."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2

from support.free_port import free_port
from support.llama_gguf import begin_gguf, end_gguf
from tidewire_server.default_model import default_model

START_LIMIT = 150.0
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def chat_model(folder: Path) -> Path:
    """Copy the default model, and add a chat template."""
    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        shutil.copy(default_model() / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextlib.contextmanager
def _process(command: list[str | Path], port: int, log: Path) -> Iterator[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent)}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*map(str, command)], stdout=output, stderr=output, env=environment, cwd=Path(__file__).parents[1]
        )
    try:
        give_up = time.monotonic() + START_LIMIT
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up, log.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def transformers_serve(model: Path, folder: Path) -> Iterator[str]:
    """Run `transformers serve`, and yield its base URL."""
    port = free_port()
    program = Path(sys.executable).with_name("transformers")
    command = [
        program,
        "serve",
        model,
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with _process(command, port, folder / "transformers.log") as url:
        yield url


@contextlib.contextmanager
def llama_cpp_server(model: Path, folder: Path) -> Iterator[str]:
    """Run llama.cpp's server with a Llama checkpoint, and yield its base URL."""
    port = free_port()
    write_gguf(model, folder / "model.gguf")
    command = [sys.executable, "-m", "support.real_engines", folder / "model.gguf", str(port)]
    with _process(command, port, folder / "llama_cpp.log") as url:
        yield url


def write_gguf(model: Path, path: Path) -> None:
    """Convert a Llama checkpoint to a GGUF file in float32."""
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = loaded.config
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer = begin_gguf(path, config)
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL)
    writer.add_token_types([kinds[token not in special] for token in range(config.vocab_size)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    if (template := model / "chat_template.jinja").exists():
        writer.add_chat_template(template.read_text())
    end_gguf(writer, loaded.model, config)


def _serve_llama_cpp(path: Path, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = 4
    params.n_ctx = 4 * 1024
    params.port = port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.kv_unified = False
    params.warmup = False
    params.verbosity = -1
    # The server runs in a thread of this object.
    server = xllamacpp.Server(params)
    while server:
        time.sleep(60)


if __name__ == "__main__":
    _serve_llama_cpp(Path(sys.argv[1]), int(sys.argv[2]))
