"""Forward passes of the engine's own models, compared with the module of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PreTrainedConfig,
)

from support.model_checkpoints import CONTEXT, random_tokenizer, save
from tidewire_server.generation.torch_engine.models.attention import (
    AttentionContext,
    PrefillChunk,
    StaticDecode,
    Step,
)
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.models.packed_linear import (
    PackedLinear,
    kernel_rows,
    pack,
    pack_linear_layers,
)
from tidewire_server.generation.torch_engine.models.transformers_model import TransformersModel

SIZES = {
    "vocab_size": random_tokenizer().get_vocab_size(),
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
OWN = [
    LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True),
    LlamaConfig(**SIZES, num_key_value_heads=1, head_dim=16, rope_parameters=LLAMA3),
    LlamaConfig(**SIZES, num_key_value_heads=4, rope_parameters=YARN, rms_norm_eps=0.1),
    MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None),
]
WINDOW = MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=8)
OTHERS = [
    LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True),
    LlamaConfig(**SIZES, num_key_value_heads=2, hidden_act="gelu"),
    PhiConfig(**SIZES, partial_rotary_factor=0.5),
]


def saved(folder: Path, config: PreTrainedConfig) -> Path:
    torch.manual_seed(3)
    return save(folder, AutoModelForCausalLM.from_config(config), random_tokenizer())


def cache_for(checkpoint: Checkpoint, slots: int) -> KVCache:
    c = checkpoint
    return KVCache(c.layers, slots, c.kv_heads, CONTEXT, c.head_size, c.dtype, c.device)


def static_decode(cache: KVCache, positions: list[int | None]) -> StaticDecode:
    rows = [cache.row(slot, cache.scratch if p is None else p) for slot, p in enumerate(positions)]
    return StaticDecode(cache, torch.tensor(rows), torch.tensor([p or 0 for p in positions]), CONTEXT)


def decode(cache: KVCache, positions: list[int | None]) -> Step:
    return Step(cache, positions, [])


@torch.inference_mode()
def logits_in_steps(
    checkpoint: Checkpoint,
    texts: list[list[int]],
    prompts: list[int],
    decoding: Callable[[KVCache, list[int | None]], AttentionContext] = decode,
) -> list[torch.Tensor]:
    """Return the logits of each token from the last token of its prompt on: read the prompts in two chunks, then decode."""
    cache = cache_for(checkpoint, len(texts) + 1)
    slots = range(1, len(texts) + 1)  # slot 0 stays idle
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    for begin, end in ((0, 5), (5, None)):
        chunks, tokens, positions = [], [], []
        for slot, text, prompt in zip(slots, texts, prompts, strict=True):
            stop = min(end or prompt, prompt)
            chunks.append(PrefillChunk(slot, len(tokens), begin, stop))
            tokens += text[begin:stop]
            positions += range(begin, stop)
        last = [chunk.row + chunk.end - chunk.start - 1 for chunk in chunks]
        out = forward(checkpoint, tokens, positions, last, Step(cache, [], chunks))
    for own, row in zip(rows, out, strict=True):
        own.append(row)
    for step in range(max(map(len, texts))):
        at = [p + step if p + step < len(t) else None for t, p in zip(texts, prompts, strict=True)]
        if not any(at):
            break
        tokens = [0] + [0 if i is None else text[i] for text, i in zip(texts, at, strict=True)]
        wanted = [slot for slot, i in zip(slots, at, strict=True) if i is not None]
        out = forward(checkpoint, tokens, [0, *(i or 0 for i in at)], wanted, decoding(cache, [None, *at]))
        for slot, row in zip(wanted, out, strict=True):
            rows[slot - 1].append(row)
    return [torch.stack(own) for own in rows]


def forward(
    checkpoint: Checkpoint,
    tokens: list[int],
    positions: list[int],
    wanted: list[int],
    context: AttentionContext,
) -> torch.Tensor:
    return checkpoint.model(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions),
        wanted=torch.tensor(wanted),
        context=context,
    )


@pytest.mark.parametrize("config", OWN + OTHERS, ids=lambda config: config.model_type)
def test_logits_equal_those_of_transformers(tmp_path: Path, config: PreTrainedConfig):
    folder = saved(tmp_path, config)
    checkpoint = load(folder, device="cpu")
    assert isinstance(checkpoint.model, LlamaModel if config in OWN else TransformersModel)
    texts = [[(7 * i + 3 * j) % 265 for j in range(length)] for i, length in enumerate((40, 9, 23))]
    prompts = [30, 6, 21]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for text, prompt, logits in zip(texts, prompts, logits_in_steps(checkpoint, texts, prompts), strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([text])).logits[0, prompt - 1 :]
        assert torch.allclose(logits, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("config", [OWN[0], WINDOW], ids=["llama", "mistral"])
def test_decoding_with_static_shapes_computes_the_same_logits(tmp_path: Path, config: PreTrainedConfig):
    checkpoint = load(saved(tmp_path, config), device="cpu")
    texts = [[(7 * i + 3 * j) % 265 for j in range(length)] for i, length in enumerate((40, 9, 23))]
    prompts = [30, 6, 21]
    expected = logits_in_steps(checkpoint, texts, prompts)
    for own, exact in zip(logits_in_steps(checkpoint, texts, prompts, static_decode), expected, strict=True):
        torch.testing.assert_close(own, exact, rtol=1e-4, atol=1e-4)


class Synchronizations(TorchDispatchMode):
    """Records operators that would make the host wait for a device."""

    NAMES = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.operators = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators += 1
        if func.overloadpacket.__name__ in self.NAMES:
            self.found.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("config", [OWN[0], OTHERS[-1]], ids=lambda config: config.model_type)
def test_forward_pass_never_waits_for_a_device(tmp_path: Path, config: PreTrainedConfig):
    checkpoint = load(saved(tmp_path, config), device="cpu")
    cache = cache_for(checkpoint, 2)
    with torch.no_grad(), Synchronizations() as mode:
        step = Step(cache, [3, None], [PrefillChunk(1, 2, 0, 4)])
        forward(checkpoint, [1, 0, 2, 3, 4, 5], [3, 0, 0, 1, 2, 3], [0, 5], step)
    assert mode.operators > 30
    assert mode.found == []


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 33), (1024, 640)], ids=["small", "large"])
def test_packed_layer_computes_the_product(inputs: int, outputs: int, bias: bool):
    torch.manual_seed(0)
    weight, offset = torch.randn(outputs, inputs), torch.randn(outputs) if bias else None
    layer = PackedLinear(weight, offset)  # fails if torch no longer has oneDNN's operators
    assert isinstance(pack(weight), PackedLinear)
    for shape in ((1,), (2,), (1, 70), (3, 5), (1, 1), (0,)):
        x = torch.randn(*shape, inputs)
        assert torch.allclose(layer(x), functional.linear(x, weight, offset), atol=1e-3)


def test_few_kernels_are_generated_for_prompts_of_many_lengths(monkeypatch: pytest.MonkeyPatch):
    compute, seen = torch.ops.mkldnn._linear_pointwise, set()

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.add(x.shape)
        return compute(x, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    weight, x = torch.randn(3, 8), torch.randn(2048, 8)
    layer, expected = PackedLinear(weight), functional.linear(x, weight)
    for rows in range(1, 2049):
        assert rows <= kernel_rows(rows) <= rows * 9 / 8
        assert torch.allclose(layer(x[:rows]), expected[:rows], atol=1e-5)
    assert len(seen) < 80


def test_weight_that_cannot_be_packed_stays_plain():
    assert not isinstance(pack(torch.randn(4, 4, dtype=torch.bfloat16)), PackedLinear)
    weight, x = torch.randn(3, 4, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    assert torch.equal(pack(weight)(x), x @ weight.T)


def test_linear_layers_of_a_module_are_packed_in_place():
    module = nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU()))
    x = torch.randn(5, 4)
    expected = module(x)
    pack_linear_layers(module)
    assert [type(layer).__name__ for layer in module.modules() if not list(layer.children())] == [
        "PackedLinear",
        "PackedLinear",
        "ReLU",
    ]
    assert torch.allclose(module(x), expected, atol=1e-5)
