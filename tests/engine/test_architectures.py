"""Greedy texts of several architectures, alone and in batches, compared with transformers. Clear errors for the others."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    DiffLlamaConfig,
    DogeConfig,
    FalconConfig,
    FuyuConfig,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    Qwen3Config,
    RobertaConfig,
)

from support.model_checkpoints import (
    CONTEXT,
    byte_alphabet,
    byte_level_tokenizer,
    generate,
    random_tokenizer,
    save,
)
from tidewire_server.generation.engine_interface import InputError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import LoadError, TorchEngine
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import load

Start = Callable[..., TorchEngine]
WINDOW = 8
PROMPTS = ["def f(x):\n", "return", "x, y = " * 10]
TOKENS = 20
SIZES = {
    "vocab_size": random_tokenizer().get_vocab_size(),
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LOCAL_AND_GLOBAL = ["sliding_attention", "sliding_attention", "full_attention"]
MISTRAL = MistralConfig(**SIZES, sliding_window=WINDOW)
MIXTRAL = MixtralConfig(**SIZES, **EXPERTS, sliding_window=WINDOW)
GEMMA2 = Gemma2Config(
    **SIZES,
    head_dim=8,
    sliding_window=WINDOW,
    query_pre_attn_scalar=16,
    attn_logit_softcapping=1.0,
    final_logit_softcapping=2.0,
)
GEMMA3 = Gemma3TextConfig(
    **SIZES,
    head_dim=8,
    sliding_window=WINDOW,
    query_pre_attn_scalar=16,
    layer_types=LOCAL_AND_GLOBAL,
    rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
)
QWEN3 = Qwen3Config(
    **SIZES, head_dim=8, use_sliding_window=True, sliding_window=WINDOW, layer_types=LOCAL_AND_GLOBAL
)


def saved(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(5)
    return save(folder, AutoModelForCausalLM.from_config(config), random_tokenizer())


def greedy(prompt: str) -> Generate:
    return Generate(prompt=prompt, max_tokens=TOKENS, temperature=0.0, logprobs=True)


def ids_of_transformers(folder: Path, dtype: str, **options: str) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
        )
        texts.append(out[0, ids.shape[1] :].tolist())
    return texts


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        (MISTRAL, "float32"),
        (MIXTRAL, "float32"),
        (MIXTRAL, "float64"),
        (GEMMA2, "float32"),
        (GEMMA3, "float32"),
        (QWEN3, "float32"),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_texts_longer_than_the_window_equal_those_of_transformers(
    start: Start, tmp_path: Path, config: PreTrainedConfig, dtype: str
):
    folder = saved(tmp_path, config)
    experts = {"experts_implementation": "eager"} if dtype == "float64" else {}
    expected = ids_of_transformers(folder, dtype, **experts)
    # With 16 tokens per step, the longest prompt is read in several chunks.
    engine = start(load(folder, device="cpu", dtype=dtype), slots=3, step_tokens=16)
    alone = generate(engine, greedy(PROMPTS[-1]))
    assert [d.token_ids for d in alone] == expected[-1:]
    together = generate(engine, *map(greedy, PROMPTS))
    assert [d.token_ids for d in together] == expected


def test_window_of_mistral_hides_earlier_tokens(start: Start, tmp_path: Path):
    """Two prompts with the same last tokens have equal texts, if the layers together reach no further back."""
    config = MistralConfig(**{**SIZES, "num_hidden_layers": 1}, sliding_window=WINDOW)
    folder = saved(tmp_path, config)
    assert isinstance(load(folder, device="cpu").model, LlamaModel)
    one, other = generate(start(folder), greedy("abc" + "x" * WINDOW), greedy("zyx" + "x" * WINDOW))
    assert one.token_ids == other.token_ids


@pytest.mark.parametrize("name", ["falcon", "bloom"])
def test_architecture_without_the_attention_interface_is_refused_by_name(tmp_path: Path, name: str):
    sizes = {"vocab_size": SIZES["vocab_size"], "hidden_size": 32}
    config = FalconConfig(**sizes, num_hidden_layers=1, num_attention_heads=4)
    if name == "bloom":
        config = BloomConfig(**sizes, n_layer=1, n_head=4)
    saved(tmp_path, config)
    with pytest.raises(LoadError, match=f"is a {name} model, whose attention .* such as llama") as refusal:
        load(tmp_path, device="cpu")
    assert "tidewire_dense_slots" not in str(refusal.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (DiffLlamaConfig(**SIZES), "computes several attentions in one layer"),
        (DogeConfig(**SIZES), "a mask that depends on the text"),
        (
            RobertaConfig(**SIZES | {"pad_token_id": 1}, is_decoder=True),
            "counts positions from its padding token on",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_model_that_would_generate_other_texts_than_transformers_is_refused(
    tmp_path: Path, config: PreTrainedConfig, reason: str
):
    folder = saved(tmp_path, config)
    with pytest.raises(LoadError, match=reason):
        load(folder, device="cpu")


def test_model_that_consists_of_several_models_is_refused(tmp_path: Path):
    folder = saved(tmp_path, LlamaConfig(**SIZES))
    FuyuConfig(architectures=["FuyuForCausalLM"]).save_pretrained(folder)
    with pytest.raises(
        LoadError, match="is a fuyu model, which consists of several models; only decoder-only"
    ):
        load(folder, device="cpu")


def test_model_that_fails_on_its_first_token_is_refused_at_load(tmp_path: Path):
    # torch multiplies the matrices of experts only if their rows are multiples of 16 bytes.
    odd = {"hidden_size": 34, "num_attention_heads": 2, "head_dim": 16}
    folder = saved(tmp_path, MixtralConfig(**SIZES | odd, **EXPERTS))
    with pytest.raises(
        LoadError, match=r"a mixtral model that fails on its first token with dtype \w+ on cpu: "
    ):
        load(folder, device="cpu")


def test_tokenizer_with_more_tokens_than_the_model_is_served(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    merges = [("d", "e"), ("x", "y")]
    tokenizer = byte_level_tokenizer([*byte_alphabet(), "de", "xy"], merges)
    torch.manual_seed(5)
    config = LlamaConfig(**SIZES | {"vocab_size": tokenizer.get_vocab_size() - 1})
    folder = save(tmp_path, AutoModelForCausalLM.from_config(config), tokenizer)
    engine = start(folder)
    assert "tokenizer with 259 tokens, but a model for only 258" in caplog.text
    assert len(engine.caps.vocabulary) == 258
    assert [d.token_ids for d in generate(engine, *map(greedy, PROMPTS))] == ids_of_transformers(
        folder, "float32"
    )
    with pytest.raises(InputError, match="prompt contains 'xy', which is token 258 .* remove it") as refusal:
        generate(engine, greedy("xy"))
    assert refusal.value.member == "prompt"
