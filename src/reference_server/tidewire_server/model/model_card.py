"""The model's card, written from the record of its training so that its numbers are those that were measured."""

from __future__ import annotations

from typing import Any

CARD = """\
# tidewire-stdlib-{millions}m

A very small language model of Python source code, so that a fresh checkout of Tidewire has something real to
stream. It continues text that looks like Python; it knows the shape of code, some names and idioms of the
standard library, and nothing else.

| | |
|---|---|
| architecture | Llama (decoder only, full attention): {layers} layers, width {hidden}, {heads} heads over {kv_heads} key-value heads, tied embeddings |
| parameters | {parameters:,} (bfloat16) |
| tokenizer | byte-level BPE, {vocab:,} entries, `<|endoftext|>` between files |
| context | {context:,} tokens |
| trained on | {train_bytes:,} bytes of the Python {python} standard library ({files} files; one in {held_out} held out) |
| training | {steps:,} steps, {tokens:,} tokens ({epochs:.1f} passes), {seconds:,.0f} s on {threads} CPU thread{plural} |
| held-out files | **{bits:.3f} bits per byte** ({nats:.3f} nats per token, {validation_bytes:,} bytes) |

## For

Trying the server and the client without a download; demonstrations of streams, resumption and log-probabilities
(sharp and flat distributions both occur); tests of the engine with a trained model.

## Not for

Writing code that anyone runs, answering questions, any language but Python's, any judgement about quality.
It has no instruction tuning, no chat template and no safety training. It may recite passages of the standard
library.

## Data and licence

The text is the source of the Python standard library, under the Python Software Foundation License Version 2
(Copyright © 2001 Python Software Foundation; All Rights Reserved). `corpus.json` lists each file with its
SHA-256. The weights and the recipe are distributed under the project's licence; passages that the model recites
remain under Python's.

## Reproduce

```
python -m tidewire_server.model.recipe --out DIR --steps {planned} --batch {batch} --threads {threads} --seed {seed}
```

with Python {python}, or any Python and `--stdlib` naming `Lib/` of that release's source archive. The recipe
verifies the files, fixes the seed, and writes the files beside this card; `training.json` holds the loss over
time, the measured numbers above and the versions of the libraries. Other versions or another processor give
other roundings, and so other weights of the same quality.
"""


def write(record: dict[str, Any]) -> str:
    """The card of the model whose training `record` (the content of `training.json`) describes."""
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
