"""Texts that match a JSON Schema."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from support.model_checkpoints import (
    byte_level_tokens,
    collect,
    crafted_checkpoint,
    generate,
    generate_one,
    random_llama,
)
from tidewire_server.default_model import default_model
from tidewire_server.generation.engine_interface import InputError, InputTooExpensiveError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar, Grammars

Start = Callable[..., TorchEngine]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["é", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "happy": {"type": "boolean"},
    },
    "required": ["name", "tags", "age", "happy"],
    "additionalProperties": False,
}
YES_OR_NO = {"enum": ["yes", "no"]}


@pytest.fixture(scope="module")
def bundled():
    return load(default_model(), device="cpu")


@pytest.mark.heavy
def test_texts_match_their_schema_and_other_requests_are_not_restricted(start: Start, bundled):
    engine = start(bundled)
    shared = {"prompt": "data = ", "max_tokens": 60}
    schemas = [PERSON, PERSON, YES_OR_NO, {"type": "array", "items": {"type": "number"}, "maxItems": 4}]
    free = Generate(**shared, seed=9, top_logprobs=2)
    found = generate(
        engine, free, *(Generate(**shared, seed=n, json_schema=one) for n, one in enumerate(schemas))
    )
    assert found[0].token_ids == generate(engine, free)[0].token_ids
    for schema, one in zip(schemas, found[1:], strict=True):
        if one.finish_reason == "stop":
            jsonschema.validate(json.loads("".join(one.text)), schema)
    assert [one.finish_reason for one in found[1:4]] == ["stop"] * 3
    assert "".join(found[3].text) in {'"yes"', '"no"'}


def test_greedy_text_follows_the_schema_and_the_processed_distribution_has_only_possible_tokens(
    start: Start, tmp_path: Path
):
    letters = [*'"abcdef{}[]:', "<", ">", "x"]
    engine = start(crafted_checkpoint(tmp_path, letters, {"a": {"x": 9.0, "b": 2.0, "c": 1.0}}))
    found = generate_one(
        engine,
        prompt="a",
        max_tokens=8,
        json_schema={"enum": ["a", "b"]},
        seed=1,
        top_logprobs=3,
        logprobs_mode="processed",
    )
    assert "".join(found.text) in {'"a"', '"b"'}
    assert found.finish_reason == "stop"
    quote, a, b = (letters.index(one) + 1 for one in '"ab')
    assert (found.top_ids[0][0], found.logprobs[0]) == (quote, 0.0)
    assert [*zip(found.top_ids[1][:2], found.top_logprobs[1][:2], strict=True)] == [
        (a, -0.6931),
        (b, -0.6931),
    ]
    assert found.top_logprobs[1][2] is None


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objec"}, "Invalid type"),
        ({"type": "string", "if": {}}, "if"),
        ({"description": "x" * 8192}, "max_schema_bytes"),
        ({"type": "string", "pattern": "["}, "regex parse error: .*unclosed"),
        ({"$ref": "#"}, "no JSON text satisfies the schema, for example because a .* refers to itself"),
    ],
)
def test_schema_that_cannot_be_used_is_refused_with_the_reason(start: Start, bundled, schema, reason: str):
    with pytest.raises(InputError, match=f"json_schema .*{reason}") as refusal:
        asyncio.run(start(bundled).check(Generate(json_schema=schema)))
    assert refusal.value.member == "json_schema"


def test_model_without_end_of_text_token_has_no_structured_output(start: Start, tmp_path: Path):
    engine = start(random_llama(tmp_path))
    assert "json_schema" not in engine.caps.served
    with pytest.raises(InputError, match="json_schema is not supported"):
        generate_one(engine, json_schema=YES_OR_NO)


def test_prescribed_text_is_tokenized_like_the_tokenizer_or_with_the_longest_tokens(bundled):
    grammars = Grammars(bundled.vocabulary, bundled.vocab_size, bundled.end_ids, SpacePrefix())
    ids = grammars._tokens.tokenize_str('{"name')
    assert b"".join(map(bundled.vocabulary.bytes_of, ids)) == b'{"name'


def test_prescribed_text_is_tokenized_once(bundled):
    tokenizer = CountingTokenizer(bundled.tokenizer.backend_tokenizer)
    grammars = Grammars(bundled.vocabulary, bundled.vocab_size, bundled.end_ids, tokenizer)
    grammar = grammars.compile({"enum": [f"one {'text ' * 40}", f"two {'text ' * 40}"]})
    text, steps = b"", 0
    while not text.endswith(b' "'):
        logits = torch.zeros(bundled.vocab_size)
        grammar.mask(logits)
        (first, *_) = torch.nonzero(logits == 0).flatten().tolist()
        grammar.advance(first)
        text += bundled.vocabulary.bytes_of(first)
        steps += 1
    assert grammar.error is None
    assert json.loads(text).split()[1:] == ["text"] * 40
    assert steps > 40
    assert tokenizer.texts.count(max(tokenizer.texts, key=len)) == 1
    assert len(tokenizer.texts) < 8


def test_forced_tokens_are_those_that_the_masks_of_the_library_allow(bundled):
    grammars = Grammars(
        bundled.vocabulary, bundled.vocab_size, bundled.end_ids, bundled.tokenizer.backend_tokenizer
    )
    for seed in range(20):
        grammar, plain = grammars.compile(PERSON), grammars.compile(PERSON)._matcher
        rng = random.Random(seed)
        token = -1
        while token not in bundled.end_ids:
            logits = torch.zeros(bundled.vocab_size)
            grammar.mask(logits)
            bits = np.frombuffer(plain.compute_bitmask(), np.uint8)
            expected = np.unpackbits(bits, count=bundled.vocab_size, bitorder="little").astype(bool)
            assert np.array_equal(logits.numpy() == 0, expected)
            token = int(rng.choice(np.flatnonzero(expected)))
            grammar.advance(token)
            plain.consume_token(token)


def test_request_whose_masks_take_too_long_fails_and_the_others_continue(start: Start, bundled):
    engine = start(bundled, max_mask_share=1e-9)
    greedy = {"prompt": "data = ", "max_tokens": 60, "temperature": 0, "logprobs": True}
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 50}

    async def together() -> list[Any]:
        requests = [Generate(**greedy), Generate(**greedy, json_schema=numbers)]
        await engine.check(requests[1])  # Otherwise the first request may end before the compiler is ready.
        return await asyncio.gather(*(collect(engine, each) for each in requests), return_exceptions=True)

    other, slow = asyncio.run(together())
    assert len(other.token_ids) == 60
    assert isinstance(slow, InputTooExpensiveError)
    assert re.search(
        r"its masks took \d+% of the 16 steps that it shared with other requests, but at most 0% is allowed \(max_mask_share\)",
        str(slow),
    )
    # A request that shares its steps with no other one never fails.
    assert len(generate_one(engine, **greedy, json_schema=numbers).token_ids) == 60


def test_name_of_a_property_cannot_be_written_with_escapes_to_avoid_its_schema(bundled):
    grammars = Grammars(
        bundled.vocabulary, bundled.vocab_size, bundled.end_ids, bundled.tokenizer.backend_tokenizer
    )
    free = {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    }
    for text, allowed in (
        ('{"b": 1', True),
        ('{"\\n": 1', True),
        ('{"a": 1', False),
        ('{"\\u0061": 1', False),
    ):
        assert follows(grammars.compile(free), bundled, text) is allowed
    printable = free | {
        "description": r"\x41",
        "properties": {"a": {"type": "string", "pattern": r"^[\x20-\x7e]*$"}},
    }
    assert not follows(grammars.compile(printable), bundled, '{"\\u0061": 1')
    # A document with another control character needs these escapes.
    for character, pattern in (
        ("\0", r"\x00"),
        ("\x1f", r"\x1f"),
        ("\x7f", r"\x7f"),
        ("\v", r"\v"),
        ("\a", r"\a"),
    ):
        for schema in ({"enum": [character, 1]}, {"type": "string", "pattern": f"^{pattern}$"}):
            assert follows(grammars.compile(schema), bundled, f'"\\u{ord(character):04x}"')


def follows(grammar: Grammar, checkpoint: Checkpoint, text: str) -> bool:
    """Return whether a text is the beginning of a text of the grammar."""
    ids = [
        checkpoint.tokenizer.convert_tokens_to_ids(byte_level_tokens(bytes([x]))[0]) for x in text.encode()
    ]
    return all(grammar._matcher.try_consume_tokens([token]) for token in ids)


class CountingTokenizer:
    """Tokenizer that records the texts that it tokenizes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.texts: list[str] = []
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool):
        self.texts.append(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


class SpacePrefix:
    """Tokenizer that adds a space in front of each text, as SentencePiece tokenizers do."""

    def encode(self, text: str, *, add_special_tokens: bool):
        assert not add_special_tokens
        return type("Encoding", (), {"ids": [220, *text.encode()]})
