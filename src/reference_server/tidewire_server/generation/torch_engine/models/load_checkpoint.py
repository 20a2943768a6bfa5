"""Load a Hugging Face checkpoint from a local folder, and check that the engine supports it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import set_tqdm_hook

from tidewire_server.generation.checkpoint_folder import LoadError, missing_folder
from tidewire_server.generation.tokenizer_bytes import UnsupportedTokenizerError, vocabulary_of
from tidewire_server.generation.torch_engine.models import transformers_model
from tidewire_server.generation.torch_engine.models.attention import Probe
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.transformers_model import (
    Model,
    TransformersModel,
    UnsupportedAttentionError,
)
from tidewire_server.generation.vocabulary import Vocabulary

# These options prevent transformers from downloading files and from executing code that a checkpoint contains.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

logger = logging.getLogger(__name__)

INTERVAL = 5.0
"""Minimum time between two log messages about the progress, in seconds. A model that loads faster causes no message."""

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

# Types of rotary embeddings in which the rotation at a position does not depend on the longest text in the batch.
SUPPORTED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model with its tokenizer and its properties."""

    name: str
    architecture: str
    """Type of the model, such as `llama`."""
    model: Model
    tokenizer: PreTrainedTokenizerBase
    vocabulary: Vocabulary
    device: torch.device
    dtype: torch.dtype
    context: int
    """Maximum number of tokens in a text, according to the model's configuration."""
    vocab_size: int
    """Number of logits at each position. It is at least the number of tokens in the vocabulary."""
    end_ids: frozenset[int]
    """Ids of the tokens that end a text."""
    layers: int
    kv_heads: int
    head_size: int
    weight_bytes: int
    """Size of the weights in bytes, not counting copies in another layout."""


def load(folder: Path, *, device: str = "auto", dtype: str = "auto") -> Checkpoint:
    """Load a decoder-only model with full or sliding-window attention from a local folder.

    Args:
        folder: Folder with config.json, *.safetensors and tokenizer.json.
        device: `cpu`, `cuda`, `cuda:N`, `mps` or `auto`, which selects the first available of CUDA, MPS and CPU.
        dtype: `float32`, `bfloat16`, `float16`, `float64` or `auto`, which selects float32 on a CPU, otherwise the
            checkpoint's type.

    Raises:
        LoadError: The checkpoint does not exist, cannot be read, or is not supported.
    """
    where = pick_device(device)
    config = _read_config(folder)
    properties = _properties(folder, config, where, dtype)
    kind = properties["dtype"]
    transformers_model.register()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    _check_weights(folder)
    try:
        with logged_progress():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                config=config,
                dtype=kind,
                attn_implementation=transformers_model.NAME,
                use_safetensors=True,
                output_loading_info=True,
                # Do not let transformers raise an error here, because it does not name the weight. The report is checked below.
                ignore_mismatched_sizes=True,
                # The default implementation of a mixture of experts has no kernel for float64.
                **({"experts_implementation": "eager"} if kind == torch.float64 else {}),
                **LOCAL,
            )
    except Exception as error:  # transformers and safetensors have no common exception class
        raise LoadError(f"the weights in {folder} cannot be loaded: {_first_line(error)}") from error
    module: PreTrainedModel
    module, report = loaded
    if report["missing_keys"]:
        # Reject the checkpoint, because transformers initializes missing weights with random numbers.
        missing = sorted(report["missing_keys"])
        raise LoadError(
            f"{folder} has no values for {len(missing)} weights of a {config.model_type} model, for example {missing[0]}"
        )
    if report["mismatched_keys"]:
        name, in_file, in_config = min(report["mismatched_keys"])
        raise LoadError(
            f"{folder} has weights of other shapes than its config.json specifies, for example {name} of the shape "
            f"{list(in_file)} instead of {list(in_config)}; copy both from the same checkpoint"
        )
    if any(hasattr(part, "create_position_ids_from_input_ids") for part in module.modules()):
        raise LoadError(
            f"{folder} is a {config.model_type} model, which counts positions from its padding token on; only models whose "
            "positions begin at 0 are supported"
        )
    module.to(where).eval().requires_grad_(requires_grad=False)  # type: ignore[arg-type]
    weight_bytes = sum(weight.nbytes for weight in module.parameters())
    model: Model = LlamaModel(module) if LlamaModel.supports(config) else TransformersModel(module)
    try:
        heads = _probe(model, where, config)
    except UnsupportedAttentionError as error:
        raise LoadError(f"{folder} is not supported: {error}") from error
    except Exception as error:  # Models can raise any exception.
        raise LoadError(
            f"{folder} is a {config.model_type} model that fails on its first token with dtype {dtype} on {where}: "
            f"{_first_line(error)}"
        ) from error
    kv_heads, head_size = heads[0]
    return Checkpoint(
        **properties,
        model=model,
        layers=len(heads),
        kv_heads=kv_heads,
        head_size=head_size,
        weight_bytes=weight_bytes,
    )


def load_without_weights(folder: Path, *, device: str = "auto", dtype: str = "auto") -> Checkpoint:
    """Read the configuration and the tokenizer of a model, for a process that only checks inputs. The folder need not contain
    the weights, and the device need not exist on this machine.

    Args:
        folder: Folder with config.json and tokenizer.json.
        device: See `load`.
        dtype: See `load`.

    Returns:
        The checkpoint. Its `model` raises an error when it is called.

    Raises:
        LoadError: See `load`.
    """
    config = _read_config(folder, weights=False)
    properties = _properties(folder, config, pick_device(device, available=False), dtype)
    heads = config.num_attention_heads
    return Checkpoint(
        **properties,
        model=_no_weights,
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
        weight_bytes=0,
    )


def _no_weights(**_: Any) -> torch.Tensor:
    raise RuntimeError("this process has not loaded the weights of the model")


def _properties(folder: Path, config: PreTrainedConfig, device: torch.device, dtype: str) -> dict[str, Any]:
    """Return the fields of a `Checkpoint` that do not depend on its weights, and check that the engine supports the model."""
    _check_kind(folder, config)
    tokenizer = _load_tokenizer(folder, config)
    end_ids = _end_ids(folder, config, tokenizer)
    try:
        vocabulary = vocabulary_of_tokenizer(tokenizer, config.vocab_size, end_ids)
    except UnsupportedTokenizerError as error:
        raise LoadError(f"{folder} is not supported: {error}") from error
    except Exception as error:  # for example, transformers returns None as the id of an empty special token
        raise LoadError(
            f"the tokenizer in {folder} cannot be read: {_first_line(error)}; copy the tokenizer's files again"
        ) from error
    return {
        "name": folder.resolve().name,
        "architecture": config.model_type,
        "tokenizer": tokenizer,
        "vocabulary": vocabulary,
        "device": device,
        "dtype": _pick_dtype(dtype, device, config),
        "context": _context(folder, config),
        "vocab_size": config.vocab_size,
        "end_ids": end_ids,
    }


def _load_tokenizer(folder: Path, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """Load a tokenizer without its truncation and padding, and check that the engine can use it."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **LOCAL)
    except Exception as error:  # transformers and tokenizers have no common exception class
        raise LoadError(
            f"{folder / 'tokenizer.json'} cannot be read: {_first_line(error)}; copy the tokenizer's files again"
        ) from error
    if not tokenizer.is_fast:
        raise LoadError(
            f"{folder} has no usable tokenizer.json, and other tokenizer formats are not supported"
        )
    if len(tokenizer) > config.vocab_size:
        logger.warning(
            "%s has a tokenizer with %d tokens, but a model for only %d; prompts with one of the other tokens are rejected",
            folder,
            len(tokenizer),
            config.vocab_size,
        )
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return tokenizer


def pick_device(name: str, *, available: bool = True) -> torch.device:
    """Return the torch device with the specified name. The name `auto` selects the first available of CUDA, MPS and the
    CPU.

    Args:
        name: Name of the device.
        available: Whether the device must be available on this machine.

    Raises:
        LoadError: The name is not valid, or the device is not available.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise LoadError(f"device {name!r} is not one of auto, cpu, cuda, cuda:N, mps") from None
    if not available:
        return device
    found = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not found.get(device.type, False):
        raise LoadError(f"device {name!r} is not available on this machine with this build of torch")
    return device


def _pick_dtype(name: str, device: torch.device, config: PreTrainedConfig) -> torch.dtype:
    if name == "auto":
        return (
            torch.float32
            if device.type == "cpu" or not isinstance(config.dtype, torch.dtype)
            else config.dtype
        )
    if name not in DTYPES:
        raise LoadError(f"dtype {name!r} is not one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def _read_config(folder: Path, *, weights: bool = True) -> PreTrainedConfig:
    if not folder.is_dir():
        raise LoadError(missing_folder(folder))
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if weights and not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise LoadError(
            f"{folder} has no {' and no '.join(missing)}; pass a folder with config.json, tokenizer.json and *.safetensors, "
            "as save_pretrained writes it"
        )
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL)
    except Exception as error:  # an unknown model, malformed JSON, or invalid UTF-8
        raise LoadError(
            f"{folder / 'config.json'} cannot be read: {_first_line(error)}; copy the file again, or use a model type that "
            f"transformers {transformers.__version__} knows"
        ) from error
    return config


def _check_weights(folder: Path) -> None:
    """Raise an error if a weight file is missing or damaged. The error names the first such file.

    transformers itself loads the files in several threads, and its errors do not contain the name of the file.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file() and not (folder / "model.safetensors").is_file():
        try:
            files = sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise LoadError(f"{index} cannot be read: {_first_line(error)}; copy the file again") from error
    for file in files:
        if not file.is_file():
            raise LoadError(f"{file} is missing, but {index.name} names it; copy the file into the folder")
        try:
            with safe_open(file, framework="pt"):  # checks the header and the size of the file
                pass
        except (SafetensorError, OSError) as error:
            raise LoadError(
                f"{file} is damaged or incomplete: {_first_line(error)}; copy the file again"
            ) from error


def _check_kind(folder: Path, config: PreTrainedConfig) -> None:
    """Raise an error if the configuration does not describe a decoder-only model with full or sliding-window attention."""
    kind = f"{folder} is a {config.model_type} model"
    only = "only decoder-only models with full or sliding-window attention are supported"
    names = config.architectures or []
    if getattr(config, "is_encoder_decoder", False):
        raise LoadError(f"{kind}, which has an encoder; {only}")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or not any(
        n.endswith(("CausalLM", "LMHeadModel")) for n in names
    ):
        raise LoadError(
            f"{kind} ({', '.join(names) or 'no architecture named'}), which does not generate text; {only}"
        )
    if not hasattr(config, "vocab_size"):
        raise LoadError(f"{kind}, which consists of several models; {only}")
    others = set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES
    if others:
        raise LoadError(f"{kind} with layers of the type {', '.join(sorted(others))}; {only}")
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if not architecture._supports_attention_backend:
        raise LoadError(
            f"{kind}, whose attention is computed in the model's own code; only models that use the attention interface "
            "of transformers are supported, such as llama, mistral, mixtral, qwen3, gemma2, gemma3, phi3 and gpt2"
        )
    ropes = set(_rope_types(getattr(config, "rope_parameters", None)))
    if not ropes <= SUPPORTED_ROPES:
        raise LoadError(
            f"{kind} whose rotary embeddings ({', '.join(sorted(ropes - SUPPORTED_ROPES))}) depend on the length of the "
            f"text, which is not supported in a batch of texts of different lengths"
        )


def _rope_types(parameters: Any) -> Iterator[str]:
    if isinstance(parameters, dict):
        for key, value in parameters.items():
            if key == "rope_type":
                yield value
            else:
                yield from _rope_types(value)


@torch.inference_mode()
def _probe(model: Model, device: torch.device, config: PreTrainedConfig) -> dict[int, tuple[int, int]]:
    """Run the model on one token to determine the number and the size of its key-value heads.

    Returns:
        Index of a layer → number of its key-value heads, and size of a head.
    """
    probe, layers = Probe(), config.num_hidden_layers
    token = torch.zeros(1, dtype=torch.int64, device=device)
    model(tokens=token, positions=token, wanted=token, context=probe)
    if sorted(probe.heads) != list(range(layers)):
        raise UnsupportedAttentionError(
            f"only {len(probe.heads)} of the model's {layers} layers use the attention interface of transformers"
        )
    if len(probe.calls) > layers:
        # The cache stores one set of keys and values per layer, so a second call would overwrite those of the first call.
        raise UnsupportedAttentionError("the model computes several attentions in one layer")
    # transformers derives the window of a layer from the layer's type. If a layer passes another window to the attention
    # function, the engine would generate other texts than transformers.
    for layer, name in enumerate(getattr(config, "layer_types", None) or ()):
        if (probe.windows[layer] is not None) != (name == "sliding_attention"):
            raise UnsupportedAttentionError(
                f"layer {layer} of the type {name} passes the window {probe.windows[layer]} to the attention interface"
            )
    if len(set(probe.heads.values())) > 1:
        raise UnsupportedAttentionError(
            "the model's layers have different numbers or sizes of key-value heads"
        )
    return probe.heads


def _context(folder: Path, config: PreTrainedConfig) -> int:
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 2:
        raise LoadError(
            f"{folder / 'config.json'} does not specify the context length (max_position_embeddings)"
        )
    return context


def _end_ids(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the end-of-text tokens.

    The ids are read from the generation settings. If these contain no ids that the model can generate, they are read from
    the model's configuration, and otherwise from the tokenizer.
    """
    file, own = folder / "generation_config.json", None
    if file.is_file():
        try:
            own = GenerationConfig.from_pretrained(folder, **LOCAL).eos_token_id
        except Exception as error:  # Do not ignore a damaged file: without its ids, texts would not end.
            raise LoadError(f"{file} cannot be read: {_first_line(error)}; copy the file again") from error
    for ids in (own, config.eos_token_id, tokenizer.eos_token_id):
        # Drop ids beyond the vocabulary. With such an id, the compiler of JSON Schemas would fail for each request.
        known = frozenset(range(config.vocab_size)).intersection(ids if isinstance(ids, list) else [ids])
        if known:
            return known
    return frozenset()


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message. If it is only a heading, also return the second line."""
    first, *others = str(error).strip().split("\n")
    if first.endswith(":") and others:
        return f"{first} {others[0].strip()}"
    return first or type(error).__name__


@contextmanager
def logged_progress(interval: float = INTERVAL) -> Iterator[None]:
    """Within a `with` statement, log the progress that transformers would otherwise display as a bar."""

    def hook(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        items = args[0] if args else None
        return _counted(items, interval) if hasattr(items, "__len__") else bar(*args, **options)

    previous = set_tqdm_hook(hook)
    try:
        yield
    finally:
        set_tqdm_hook(previous)


def _counted(items: Any, interval: float) -> Iterator[Any]:
    last, total = time.monotonic(), len(items)
    for done, item in enumerate(items):
        if time.monotonic() - last >= interval:
            last = time.monotonic()
            logger.info("loading the weights: %d %% (%d of %d tensors)", 100 * done // total, done, total)
        yield item


def vocabulary_of_tokenizer(
    tokenizer: PreTrainedTokenizerBase, size: int, end_ids: Iterable[int] = ()
) -> Vocabulary:
    """Read the first `size` ids of a tokenizer's vocabulary. Tokens that end a text are treated as special even if the
    tokenizer does not mark them, because they add nothing to the text.

    Raises:
        UnsupportedTokenizerError: The tokenizer is neither a byte-level nor a SentencePiece tokenizer.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return vocabulary_of(content, tokenizer.get_vocab(), size, {*tokenizer.all_special_ids, *end_ids})
