"""Generate the model card of the default model (`MODEL_CARD.md`) from the model's training record."""

from __future__ import annotations

from typing import Any

CARD = """\
# tidewire-stdlib-{millions}m

A very small language model for Python source code. With this model, a fresh checkout of Tidewire can stream real model
output. The model continues Python code. It has learned only the syntax, and some names and idioms of the standard library.

| | |
|---|---|
| architecture | Llama (decoder only, full attention): {layers} layers, width {hidden}, {heads} heads over {kv_heads} key-value heads, tied embeddings |
| parameters | {parameters:,} (bfloat16) |
| tokenizer | byte-level BPE, {vocab:,} entries, `<|endoftext|>` between files |
| context | {context:,} tokens |
| trained on | {train_bytes:,} bytes of the Python {python} standard library ({files} files; one in {held_out} held out) |
| training | {steps:,} steps, {tokens:,} tokens ({epochs:.1f} passes), {seconds:,.0f} s on {threads} CPU thread{plural} |
| held-out files | **{bits:.3f} bits per byte** ({nats:.3f} nats per token, {validation_bytes:,} bytes) |

## Intended use

- Trying the server and the client without a download.
- Demonstrations of streams, resumption and log-probabilities. The probability distributions are sharp at some positions and
  flat at others.
- Tests of the engine with a trained model.

## Out of scope

Do not use the model to write production code, to answer questions, to generate text in other languages, or to evaluate
the quality of language models. It has no instruction tuning, no chat template and no safety training. It may reproduce
passages of the standard library verbatim.

## Data and license

The training data is the source code of the Python standard library, under the Python Software Foundation License Version 2
(Copyright © 2001 Python Software Foundation; All Rights Reserved). `corpus.json` lists each file with its SHA-256. The
weights and the training script are distributed under the project's license. Passages that the model reproduces verbatim remain under
Python's license.

## How to reproduce

```
python -m tidewire_server.default_model.recipe --out DIR --steps {planned} --batch {batch} --threads {threads} --seed {seed}
```

Run this command with Python {python}. If you use another version of Python, download the source archive of Python {python},
and pass its folder `Lib/` with the option `--stdlib`. The training script verifies the files of the standard library, fixes
the seed, and writes the files of this folder. The file `training.json` contains the loss over time, the numbers in the
table above, and the versions of the libraries. With other versions of the libraries, or on another processor, rounding
differs, so that the weights differ. Their quality is the same.
"""


def write(record: dict[str, Any]) -> str:
    """Return the text of the model card. The argument is the training record, which is the content of `training.json`."""
    model, settings, corpus, result = record["model"], record["settings"], record["corpus"], record["result"]
    return CARD.format(
        millions=f"{model['parameters'] / 1e6:.1f}",
        layers=model["num_hidden_layers"],
        hidden=model["hidden_size"],
        heads=model["num_attention_heads"],
        kv_heads=model["num_key_value_heads"],
        parameters=model["parameters"],
        vocab=model["vocab_size"],
        context=model["max_position_embeddings"],
        train_bytes=corpus["train_bytes"],
        python=corpus["python"],
        files=corpus["files"],
        held_out=corpus["validation_every"],
        steps=result["steps"],
        planned=settings["steps"],
        tokens=result["tokens"],
        epochs=result["tokens"] / corpus["train_tokens"],
        seconds=result["seconds"],
        threads=settings["threads"],
        plural="" if settings["threads"] == 1 else "s",
        bits=result["bits_per_byte"],
        nats=result["nats_per_token"],
        validation_bytes=corpus["validation_bytes"],
        batch=settings["batch"],
        seed=settings["seed"],
    )
