"""Capabilities of the torch engine (`capabilities_of`): its limits, and the input members that it supports."""

from __future__ import annotations

from tidewire_server.generation.engine_interface import EngineCapabilities
from tidewire_server.generation.generate_input_and_value import MAX_NUM_BEAMS, MAX_TOP
from tidewire_server.generation.torch_engine.beam_search import candidates_per_beam
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

SUPPORTED_MEMBERS = frozenset(
    {
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "n",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "ranks",
        "ties",
        "logprobs_mode",
        "token_text",
    }
)
"""Input members that this engine supports in addition to `CORE_MEMBERS`. If the model has a chat template, the engine also
supports `messages`. If it has an end-of-text token, the engine also supports `json_schema`. If it has several slots, it
also supports `num_beams` and `length_penalty`."""


def capabilities_of(
    checkpoint: Checkpoint, *, context: int, slots: int, max_top: int, max_num_beams: int
) -> EngineCapabilities:
    """Return the capabilities of an engine with this checkpoint.

    Args:
        checkpoint: The loaded model.
        context: Maximum number of tokens of the prompt and the generated text together.
        slots: Maximum number of requests that run at the same time.
        max_top: Maximum value of the input member `top_logprobs`. Values above `MAX_TOP` have no effect.
        max_num_beams: Maximum value of the input member `num_beams`. Values above `MAX_NUM_BEAMS`,
            and above the number of slots, have no effect.
    """
    c = checkpoint
    # The first step of a beam search has one live hypothesis, so it has no more candidates than the vocabulary has tokens.
    max_num_beams = min(
        max_num_beams, MAX_NUM_BEAMS, slots, c.vocab_size // candidates_per_beam(len(c.end_ids))
    )
    return EngineCapabilities(
        model=c.name,
        context=context,
        max_top=min(max_top, MAX_TOP, c.vocab_size),
        max_num_beams=max_num_beams,
        continues=True,
        concurrency=slots,
        members=SUPPORTED_MEMBERS
        | ({"messages"} if getattr(c.tokenizer, "chat_template", None) else set())
        | ({"json_schema"} if c.end_ids else set())
        | ({"num_beams", "length_penalty"} if max_num_beams > 1 else set()),
        vocabulary=c.vocabulary,
        architecture=c.architecture,
        dtype=str(c.dtype).removeprefix("torch."),
        device=str(c.device),
        tokens=c.vocab_size,
    )
