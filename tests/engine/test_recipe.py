"""The training recipe on a small corpus, the corpus manifest, and the bundled model."""

import asyncio
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.model_checkpoints import generate_one
from tidewire_server.default_model import default_model, model_card, recipe, stdlib_corpus
from tidewire_server.generation.torch_engine import TorchEngine

Start = Callable[..., TorchEngine]


def write_manifest(folder: Path) -> None:
    """Write the manifest of the files in a folder next to the folder."""
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}
    manifest = {"python": "3.11.0", "files": files}
    (folder.parent / "corpus.json").write_text(json.dumps(manifest))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Folder with thirty small files, some of them for validation; the manifest corpus.json is next to the folder."""
    folder = tmp_path / "library"
    folder.mkdir()
    for i in range(30):
        lines = (f"def function_{i}_{j}(x, y={j}):\n    return x * {i} + y - {j * i}\n\n" for j in range(30))
        (folder / f"module_{i}.py").write_text("".join(lines))
    assert any(zlib.crc32(p.name.encode()) % stdlib_corpus.VALIDATION_EVERY == 0 for p in folder.iterdir())
    write_manifest(folder)
    return folder


def run_recipe(library: Path, out: Path) -> int:
    listed = library.parent / "corpus.json"
    folders = ["--out", str(out), "--stdlib", str(library), "--corpus", str(listed)]
    return recipe.main([*folders, "--steps", "4", "--batch", "2"])


@pytest.mark.heavy
def test_recipe_writes_a_checkpoint_that_the_engine_serves(start: Start, library: Path, tmp_path: Path):
    out = tmp_path / "model"
    assert run_recipe(library, out) == 0
    assert {p.name for p in out.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
        "MODEL_CARD.md",
    }
    # Another user may serve the checkpoint.
    assert {p.name: oct(p.stat().st_mode & 0o444) for p in out.iterdir()} == {
        p.name: "0o444" for p in out.iterdir()
    }
    record = json.loads((out / "training.json").read_text())
    assert (record["state"], record["result"]["steps"], record["corpus"]["drift"]) == ("complete", 4, [])
    assert f"{record['result']['bits_per_byte']:.3f} bits per byte" in (out / "MODEL_CARD.md").read_text()
    assert len(generate_one(start(out), prompt="def f", max_tokens=5).text) == 5


@pytest.mark.slow
def test_recipe_reproduces_the_same_weights(library: Path, tmp_path: Path):
    for out in (tmp_path / "one", tmp_path / "two"):
        assert run_recipe(library, out) == 0
    assert (tmp_path / "one/model.safetensors").read_bytes() == (
        tmp_path / "two/model.safetensors"
    ).read_bytes()


def test_recipe_refuses_changed_files_and_names_the_options(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (library / "module_3.py").write_text("changed")
    (library / "module_4.py").unlink()
    assert run_recipe(library, tmp_path / "model") == 2
    errors = capsys.readouterr().err
    for part in (
        "2 of 30 files",
        "differs: module_3.py",
        "missing: module_4.py",
        "--stdlib",
        "--allow-drift",
    ):
        assert part in errors
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_corpus_too_short_for_a_batch_is_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for path in library.iterdir():
        path.write_text("x = 1\n")
    write_manifest(library)
    assert run_recipe(library, tmp_path / "model") == 2
    assert "2 windows of 512 tokens needs 1537" in capsys.readouterr().err


def test_allowed_drift_is_recorded(library: Path):
    (library / "module_3.py").write_text("changed")
    (library / "module_4.py").unlink()
    listed = library.parent / "corpus.json"
    text = stdlib_corpus.read(library, allow_drift=True, manifest=listed)
    assert text.drift == ["differs: module_3.py", "missing: module_4.py"]
    assert len(text.train) + len(text.validation) == 29
    (library / "module_3.py").write_text("changed again")
    assert stdlib_corpus.read(library, allow_drift=True, manifest=listed).digest != text.digest


def test_folder_without_any_listed_file_is_refused(tmp_path: Path):
    with pytest.raises(stdlib_corpus.CorpusError, match="contains too few of the 490 files"):
        stdlib_corpus.read(tmp_path, allow_drift=True)


def test_manifest_lists_no_tests_and_no_machine_specific_files():
    listed = json.loads(stdlib_corpus.MANIFEST.read_text())
    assert listed["python"].startswith("3.11.")
    names = list(listed["files"])
    assert names == sorted(names)
    assert all(name.endswith(".py") for name in names)
    assert not [
        n for n in names if "test" in n.split("/")[:-1] or "tests" in n.split("/") or "_sysconfigdata" in n
    ]


def test_bundled_model_is_small_complete_and_matches_its_training_record():
    folder = default_model()
    artifacts = [p for p in folder.iterdir() if p.suffix in {".json", ".safetensors", ".md"}]
    assert sum(p.stat().st_size for p in artifacts) < 6_000_000
    record = json.loads((folder / "training.json").read_text())
    assert record["state"] == "complete"
    assert record["corpus"]["drift"] == []
    assert record["result"]["bits_per_byte"] < 2.0
    assert (folder / "MODEL_CARD.md").read_text() == model_card.write(record)


def test_bundled_model_loads_and_prefers_python_to_shuffled_text():
    folder = default_model()
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"

    def loss(text: str) -> float:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return model(ids, labels=ids).loss.item()

    python = "import os\n\ndef main():\n    for name in os.listdir(path):\n        print(name)\n"
    shuffled = "".join(sorted(python))
    assert loss(python) < loss(shuffled) - 0.5


def test_bundled_model_has_a_vocabulary_with_every_byte():
    engine = TorchEngine.load(default_model(), device="cpu", slots=1)
    vocabulary = engine.caps.vocabulary
    asyncio.run(engine.close())
    assert len(vocabulary) == 2048
    assert {vocabulary.bytes_of(i) for i in range(2048)} >= {bytes([b]) for b in range(256)}
    assert [vocabulary.text_of(i) for i in vocabulary.special] == ["<|endoftext|>"]
