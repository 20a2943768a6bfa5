"""Generate the model card of the default model (`MODEL_CARD.md`) from the model's training record."""

from __future__ import annotations

from typing import Any

CARD = """\
# tidewire-stdlib-{millions}m

A very small language model for Python source code. With this model, a fresh checkout of Tidewire can stream real model
output. The model continues Python code. It has learned only the syntax, and some names and idioms of the standard library.

| | |
|---|---|
| architecture | Llama (decoder only, full attention): {model[num_hidden_layers]} layers, width {model[hidden_size]}, {model[num_attention_heads]} heads over {model[num_key_value_heads]} key-value heads, tied embeddings |
| parameters | {model[parameters]:,} (bfloat16) |
| tokenizer | byte-level BPE, {model[vocab_size]:,} entries, `<|endoftext|>` between files |
| context | {model[max_position_embeddings]:,} tokens |
| trained on | {corpus[train_bytes]:,} bytes of the Python {corpus[python]} standard library ({corpus[files]} files; one in {corpus[validation_every]} held out) |
| training | {result[steps]:,} steps, {result[tokens]:,} tokens ({epochs:.1f} passes), {result[seconds]:,.0f} s on {settings[threads]} CPU thread{plural} |
| held-out files | **{result[bits_per_byte]:.3f} bits per byte** ({result[nats_per_token]:.3f} nats per token, {corpus[validation_bytes]:,} bytes) |

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
python -m tidewire_server.default_model.recipe --out DIR --steps {settings[steps]} --batch {settings[batch]} --threads {settings[threads]} --seed {settings[seed]}
```

Run this command with Python {corpus[python]}. If you use another version of Python, download the source archive of Python {corpus[python]},
and pass its folder `Lib/` with the option `--stdlib`. The training script verifies the files of the standard library, fixes
the seed, and writes the files of this folder. The file `training.json` contains the loss over time, the numbers in the
table above, and the versions of the libraries. With other versions of the libraries, or on another processor, rounding
differs, so that the weights differ. Their quality is the same.
"""


def write(record: dict[str, Any]) -> str:
    """Return the text of the model card. The argument is the training record, which is the content of `training.json`."""
    return CARD.format(
        millions=f"{record['model']['parameters'] / 1e6:.1f}",
        epochs=record["result"]["tokens"] / record["corpus"]["train_tokens"],
        plural="" if record["settings"]["threads"] == 1 else "s",
        **record,
    )
