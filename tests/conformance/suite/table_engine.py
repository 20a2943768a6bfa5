"""A language model without a tensor: a table of what follows what, sampled and scored by the letter of chapter 8."""

import asyncio
import math
import random

from tidewire_server.generation.engine import CORE_MEMBERS, Caps, Delta
from tidewire_server.generation.vocabulary import Vocabulary

WORDS = [" the", " sea", " tide", " wire", " né", " 😀", ",", ".", " and", " runs", " in", " out", " of", " a", " long", " day",
         " to", " night", " it", " was", " not", " here"]  # fmt: skip


def logits_after(token: int) -> list[float]:
    """Of each next token: fixed, uneven, with ties nowhere."""
    draw = random.Random(token)
    return [4 * draw.random() for _ in WORDS]


def log_softmax(logits: list[float]) -> list[float]:
    most = max(logits)
    whole = most + math.log(sum(math.exp(each - most) for each in logits))
    return [each - whole for each in logits]


class TableEngine:
    """What `generate` needs of an engine; `change` is the hook of a mutant."""

    def __init__(self, change=lambda delta, request: delta, pause: float = 0.004):
        self._change, self._pause = change, pause
        self.caps = Caps(
            model="table", context=4096, max_top=20, concurrency=8,
            members=frozenset({"logprobs", "top_logprobs", "ranks", "n"}) - {"n"},
            vocabulary=Vocabulary([word.encode() for word in WORDS], frozenset()),
        )  # fmt: skip

    def check(self, request) -> None:
        from tidewire_server.generation.engine import InputError

        given = {
            name
            for name in request.model_fields_set
            if getattr(request, name) != type(request).model_fields[name].default
        }
        for name in sorted(given - CORE_MEMBERS - self.caps.members):
            raise InputError(f"{name} is not served by a table", member=name)
        if request.top_logprobs > self.caps.max_top:
            raise InputError(
                f"top_logprobs is at most {self.caps.max_top}",
                member="top_logprobs",
                code="top_logprobs_too_large",
            )

    async def close(self) -> None:
        pass

    async def generate(self, request):
        draw = random.Random(request.seed)
        token = len(request.prompt) % len(WORDS)
        for n in range(request.max_tokens):
            scores = log_softmax(logits_after(token))
            order = sorted(range(len(WORDS)), key=lambda each: (-scores[each], each))
            token = order[0] if request.temperature == 0 else self._sample(draw, scores, request.temperature)
            decimals = request.logprob_decimals
            rounded = [round(score, decimals) for score in scores]
            delta = Delta(text=[WORDS[token]], token_ids=[token], prompt_tokens=len(request.prompt))
            if "logprobs" in request.columns:
                delta.logprobs = [rounded[token]]
            if "top_ids" in request.columns:
                delta.top_ids = [order[: request.top_logprobs]]
                delta.top_logprobs = [[rounded[each] for each in delta.top_ids[0]]]
            if "ranks" in request.columns:
                delta.ranks = [1 + order.index(token)]
            delta.finish_reason = "length" if n + 1 == request.max_tokens else None
            yield self._change(delta, request)
            await asyncio.sleep(self._pause)

    @staticmethod
    def _sample(draw, scores, temperature):
        weights = [math.exp(score / temperature) for score in scores]
        return draw.choices(range(len(WORDS)), weights)[0]
