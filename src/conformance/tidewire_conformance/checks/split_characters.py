"""Checks for sections 8.2 and 8.5: characters of a text whose bytes belong to several tokens."""

import base64
import codecs
import re
from itertools import chain
from typing import Any, NamedTuple

from tidewire_conformance.checks.generation import LOGPROBS, generated, generated_each, generation
from tidewire_conformance.checks.jobs import common_length
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import schema_violation
from tidewire_conformance.session import Session, Skip
from tidewire_conformance.wire.recorded_exchange import RecordedExchange, resolve

REPLACEMENT = "\ufffd"
"""The character U+FFFD."""
TOKENS = 48
"""Number of tokens to generate in the search for a token that ends within a character."""
SEEDS = (1, 2, 3, 4)
TEMPERATURE = 3.0
"""Temperature at which unusual tokens are likely."""
BIAS = 1000
"""Value of `logit_bias` that makes a token the only possible one."""


class _Vocabulary(NamedTuple):
    tokens: list[bytes]
    special: frozenset[int]

    def spelled(self, ids: list[Any]) -> bytes:
        """Return the bytes that tokens add to a text. Special tokens and ids that the vocabulary lacks add none."""
        known = (each for each in ids if type(each) is int and 0 <= each < len(self.tokens))
        return b"".join(self.tokens[each] for each in known if each not in self.special)

    def incomplete(self) -> list[int]:
        """Return the ids of the tokens that end within a character."""
        return [
            each
            for each, token in enumerate(self.tokens)
            if each not in self.special and _decoded(token) != _decoded(token, final=True)
        ]


def _decoded(text: bytes, *, final: bool = False) -> str:
    """Decode bytes. An incomplete character at the end is left out unless `final` is set."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(text, final)


async def _vocabulary(s: Session) -> _Vocabulary:
    endpoint = s.server.endpoints[generation(s).endpoint]
    link = endpoint.description.get("links", {}).get("vocabulary")
    s.skip_unless(isinstance(link, str), "the description of the endpoint has no link `vocabulary`")
    answer = await s.get(resolve(endpoint.described, link))
    violation = schema_violation("vocabulary", answer.json)
    s.skip_unless(answer.status == 200 and not violation, f"{answer} returned {answer.status} {violation}")
    return vocabulary_of(answer)


def vocabulary_of(answer: RecordedExchange) -> _Vocabulary:
    """Return the vocabulary in a response that fits its schema."""
    special = frozenset(answer.validated.get("special", ()))
    return _Vocabulary([base64.b64decode(each) for each in answer.validated["tokens"]], special)


@check("TW-GEN-014", "TW-GEN-015", needs=LOGPROBS, seconds=2)
async def text_has_only_whole_characters(s: Session) -> None:
    """The bytes of a token that ends within a character are held back, until a later token completes the character or
    shows that it is invalid.

    The suite asks for a text of such tokens with `logit_bias`, and for texts at a high temperature.
    """
    vocabulary = await _vocabulary(s)
    incomplete = vocabulary.incomplete()
    members: list[dict[str, Any]] = [
        {"temperature": TEMPERATURE, "seed": seed, "max_tokens": TOKENS} for seed in SEEDS
    ]
    if incomplete:
        members.insert(0, {"logit_bias": {str(incomplete[0]): BIAS}})
    else:
        del members[1:]

    async def judge(each: dict[str, Any]) -> None:
        try:
            value, history = await generated(s, logprobs=True, **each)
        except Skip:
            if "logit_bias" in each:
                return  # The endpoint does not support it.
            raise
        whole, text = (
            _short(_decoded(vocabulary.spelled(value["token_ids"]), final=True)),
            _short(value["text"]),
        )
        common = common_length(whole, text)
        replaced = text[common : common + 1] == REPLACEMENT
        s.skip_unless(replaced or common == len(text), "the vocabulary does not spell the text")
        wanted = f"{whole[common : common + 8]!r} after {common} characters"
        s.at(history).expect(
            ("TW-GEN-014", "TW-GEN-015"), not replaced, wanted, repr(text[common : common + 8])
        )
        _judge_text(s, vocabulary, history)

    await s.concurrently(judge, members)


def _judge_text(s: Session, vocabulary: _Vocabulary, history: RecordedExchange) -> None:
    for step in Histories([history]).steps:
        value = step.after.value["items"][0].get("value") if step.after is not None else None
        if not isinstance(value, dict) or value.get("finish_reason") is not None:
            continue
        text, ids = value.get("text"), value.get("token_ids")
        if not isinstance(text, str) or not isinstance(ids, list):
            continue
        complete, text = _short(_decoded(vocabulary.spelled(ids))), _short(text)
        wanted = f"a text that ends in {complete[-8:]!r}, or before"
        sound = complete.startswith(text)
        s.at(history, step.block).expect(("TW-GEN-014", "TW-GEN-015"), sound, wanted, repr(text[-8:]))


@check("TW-GEN-042", needs=LOGPROBS, seconds=1.5)
async def text_of_tokens_is_decoded_separately(s: Session) -> None:
    """`token_text` and `top_text` have the bytes of each token, with U+FFFD for bytes that are not a whole character."""
    vocabulary = await _vocabulary(s)
    fixed = {"token_text": True, "top_logprobs": 2, "temperature": TEMPERATURE, "max_tokens": TOKENS}
    for value, history in await generated_each(s, [{**fixed, "seed": seed} for seed in SEEDS[:2]]):
        for ids, texts in (
            (value["token_ids"], value.get("token_text")),
            (_joined(value["top_ids"]), _joined(value.get("top_text"))),
        ):
            if ids is None:
                continue  # Another check reports it.
            sound = isinstance(texts, list) and len(texts) == len(ids) and all(map(_is_text, texts))
            if not s.at(history).expect("TW-GEN-042", sound, "a text for each token", texts):
                return
            for token, text in zip(ids, texts or (), strict=True):
                if token in vocabulary.special or not 0 <= token < len(vocabulary.tokens):
                    continue
                wanted = vocabulary.tokens[token].decode("utf-8", "replace")
                s.at(history).expect("TW-GEN-042", _short(text) == _short(wanted), f"{wanted!r}", repr(text))


def _joined(rows: Any) -> list[Any] | None:
    """Return the elements of all rows, or None if the value is not a list of lists."""
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        return None
    return [*chain(*rows)]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _short(text: str) -> str:
    """Replace each run of U+FFFD by a single one, because decoders differ in how many they write for invalid bytes."""
    return re.sub(f"{REPLACEMENT}+", REPLACEMENT, text)
