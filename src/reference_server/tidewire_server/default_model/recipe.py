"""Train the default model: `python -m tidewire_server.default_model.recipe --out DIR --steps N`.

The script trains a byte-level BPE tokenizer and a small Llama model on source files of the Python standard library. The
manifest `corpus.json` lists these files. The last part of the training uses windows as long as the model's context, so
that every position is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidewire.install_command import install_command

try:
    import tokenizers
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from torch.nn import functional
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the recipe needs {error.name or error}, which is not installed: {install_command('engine')}",
        name=error.name,
    ) from None

from tidewire_server.default_model import model_card, stdlib_corpus

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 1024
WINDOW = 512
WHOLE_CONTEXT_FROM = 0.85
"""Fraction of the training steps after which windows are as long as the model's context. The batch size is then reduced, so
that a step processes the same number of tokens."""
PEAK_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 100
WEIGHT_DECAY = 0.1
SHORT_VALIDATION = 40
"""Number of windows of held-out text on which each checkpoint is evaluated. The final checkpoint is evaluated on all windows."""
RECORDED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train a byte-level BPE tokenizer with `VOCABULARY` entries. The tokenizer has a token for each byte, so that it
    can encode any text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write the files of the tokenizer to a folder.

    The file `tokenizer_config.json` names the class `PreTrainedTokenizerFast`, which exists in all releases of transformers.
    """
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(out)
    config = out / "tokenizer_config.json"
    settings = json.loads(config.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config.write_text(json.dumps(settings, indent=2) + "\n")


def encode(tokenizer: Tokenizer, texts: list[str]) -> torch.Tensor:
    """Encode texts as one sequence of token ids. The sequence begins with an end-of-text token, and has another
    end-of-text token after each text.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end]
    for encoding in tokenizer.encode_batch(texts):
        ids.extend(encoding.ids)
        ids.append(end)
    return torch.tensor(ids)


def windows(ids: torch.Tensor, batch: int, length: int, chance: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield an endless sequence of random batches of windows, `[batch, length + 1]`.

    Each pass over the text starts at a random offset, cuts the text into windows, and shuffles the windows.

    Raises:
        CorpusError: The text is too short for one batch.
    """
    least = (batch + 1) * length + 1
    if len(ids) < least:
        raise stdlib_corpus.CorpusError(
            f"the text has {len(ids)} tokens, but a batch of {batch} windows of {length} tokens needs {least} tokens"
        )
    while True:
        offset = int(torch.randint(length, (1,), generator=chance))
        starts = torch.arange(offset, len(ids) - length - 1, length)
        starts = starts[torch.randperm(len(starts), generator=chance)]
        for chosen in torch.split(starts, batch):
            if len(chosen) == batch:
                yield torch.stack([ids[start : start + length + 1] for start in chosen.tolist()])


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Compute the cross entropy of next-token prediction, in nats."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def validate(model: LlamaForCausalLM, ids: torch.Tensor, limit: int | None = None) -> tuple[float, int]:
    """Evaluate the model on consecutive windows of the held-out text.

    Args:
        model: The model.
        ids: Token ids of the held-out text.
        limit: Maximum number of windows, or None for all windows.

    Returns:
        The loss in nats per token, and the number of windows.
    """
    starts = range(0, len(ids) - 1, WINDOW)[:limit]
    total, count = 0.0, 0
    for start in starts:
        batch = ids[None, start : start + WINDOW + 1]
        total += float(loss_of(model, batch, "sum"))
        count += batch.shape[1] - 1
    return total / count, len(starts)


def learning_rate(step: int, steps: int) -> float:
    """Return the learning rate of a step. The rate first increases linearly, and then falls along a cosine to a
    hundredth of its peak.
    """
    warm_up = min(WARM_UP_STEPS, max(1, steps // 10))
    if step < warm_up:
        return PEAK_LEARNING_RATE * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return PEAK_LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def save_checkpoint(model: LlamaForCausalLM, record: dict[str, Any], out: Path) -> None:
    """Write the files of the model in bfloat16, the training record and the model card to a folder."""
    half = LlamaForCausalLM(LlamaConfig.from_dict({**model.config.to_dict(), "dtype": "bfloat16"}))
    half.bfloat16()
    half.load_state_dict(model.state_dict())
    end = model.config.eos_token_id
    half.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    half.save_pretrained(out)
    # safetensors creates a file that only its owner can read. A server of another user could not load the model.
    (out / "model.safetensors").chmod(0o644)
    (out / "training.json").write_text(json.dumps(record) + "\n")
    (out / "MODEL_CARD.md").write_text(model_card.write(record), encoding="utf-8")


def new_model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Create a Llama model with 2.8 million randomly initialized parameters."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=3,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def new_optimizer(model: LlamaForCausalLM) -> torch.optim.AdamW:
    """Create the AdamW optimizer. Weight decay applies only to matrices, not to the weights of normalization layers."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=PEAK_LEARNING_RATE,
        betas=(0.9, 0.95),
    )


def training_step(
    model: LlamaForCausalLM, optimizer: torch.optim.AdamW, batch: torch.Tensor, rate: float
) -> float:
    """Run one optimizer step and return the loss in nats per token."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    loss = loss_of(model, batch)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def new_record(
    arguments: argparse.Namespace,
    text: stdlib_corpus.Corpus,
    model: LlamaForCausalLM,
    train_tokens: int,
    validation_tokens: int,
) -> dict[str, Any]:
    """Create the initial content of `training.json`."""
    return {
        "state": "running",
        "settings": {key: getattr(arguments, key) for key in ("steps", "batch", "threads", "seed")},
        "model": {
            "parameters": sum(p.numel() for p in model.parameters()),
            **{key: getattr(model.config, key) for key in RECORDED_SIZES},
        },
        "corpus": {
            "python": text.python,
            "files": len(text.train) + len(text.validation),
            "validation_every": stdlib_corpus.VALIDATION_EVERY,
            "sha256": text.digest,
            "drift": text.drift,
            "train_bytes": sum(len(t.encode()) for t in text.train),
            "train_tokens": train_tokens,
            "validation_bytes": sum(len(t.encode()) for t in text.validation),
            "validation_tokens": validation_tokens,
        },
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "columns": {
            "loss": ["step", "tokens", "nats per token"],
            "validation": ["step", "tokens", "nats per token", "bits per byte", "windows read"],
        },
        "loss": [],
        "validation": [],
        "result": {},
    }


def train(arguments: argparse.Namespace) -> None:
    """Train the model. Write each checkpoint, with its training record and model card, to the folder `arguments.out`.

    Raises:
        CorpusError: The files of the training corpus do not match the manifest, or they contain too little text.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    chance = torch.Generator().manual_seed(arguments.seed)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)

    text = stdlib_corpus.read(arguments.stdlib, allow_drift=arguments.allow_drift, manifest=arguments.corpus)
    for line in text.drift:
        print(line, flush=True)
    tokenizer = train_tokenizer(text.train)
    save_tokenizer(tokenizer, out)
    train_ids, validation_ids = encode(tokenizer, text.train), encode(tokenizer, text.validation)
    model = new_model(tokenizer)
    optimizer = new_optimizer(model)
    record = new_record(arguments, text, model, len(train_ids), len(validation_ids))
    # Factor from nats per token to bits per byte. End-of-text tokens are counted as tokens, although the text contains
    # no bytes for them.
    bits_per_nat = (len(validation_ids) - 1) / math.log(2) / record["corpus"]["validation_bytes"]

    started = time.monotonic()
    tokens = 0
    steps: int = arguments.steps
    whole_context = round(steps * WHOLE_CONTEXT_FROM)
    batches = windows(train_ids, arguments.batch, WINDOW, chance)
    model.train()
    for step in range(1, steps + 1):
        if step - 1 == whole_context:
            batches = windows(train_ids, max(1, arguments.batch * WINDOW // CONTEXT), CONTEXT, chance)
        batch = next(batches)
        loss = training_step(model, optimizer, batch, learning_rate(step - 1, steps))
        tokens += batch.shape[0] * (batch.shape[1] - 1)
        seconds = time.monotonic() - started
        last = step == steps
        if step % 10 == 0 or last:
            record["loss"].append([step, tokens, round(loss, 4)])
            print(
                f"step {step}/{steps}  loss {loss:.3f}  {tokens / seconds:,.0f} tokens/s  "
                f"{seconds:,.0f} s, about {seconds / step * (steps - step):,.0f} s left",
                flush=True,
            )
        if step % arguments.save_every == 0 or last:
            model.train(mode=False)
            nats, read = validate(model, validation_ids, None if last else SHORT_VALIDATION)
            model.train()
            bits = nats * bits_per_nat
            record["validation"].append([step, tokens, round(nats, 4), round(bits, 4), read])
            record["result"] = {
                "steps": step,
                "tokens": tokens,
                "seconds": round(time.monotonic() - started, 1),
                "nats_per_token": round(nats, 4),
                "bits_per_byte": round(bits, 4),
            }
            record["state"] = "complete" if last else "running"
            print(f"  held out: {nats:.3f} nats per token, {bits:.3f} bits per byte", flush=True)
            save_checkpoint(model, record, out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tidewire_server.default_model.recipe", description=__doc__
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the model; existing files are replaced"
    )
    parser.add_argument(
        "--steps",
        type=int,
        required=True,
        help="number of optimizer steps; each processes BATCH * 512 tokens",
    )
    parser.add_argument("--batch", type=int, default=8, help="number of windows of 512 tokens in each step")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random number generators")
    parser.add_argument(
        "--save-every", type=int, default=250, metavar="STEPS", help="number of steps between checkpoints"
    )
    parser.add_argument(
        "--stdlib",
        type=Path,
        default=Path(sysconfig.get_path("stdlib")),
        help="folder of the Python standard library to train on",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=stdlib_corpus.MANIFEST,
        help="manifest with the names and hashes of the files",
    )
    parser.add_argument(
        "--allow-drift", action="store_true", help="train even if files differ from the manifest"
    )
    arguments = parser.parse_args(argv)
    for name in ("steps", "batch", "threads", "save_every"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    try:
        train(arguments)
    except stdlib_corpus.CorpusError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
