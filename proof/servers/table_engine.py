"""Language model that is a fixed table of next-token logits. Tokens are sampled and scored as chapter 8 requires."""

import asyncio
import codecs
import math
import random
from types import SimpleNamespace

from tidewire_server.generation.engine_interface import CORE_MEMBERS, Delta, EngineCapabilities
from tidewire_server.generation.vocabulary import Vocabulary

WORDS = [" the", " sea", " tide", " wire", " né", " 😀", ",", ".", " and", " runs", " in", " out", " of", " a", " long", " day",
         " to", " night", " it", " was", " not", " here"]  # fmt: skip

MAX_TOP = 20
"""Maximum number of candidates at a position."""


def bytes_of(word: str | bytes) -> bytes:
    """Bytes of a token. They may begin or end within a character in a faulty server or a benign variant."""
    return word if isinstance(word, bytes) else word.encode()


def added_bytes(token: int) -> bytes:
    """Bytes that a token adds to the text."""
    return bytes_of(WORDS[token])


def whole_characters(written: bytes, *, final: bool) -> str:
    """Decode the text so far. The bytes of an incomplete last character are left out unless `final` is set."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(written, final)


def logits_after(token: int) -> list[float]:
    """Fixed logits of all next tokens, without ties."""
    draw = random.Random(token)
    return [4 * draw.random() for _ in WORDS]


def log_softmax(logits: list[float]) -> list[float]:
    most = max(logits)
    whole = most + math.log(sum(math.exp(each - most) for each in logits))
    return [each - whole for each in logits]


def ordered(scores: list[float], decimals: int) -> list[int]:
    """Token ids by descending log-probability before rounding. Tokens with equal log-probabilities are ordered by id."""
    return sorted(range(len(scores)), key=lambda each: (-scores[each], each))


def most_probable(scores: list[float], order: list[int]) -> int:
    """Token that is chosen at a temperature of 0."""
    return order[0]


def rank_of(scores: list[float], token: int) -> int:
    """Rank of a token, which is the same for tokens with equal logits."""
    return 1 + sum(score > scores[token] for score in scores)


def candidates(scores: list[float], order: list[int], request) -> tuple[list[int], int]:
    """Candidates at a position, and the number of further tokens that tie with the last one."""
    count = request.top_logprobs
    last = scores[order[count - 1]] if count else None
    tied = sum(scores[each] == last for each in order[count:])
    added = min(tied, max(0, MAX_TOP - count)) if request.ties == "all" else 0
    return order[: count + added], tied - added


def scored(token: int, request) -> list[float]:
    """Log-probabilities of all next tokens. They are raw or processed, as the request asks."""
    logits = logits_after(token)
    if request.logprobs_mode == "processed" and request.temperature:
        logits = [each / request.temperature for each in logits]
    return log_softmax(logits)


def prompt_columns(request) -> dict:
    """Members of a value that contain the tokens of the prompt and their log-probabilities."""
    if request.prompt_logprobs is None:
        return {}
    ids = [len(word) % len(WORDS) for word in request.prompt.split()] or [0]
    scores = [
        [round(each, request.logprob_decimals) for each in log_softmax(logits_after(token))] for token in ids
    ]
    found = {"prompt_token_ids": ids}
    found["prompt_logprobs"] = [
        None,
        *(before[token] for before, token in zip(scores, ids[1:], strict=False)),
    ]
    if request.prompt_logprobs:
        tops = [
            sorted(range(len(WORDS)), key=lambda each: (-row[each], each))[: request.prompt_logprobs]
            for row in scores[:-1]
        ]
        found["prompt_top_ids"] = [[], *tops]
        found["prompt_top_logprobs"] = [
            [],
            *([row[each] for each in top] for row, top in zip(scores, tops, strict=False)),
        ]
    return found


def before_a_stop(text: str, stops: list[str], *, whole: bool) -> tuple[str, bool]:
    """Return the part of a text that may be streamed, and whether the text contains a stop string."""
    if any(each in text for each in stops):
        return text[: min(text.index(each) for each in stops if each in text)], True
    return text if whole else text[: len(text) - held_back_length(text, stops)], False


def held_back_length(text: str, stops: list[str]) -> int:
    """Number of characters at the end of a text that could be the beginning of a stop string."""
    return max((n for each in stops for n in range(1, len(each)) if text.endswith(each[:n])), default=0)


class TableEngine:
    """Engine for the endpoint `generate`. The argument `change` is the hook of a faulty server."""

    def __init__(self, change=lambda delta, request: delta, pause: float = 0.004):
        self._change, self._pause = change, pause
        self.caps = EngineCapabilities(
            model="table", context=4096, max_top=MAX_TOP, concurrency=8,
            members=frozenset({"logprobs", "top_logprobs", "ranks", "ties", "logprobs_mode", "prompt_logprobs", "token_text"}),
            vocabulary=Vocabulary([bytes_of(word) for word in WORDS], frozenset()),
        )  # fmt: skip

    async def check(self, request) -> None:
        from tidewire_server.generation.engine_interface import InputError

        used = {
            name
            for name in request.model_fields_set
            if getattr(request, name) != type(request).model_fields[name].default
        }
        for name in sorted(used - CORE_MEMBERS - self.caps.members):
            raise InputError(f"the table engine does not support {name}", member=name)
        if len(request.prompt or "") + request.max_tokens > self.caps.context:
            raise InputError(
                f"the prompt and max_tokens exceed the context of {self.caps.context} tokens",
                member="max_tokens",
                code="input_too_long",
            )
        for name in ("top_logprobs", "prompt_logprobs"):
            if (getattr(request, name) or 0) > self.caps.max_top:
                message = f"{name} is at most {self.caps.max_top}"
                raise InputError(message, member=name, code="top_logprobs_too_large")

    async def close(self) -> None:
        pass

    async def generate(self, request):
        draw = random.Random(request.seed)
        token = len(request.prompt) % len(WORDS)
        shown, written = "", b""
        for n in range(request.max_tokens):
            scores = scored(token, request)
            order = ordered(scores, request.logprob_decimals)
            weights = log_softmax(logits_after(token))
            if request.temperature == 0:
                token = most_probable(scores, order)
            else:
                token = self._sample(draw, weights, request.temperature)
            decimals = request.logprob_decimals
            rounded = [round(score, decimals) for score in scores]
            written, last = written + added_bytes(token), n + 1 == request.max_tokens
            text, stopped = before_a_stop(whole_characters(written, final=last), request.stops, whole=last)
            top, tied = candidates(scores, order, request)
            values = {
                "text": text[len(shown) :],
                "token_ids": token,
                "logprobs": rounded[token],
                "top_ids": top,
                "top_logprobs": [rounded[each] for each in top],
                "ranks": rank_of(scores, token),
                "tie_counts": tied,
                "token_text": self.caps.vocabulary.text_of(token),
                "top_text": [self.caps.vocabulary.text_of(each) for each in top],
            }
            columns = SimpleNamespace(**{name: [] for name in values})
            for name in request.columns:
                setattr(columns, name, [values[name]])
            columns.finish_reason = "stop" if stopped else "length" if last else None
            shown = text
            changed = self._change(columns, request)
            rows = zip(*(getattr(changed, name) for name in request.columns), strict=True)
            yield Delta([*rows], [], changed.finish_reason, len(request.prompt))
            if stopped:
                return
            await asyncio.sleep(self._pause)

    @staticmethod
    def _sample(draw, scores, temperature):
        weights = [math.exp(score / temperature) for score in scores]
        return draw.choices(range(len(WORDS)), weights)[0]
