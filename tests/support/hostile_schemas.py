"""Generator of JSON Schemas that are expensive to compile or to follow (`hostile_schema`), the same for the same seed.

A schema begins as one of `SEEDS`, which are the keywords of JSON Schema one by one and the attacks that are known, and is
then changed several times: wrapped, repeated, referenced, merged with itself, or given larger patterns, values and numbers.
Sizes are chosen up to and slightly beyond the limits of the server.
"""

import json
import random
from collections.abc import Callable
from typing import Any

Schema = Any

PATTERNS = [
    "(a|b)*a(a|b){{{n}}}",
    "^(a{{{n}}}){{{m}}}$",
    "^(a?){{{n}}}(b?){{{m}}}$",
    "^(.*a){{{m}}}$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "^(x+x+)+y$",
    r"^\w{{{m},{n}}}(-\w{{1,{m}}}){{0,{m}}}$",
    r"^(\p{{L}}|[0-9]){{{m},{n}}}$",
    "(?i)^(hello|world|{m})*.{{{m}}}$",
    "^(.{{{m}}}|..{{{m}}}|...{{{m}}})*$",
    "^.{{0,{n}}}a.{{0,{n}}}b$",
    "[^a-z]{{{n}}}[^0-9]*x.{{{m}}}y",
    r"^([^\x00-\x1f]|\\.){{{m},{n}}}$",
    "(a|aa|aaa|aaaa)*(b|bb|bbb){{{m}}}",
]

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]

CHAIN = {
    "$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1120)},
    "$ref": "#/$defs/a0",
}

SEEDS: list[Schema] = [
    # the keywords
    {},
    True,
    False,
    {"type": "null"},
    {"type": ["string", "integer", "null"]},
    {"type": "integer", "minimum": -17, "exclusiveMaximum": 4096},
    {"type": "number", "minimum": 0.001, "maximum": 123456.789},
    {"type": "integer", "multipleOf": 7, "minimum": 1000, "maximum": 100_000},
    {"type": "number", "multipleOf": 0.25},
    {"type": "string", "minLength": 3, "maxLength": 300},
    {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$", "maxLength": 64},
    {"type": "string", "format": "email", "minLength": 6},
    {"const": {"a": [1, "x", None], "b": {"c": 1.5}}},
    {"enum": ["red", "green", 3, None, ["x"], {"a": 1}]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 40},
    {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False},
    {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "null"}},
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 30},
    {"type": "object", "patternProperties": {"^x_": {"type": "string"}}, "additionalProperties": False},
    {"type": "object", "properties": {"x_a": {}}, "patternProperties": {"^x_": {"type": "string"}}},
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {}}, "required": ["a"]}]},
    {"$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"},
    {"properties": {"next": {"$ref": "#"}, "value": {"type": "number"}}},
    # the attacks that are known
    CHAIN,
    {"allOf": [{"type": "object"}] * 1450},
    {"anyOf": [{"type": "object"}] * 1080},
    {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(1, 18)]},
    {"type": "object", "patternProperties": {f"^[a-z]{{{i}}}$": {} for i in range(1, 601)}},
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"type": "string", "pattern": "^" + "(a?)" * 15_000 + "$"},
    {"const": "x" * 60_000},
]

MAX_BYTES = 65_536
"""Size up to which a schema is changed. Most schemas stay below the default of `max_schema_bytes`."""


def hostile_schema(seed: int) -> dict[str, Any]:
    """Return the schema with this number."""
    rng = random.Random(seed)
    schema: Schema = rng.choice(SEEDS)
    most = 8000 if rng.random() < 0.9 else MAX_BYTES
    for _ in range(rng.randrange(1, 12)):
        changed = rng.choice(CHANGES)(rng, schema)
        if len(json.dumps(changed)) <= most:
            schema = changed
    return schema if isinstance(schema, dict) else {"allOf": [schema]}


def number(rng: random.Random, most: int) -> int:
    """Return a number up to slightly more than `most`. Large numbers are about as frequent as small ones."""
    return rng.choice([rng.randrange(1, 8), int(most ** rng.random()), most // 2, most - 1, most, most + 1])


def pattern(rng: random.Random) -> str:
    """Return a regular expression."""
    n = number(rng, 1024)
    m = number(rng, max(1, rng.choice([1024 // n, 30])))
    found = rng.choice(PATTERNS).format(n=n, m=m)
    if rng.random() < 0.2:
        found = f"({found}|{rng.choice(PATTERNS).format(n=m, m=rng.randrange(1, 9))})"
    return f"^({found}){{{rng.randrange(1, 9)}}}$" if rng.random() < 0.1 else found


def leaf(rng: random.Random) -> Schema:
    """Return a schema without other schemas in it."""
    found: list[Callable[[], Schema]] = [
        lambda: {"type": "string", "pattern": pattern(rng)},
        lambda: {"type": "string", "pattern": pattern(rng)},
        lambda: {"type": "string", "pattern": pattern(rng), "maxLength": number(rng, 65_536)},
        lambda: {"type": "string", "format": rng.choice(FORMATS), "minLength": number(rng, 100)},
        lambda: {"type": "string", "minLength": number(rng, 2**20)},
        lambda: {"const": rng.choice(["x", "ab ", "é", '"\\', "0"]) * number(rng, 1024)},
        lambda: {"enum": [f"{rng.random()}" for _ in range(number(rng, 300))]},
        lambda: {"enum": ["a" * i for i in range(number(rng, 120))]},
        lambda: {"type": "number", "minimum": rng.uniform(-1e9, 0), "maximum": rng.uniform(0, 1e15)},
        lambda: {"type": "integer", "multipleOf": number(rng, 1000), "minimum": number(rng, 2**53)},
        lambda: {"type": "number", "multipleOf": number(rng, 1000) / 100, "maximum": 1e6},
        lambda: {"type": ["string", "number", "object", "array"]},
        lambda: rng.choice(SEEDS[:26]),
    ]
    return rng.choice(found)()


def _nest(rng: random.Random, schema: Schema) -> Schema:
    """Wrap the schema several times."""
    wraps: list[Callable[[Schema], Schema]] = [
        lambda s: {"type": "array", "items": s, "maxItems": number(rng, 1024)},
        lambda s: {"items": s, "minItems": number(rng, 40)},
        lambda s: {"type": "object", "properties": {"a": s}, "required": ["a", "b"]},
        lambda s: {"additionalProperties": s, "required": [f"r{i}" for i in range(number(rng, 60))]},
        lambda s: {"type": "object", "properties": {"a": s, "b": s}},
        lambda s: {"patternProperties": {pattern(rng): s}},
        lambda s: {"allOf": [s, leaf(rng)]},
        lambda s: {"anyOf": [s, leaf(rng)]},
        lambda s: {"anyOf": [s, s], "allOf": [s]},
        lambda s: {"type": ["object", "object", "array"], "properties": {"a": s}, "items": s},
    ]
    one = rng.choice(wraps)
    for _ in range(number(rng, 16)):
        schema = (one if rng.random() < 0.7 else rng.choice(wraps))(schema)
        if len(json.dumps(schema)) > MAX_BYTES:
            break
    return schema


def _repeat(rng: random.Random, schema: Schema) -> Schema:
    """Repeat the schema, each time with a different leaf."""
    count = number(rng, rng.choice([4, 16, 64, 300]))
    keyword = rng.choice(
        ["allOf", "anyOf", "oneOf", "prefixItems", "properties", "patternProperties", "required"]
    )
    if keyword == "properties":
        return {
            "type": "object",
            "properties": {f"p{i}": rng.choice([schema, leaf(rng)]) for i in range(count)},
        }
    if keyword == "patternProperties":
        return {"type": "object", "patternProperties": {pattern(rng): schema for i in range(count)}}
    if keyword == "required":
        names = [f"p{i}" for i in range(count)]
        return {"type": "object", "additionalProperties": schema, "required": names}
    return {keyword: [schema if rng.random() < 0.5 else leaf(rng) for _ in range(count)]}


def _repeat_leaf(rng: random.Random, schema: Schema) -> Schema:
    """Put copies of one leaf with other numbers next to the schema."""
    one = leaf(rng)
    copies = [one if rng.random() < 0.5 else leaf(rng) for _ in range(number(rng, 32))]
    return {rng.choice(["anyOf", "allOf", "prefixItems"]): [*copies, schema]}


def _refer(rng: random.Random, schema: Schema) -> Schema:
    """Move the schema to a definition, and refer to it in a chain, in a tree, or next to other keywords."""
    count = number(rng, 64)
    links: list[Callable[[str], Schema]] = [
        lambda to: {"type": "array", "items": {"$ref": to}},
        lambda to: {"allOf": [{"$ref": to}]},
        lambda to: {"anyOf": [{"$ref": to}, {"$ref": "#/$defs/d0"}]},
        lambda to: {"type": "object", "properties": {"x": {"$ref": to}, "y": {"$ref": to}}},
        lambda to: {"type": "object", "properties": {"x": {"type": "object", "$ref": to}, "y": {"$ref": to}}},
        lambda to: {"allOf": [{"$ref": to}, {"$ref": to}]},
        lambda to: {"properties": {"x": {"allOf": [{"$ref": to}, {"properties": {"x": {"$ref": to}}}]}}},
        lambda to: {"$ref": to},
    ]
    link = rng.choice(links)
    definitions: dict[str, Schema] = {"last": schema}
    for i in range(count):
        to = f"#/$defs/d{i + 1}" if i + 1 < count else rng.choice(["#/$defs/last", "#/$defs/d0", "#"])
        definitions[f"d{i}"] = (link if rng.random() < 0.9 else rng.choice(links))(to)
    return {"$defs": definitions, **rng.choice(links)("#/$defs/d0")}


def _merge(rng: random.Random, schema: Schema) -> Schema:
    """Merge the schema with leaves, or with itself."""
    parts = [rng.choice([schema, leaf(rng)]) for _ in range(number(rng, 6))]
    properties = {"properties": {name: leaf(rng) for name in "abxy"}, "additionalProperties": leaf(rng)}
    return rng.choice(
        [{"allOf": [schema, *parts]}, {**properties, "allOf": parts}, {**properties, "anyOf": parts}]
    )


def _with_leaf(rng: random.Random, schema: Schema) -> Schema:
    """Replace the schema, or add a property to it."""
    if isinstance(schema, dict) and "type" in schema and rng.random() < 0.5:
        other = leaf(rng)
        return {**schema, **other} if isinstance(other, dict) else {**schema, "properties": {"z": other}}
    return leaf(rng)


CHANGES: list[Callable[[random.Random, Schema], Schema]] = [
    _nest,
    _repeat,
    _repeat_leaf,
    _refer,
    _merge,
    _with_leaf,
]
