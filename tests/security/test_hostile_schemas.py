"""JSON Schemas that are expensive to compile or to follow, against the text engine and its other callers.

The schemas are compiled in a process of its own with a limit of its memory, because a schema that is too expensive can end
the process or fill the memory of the machine.
"""

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.hostile_schemas import hostile_schema
from support.schema_attack import SchemaAttack
from support.schema_process import SchemaProcess, Walk

FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
"""Duration of the long attack. The measurement of the page of threats took 600."""

WINDOW_SECONDS = 20.0

MAX_COMPILE_SECONDS = 2.0
"""Bound for the CPU time to compile a schema. The measured maximum is a tenth of it."""

MAX_MASK_SECONDS = 0.1
"""Bound for the CPU time of one mask. The measured maximum is a twentieth of it."""

MAX_GROWN_BYTES = 128 << 20
"""Bound for the memory that one schema and its text need."""

MAX_SERVER_GROWN_BYTES = 512 << 20
"""Bound for the memory that the schemas of all running requests need."""


@pytest.fixture(scope="module")
def schemas() -> Iterator[SchemaProcess]:
    with SchemaProcess() as process:
        yield process


def assert_cheap(walk: Walk) -> None:
    assert walk.compile_seconds < MAX_COMPILE_SECONDS
    assert walk.largest_mask_seconds < MAX_MASK_SECONDS
    assert walk.grown_bytes < MAX_GROWN_BYTES


def references(count: int, link: Any) -> dict[str, Any]:
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(count)} | {f"a{count}": {}}
    return {"$defs": definitions, "$ref": "#/$defs/a0"}


ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    # The process ended by a stack overflow.
    "chain of references": ("max_schema_bytes", references(1120, lambda to: {"type": "array", "items": to})),
    "chain of allOf": ("max_schema_bytes", references(1450, lambda to: {"allOf": [to]})),
    "chain of anyOf": ("max_schema_bytes", references(1080, lambda to: {"anyOf": [to, {"type": "null"}]})),
    # Compiling took 1.7 GiB in 25 s, and continued.
    "intersected patterns": (
        "max_all_of",
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(1, 18)]},
    ),
    "fewer intersected patterns": (
        "max_pattern_states",
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(1, 14)]},
    ),
    # Compiling took more than a minute.
    "patterns of names": (
        "max_schema_bytes",
        {"type": "object", "patternProperties": {f"^[a-z]{{{i}}}$": {} for i in range(1, 601)}},
    ),
    "fewer patterns of names": (
        "max_pattern_properties",
        {"type": "object", "patternProperties": {f"^[a-z]{{{i}}}$": {} for i in range(1, 401)}},
    ),
    # Each mask took from 9 ms to 2.5 s.
    "repeated repetition": ("max_pattern_size", {"type": "string", "pattern": "^(a{1000}){1000}$"}),
    "optional characters": ("max_schema_bytes", {"type": "string", "pattern": "^" + "(a?)" * 15_000 + "$"}),
    "long constant": ("max_schema_bytes", {"const": "x" * 60_000}),
    "constant of the size of a schema": ("max_text_length", {"const": "x" * 8_000}),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ATTACKS)
def test_known_attack_is_refused_by_a_limit(schemas: SchemaProcess, name: str):
    limit, schema = ATTACKS[name]
    walk = schemas.walk(schema)
    assert f"exceeds the limit {limit}:" in walk.refusal
    assert_cheap(walk)


AT_THE_LIMITS: dict[str, dict[str, Any]] = {
    "chain of references": references(63, lambda to: {"type": "array", "items": to}),
    "deep references": references(49, lambda to: {"items": {"items": {"items": to}}}),
    "nested arrays": json.loads('{"items":' * 31 + "{}" + "}" * 31),
    "nested required": json.loads('{"required":["a"],"additionalProperties":' * 10 + "{}" + "}" * 10),
    "alternatives": {"anyOf": [{"type": "object", "properties": {"a": {"const": i}}} for i in range(64)]},
    "properties": {"type": "object", "properties": {f"p{i}": {} for i in range(256)}},
    "exclusive properties": {
        "type": "object",
        "properties": {f"p{i}": {} for i in range(200)},
        "additionalProperties": False,
        "maxProperties": 1,
    },
    "patterns of names": {
        "type": "object",
        "patternProperties": {f"^[a-z]{{{i}}}(a|b)*a.{{{i}}}$": {} for i in range(1, 17)},
    },
    "many patterns": {
        "type": "array",
        "items": {"anyOf": [{"type": "string", "pattern": f"(a|b)*a.{{{400 + i}}}"} for i in range(32)]},
    },
    "large pattern": {"type": "string", "pattern": "^.{0,245}a.{0,245}b$"},
    "large pattern with a length": {"type": "string", "pattern": "^(.{1}|..{1}|...{1})*$", "minLength": 5000},
    "intersected patterns": {
        "allOf": [{"type": "string", "pattern": f"([a-y]|.{{{i}}})*a.{{90}}"} for i in (3, 4)]
    },
    "long array": {
        "type": "array",
        "items": {"type": "array", "items": {}, "maxItems": 1024},
        "maxItems": 1024,
    },
    "many properties": {"type": "object", "additionalProperties": {}, "minProperties": 1024},
    "long text": {"type": "string", "minLength": 2**20},
    "long constants": {"enum": [f"{i}{'é' * 200}" for i in range(18)]},
    "many constants": {"enum": ["a" * (i % 30) + str(i) for i in range(360)]},
    "large numbers": {"type": "number", "minimum": -1e19, "maximum": 0.1234567890123456, "multipleOf": 0.001},
    "large multiple": {"type": "integer", "multipleOf": 997, "minimum": 10**18},
    "merged alternatives": {
        "allOf": [{"anyOf": [{"required": [f"{c}{i}"]} for i in range(8)]} for c in "abcd"]
    },
}


@pytest.mark.parametrize("name", AT_THE_LIMITS)
def test_schema_at_the_limits_is_cheap(schemas: SchemaProcess, name: str):
    walk = schemas.walk(AT_THE_LIMITS[name])
    assert "exceeds the limit" not in walk.refusal
    assert_cheap(walk)


@pytest.mark.heavy
@pytest.mark.parametrize("count", [150, pytest.param(1_000, marks=pytest.mark.slow)])
def test_fuzzed_schemas_are_cheap(schemas: SchemaProcess, count: int):
    walks = [schemas.walk(hostile_schema(seed), seed) for seed in range(count)]
    for walk in walks:
        assert_cheap(walk)
    # The fuzzer reaches the compiler and the masks.
    assert sum(not walk.refusal for walk in walks) > 20
    assert len({walk.refusal.split(":")[0] for walk in walks if "exceeds" in walk.refusal}) > 8


OUTCOMES = {"400", "422", "stop", "length", "invalid_input", "stopped"}
"""Outcomes of the attacker's requests: malformed, refused, ended, ended by a limit of the library, or stopped by the test."""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_fuzzed_schemas_of_one_caller_leave_the_engine_to_another(tmp_path: Path):
    """The CPU time of the engine decides, because other processes of the machine do not affect it."""
    schemas = map(hostile_schema, itertools.count(1000))
    with SchemaAttack(tmp_path) as attack:
        attack.window(0.3)
        before, attacked, after = attack.window(1.0), attack.window(3.0, schemas), attack.window(1.0)
        assert attack.process.poll() is None
        grown = attack.peak_bytes - attack.start_bytes
    assert attacked.outcomes.keys() <= OUTCOMES
    assert attacked.outcomes["422"] > 0
    assert attacked.outcomes["stop"] + attacked.outcomes["length"] > 0
    assert grown < MAX_SERVER_GROWN_BYTES
    # The engine's CPU time for a token doubles if the masks take as long as everything else. Leave room for noise.
    ordinary = max(before.engine_seconds_per_token, after.engine_seconds_per_token)
    assert attacked.engine_seconds_per_token < 3 * ordinary


@pytest.mark.slow
@pytest.mark.timeout(2 * FUZZ_SECONDS + 300)
def test_tokens_per_second_of_another_caller_never_fall_below_half(tmp_path: Path):
    schemas = map(hostile_schema, itertools.count(time.time_ns()))
    with SchemaAttack(tmp_path) as attack:
        found = [*attack.ratios(FUZZ_SECONDS, WINDOW_SECONDS, schemas)]
        assert attack.process.poll() is None
        grown = attack.peak_bytes - attack.start_bytes
    assert {outcome for _, window in found for outcome in window.outcomes} <= OUTCOMES
    assert grown < MAX_SERVER_GROWN_BYTES
    assert min(ratio for ratio, _ in found) > 0.5
