import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, MambaConfig, MambaForCausalLM, T5Config

from support.model_checkpoints import (
    crafted_checkpoint,
    generate_one,
    random_llama,
    random_tokenizer,
    save,
)
from tidewire_server.generation.torch_engine import LoadError, TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import load, load_without_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_llama(tmp_path)


def change(folder: Path, **members: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def assert_refused(folder: Path, reason: str, **settings: str) -> None:
    """Assert that loading fails with the reason, in an error of one line."""
    with pytest.raises(LoadError, match=reason) as refusal:
        load(folder, **{"device": "cpu", **settings})
    assert "\n" not in str(refusal.value)


def test_checkpoint_has_its_name_sizes_and_dtype(folder: Path):
    checkpoint = load(folder, device="cpu")
    assert (checkpoint.name, checkpoint.context, checkpoint.end_ids) == (folder.name, 128, frozenset())
    assert (checkpoint.layers, checkpoint.kv_heads, checkpoint.head_size) == (2, 2, 8)
    assert str(checkpoint.dtype) == "torch.float32"


def test_end_tokens_of_the_generation_settings_take_precedence(tmp_path: Path):
    crafted_checkpoint(tmp_path, list("abcdefghijklmno"), {})
    assert load(tmp_path, device="cpu").end_ids == {0}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert load(tmp_path, device="cpu").end_ids == {3, 5}


def test_end_tokens_beyond_the_vocabulary_do_not_count(tmp_path: Path):
    crafted_checkpoint(tmp_path, list("abcdefghijklmno"), {})
    for named, ids in (([3, 99], {3}), ([-1, 99], {0}), (99, {0}), ("3", {0})):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        for loaded in (load(tmp_path, device="cpu"), load_without_weights(tmp_path, device="cpu")):
            assert loaded.end_ids == ids


def test_missing_folder_is_refused(tmp_path: Path):
    assert_refused(tmp_path / "nowhere", "nowhere not found; pass the folder of a local checkpoint")


def test_file_instead_of_a_folder_is_refused(tmp_path: Path):
    file = tmp_path / "model.gguf"
    file.touch()
    assert_refused(file, "model.gguf is a file; pass the folder of a checkpoint, with config.json")


def test_empty_folder_is_refused(tmp_path: Path):
    assert_refused(tmp_path, "has no config.json and no tokenizer.json")


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def with_text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def with_settings(**members: object) -> Callable[[Path], None]:
    return lambda folder: change(folder, **members)


T5 = T5Config(architectures=["T5ForConditionalGeneration"]).to_dict()
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without("tokenizer.json"), "has no tokenizer.json"),
        (without("model.safetensors"), r"has no \*\.safetensors; pass a folder with config\.json"),
        (with_text("config.json", "{"), "config.json cannot be read"),
        (with_text("config.json", json.dumps(T5)), "which has an encoder"),
        (
            with_text("generation_config.json", "{"),
            "generation_config.json cannot be read: .*; copy the file again",
        ),
        (
            with_text("tokenizer.json", "{}"),
            r"tokenizer\.json cannot be read: .*; copy the tokenizer's files again",
        ),
        (with_settings(model_type="unheard_of"), "config.json cannot be read"),
        (with_settings(max_position_embeddings=1), "max_position_embeddings"),
        (with_settings(rope_parameters=DYNAMIC), r"rotary embeddings \(dynamic\)"),
        # The reason is on the second line of the error.
        (
            with_settings(num_attention_heads=7),
            r"config\.json cannot be read: .*not a multiple of the number of attention heads \(7\)",
        ),
    ],
)
def test_folder_without_a_usable_model_is_refused(
    folder: Path, damage: Callable[[Path], object], reason: str
):
    damage(folder)
    assert_refused(folder, reason)


def test_missing_weight_is_refused_and_not_initialized(folder: Path):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(
        folder,
        r"has no values for 1 weights of a llama model, for example model\.layers\.1\.mlp\.up_proj\.weight",
    )


def test_weights_of_other_shapes_are_refused_with_both_shapes(folder: Path):
    wide = load_file(folder / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].shape[1]
    change(folder, intermediate_size=wide + 8)
    assert_refused(
        folder,
        rf"for example model\.layers\.0\.mlp\.down_proj\.weight of the shape \[\d+, {wide}\] instead of \[\d+, {wide + 8}\]",
    )


def test_code_in_a_checkpoint_is_not_executed(folder: Path):
    change(folder, model_type="custom", auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit('this code was run')\n")
    assert_refused(folder, "config.json cannot be read")


def test_truncated_weights_file_is_refused(folder: Path):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for size in (0, 5, 1000, len(whole) - 1):
        weights.write_bytes(whole[:size])
        assert_refused(folder, r"model\.safetensors is damaged or incomplete: .*; copy the file again")


def test_missing_part_of_the_weights_is_refused_with_its_name(folder: Path):
    parts = {"a.weight": "model-1-of-2.safetensors", "b.weight": "model-2-of-2.safetensors"}
    (folder / "model.safetensors").rename(folder / parts["a.weight"])
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": parts}))
    assert_refused(
        folder, r"model-2-of-2\.safetensors is missing, but model\.safetensors\.index\.json names it"
    )
    index.write_text("{")
    assert_refused(folder, r"index\.json cannot be read: .*; copy the file again")


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "pad_token", "unk_token"])
def test_tokenizer_with_an_empty_special_token_is_refused(folder: Path, name: str):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: ""}))
    reason = "the tokenizer in .* cannot be read: .*; copy the tokenizer's files again"
    assert_refused(folder, reason)
    with pytest.raises(LoadError, match=reason):
        load_without_weights(folder, device="cpu")


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", '{"model_type": "llama", "hidden_size": "x"}'])
def test_configuration_without_a_model_is_refused(folder: Path, content: str):
    (folder / "config.json").write_text(content)
    assert_refused(folder, r"config\.json|does not generate text")


def test_encoder_is_refused(tmp_path: Path):
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=265
    )
    save(tmp_path, BertForMaskedLM(config), random_tokenizer())
    assert_refused(
        tmp_path, r"bert model \(BertForMaskedLM\), which does not generate text; only decoder-only"
    )


@pytest.mark.filterwarnings("ignore")
def test_encoder_with_a_language_model_head_is_detected_by_its_attention(tmp_path: Path):
    config = BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=265
    )
    save(tmp_path, BertLMHeadModel(config), random_tokenizer())
    assert_refused(tmp_path, "attends to later tokens")


def test_model_without_attention_is_refused(tmp_path: Path):
    config = MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=265)
    save(tmp_path, MambaForCausalLM(config), random_tokenizer())
    assert_refused(tmp_path, "layers of the type linear_attention; only decoder-only")


def test_unknown_kind_of_tokenizer_is_refused(folder: Path):
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer.save(str(folder / "tokenizer.json"))
    assert_refused(folder, "only byte-level and SentencePiece tokenizers are supported")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "cpu:x", "meta"])
def test_unavailable_device_is_refused(folder: Path, device: str):
    assert_refused(folder, f"device '{device}' is not", device=device)


def test_unsupported_dtype_is_refused(folder: Path):
    assert_refused(folder, "dtype 'int8' is not one of auto, float32", dtype="int8")


def test_engine_is_loaded_from_a_folder(folder: Path):
    engine = TorchEngine.load(folder, device="cpu", threads=1, slots=2, max_waiting=1, max_top=3)
    assert (engine.caps.concurrency, engine.caps.max_top, engine.caps.context) == (2, 3, 128)
    assert "messages" not in engine.caps.members
    assert len(engine.caps.vocabulary) == 265
    asyncio.run(engine.close())


def test_more_slots_than_tokens_of_a_step_are_supported(folder: Path):
    engine = TorchEngine.load(folder, device="cpu", slots=4096, context=16)
    assert len(generate_one(engine, prompt="a", max_tokens=3).text) == 3
    assert engine.caps.concurrency == 4096
    asyncio.run(engine.close())


@pytest.mark.parametrize("slots", [0, -1])
def test_engine_without_slots_is_refused(folder: Path, slots: int):
    with pytest.raises(LoadError, match=f"the number of slots must be at least 1, not {slots}"):
        TorchEngine.load(folder, device="cpu", slots=slots)
