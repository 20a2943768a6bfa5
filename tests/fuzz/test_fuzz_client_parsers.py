"""Arbitrary input for each parser of the client that reads what a server sends. A parser may refuse an input with its own
error, and must raise no other.
"""

import builtins
import contextlib
import io
import itertools
import json
import sys
import types
import warnings

import pydantic
import pydantic_core
import pytest
from hypothesis import assume
from hypothesis import strategies as st
from rich.console import Console

from support.fuzzing import fuzzed
from support.scripted_server import endpoint
from tidewire.commands.codegen import check_schema_keywords
from tidewire.commands.codegen import typed_module as codegen
from tidewire.commands.describe_text import describe_endpoint
from tidewire.errors import TidewireError
from tidewire.following.follower import Follower
from tidewire.http import status_errors
from tidewire.http.response import Response
from tidewire.inputs.input_words import member_schema, parse_word
from tidewire.protocol import messages, strict_json
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.digests import IntegrityError
from tidewire.protocol.document.document import Document
from tidewire.protocol.resources import Discovery, EndpointDescription, JobList, JobResource
from tidewire.protocol.sse import Decoder, Event
from tidewire.terminal_escapes import visible, visible_json

texts = st.text(max_size=12)
numbers = st.integers(-(2**54), 2**54) | st.floats() | st.sampled_from([0, -1, 2**53, 1e308])
scalars = st.none() | st.booleans() | numbers | texts


def json_values(names=texts, leaves=scalars):
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=12,
    )


# ---- JSON --------------------------------------------------------------------------------------------------------

FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\\u",
    "\\ud800",
    "null",
    "true",
    "-0",
    "1e400",
    "NaN",
    "\ufeff",
    "\x00",
    " ",
]
broken_json = st.lists(st.sampled_from(FRAGMENTS) | json_values().map(json.dumps) | texts, max_size=8).map(
    "".join
)


@fuzzed(50)
def test_any_text_is_read_as_the_standard_library_reads_it_or_refused(fuzz):
    @fuzz(broken_json | st.binary(max_size=20) | json_values().map(json.dumps))
    def check(text):
        try:
            value = strict_json.loads(text)
        except strict_json.StrictJsonError:
            return
        assert value == json.loads(text)
        assert strict_json.loads(strict_json.dumps(value)) == value


# ---- event streams -----------------------------------------------------------------------------------------------

lines = st.sampled_from(
    [b"data:", b"id:", b"event:", b"retry:", b": ", b"\n", b"\r", b"\r\n", b"\n\n", b"\xef\xbb\xbf"]
)


@fuzzed(50)
def test_any_bytes_are_the_same_events_in_any_chunks(fuzz):
    def decode(chunks):
        decoder = Decoder()
        return [event for chunk in chunks for event in decoder.feed(chunk)]

    @fuzz(
        st.lists(lines | st.binary(max_size=6), max_size=20).map(b"".join),
        st.lists(st.integers(0, 60), max_size=6),
    )
    def check(stream, cuts):
        ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        chunks = [stream[begin:end] for begin, end in itertools.pairwise(ends)]
        assert decode(chunks) == decode([stream]) == decode([bytes([byte]) for byte in stream])


# ---- state and diffs ---------------------------------------------------------------------------------------------

pointers = st.lists(
    st.sampled_from(["items", "0", "1", "value", "a", "", "-", "~0", "~1", "~2", "01", "9" * 20]), max_size=4
).map(lambda tokens: "".join(f"/{token}" for token in tokens))
ops = st.tuples(st.sampled_from(["s", "a", "t", "d", "i", "m", "x"]), pointers, json_values()).map(list)
diffs = st.one_of(
    json_values(),
    st.lists(ops | ops.map(lambda op: op[:2]), max_size=4),
    st.fixed_dictionaries(
        {"ops": st.lists(ops, max_size=3)},
        optional={"check": json_values(), "stable": json_values(), "rows": json_values()},
    ),
)
STATE = {
    "status": "running",
    "items": [{"status": "running", "value": {"a": "text", "b": [1, 2]}}],
    "usage": {},
    "notes": [],
}


@fuzzed(40)
def test_any_diff_is_applied_or_leaves_the_document_unchanged(fuzz):
    @fuzz(st.lists(diffs, max_size=4), st.lists(pointers, max_size=2))
    def check(some, columns):
        try:
            document = Document(STATE, columns)
        except DiffError:
            return
        for diff in some:
            before = document.value()
            try:
                document.apply(diff)
            except (DiffError, IntegrityError):
                assert document.value() == before
            strict_json.dumps(document.value())


# ---- events ------------------------------------------------------------------------------------------------------

ids = st.sampled_from(["1-1", "1-2", "1-3", "2-1", "0-0", "1-", "é", "", "9" * 30])
snapshots = st.fixed_dictionaries(
    {
        "state": st.just(STATE) | json_values(),
        "columns": st.lists(pointers, max_size=2) | json_values(),
        "reason": st.sampled_from(["start", "rewound", "x"]),
    }
)
hellos = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(["tidewire/1", "tidewire/2"]),
        "job": st.sampled_from(["j1", "j2"]),
        "events": texts,
        "head": ids,
        "heartbeat_ms": st.just(1000) | scalars,
    }
)
events = st.builds(
    lambda kind, data, id_: Event(kind, data if isinstance(data, str) else json.dumps(data), id_),
    st.sampled_from(
        ["message", "snapshot", "done", "hello", "ping", "problem", "goaway", "queue", "progress", "new"]
    ),
    st.one_of(snapshots, diffs, json_values(), broken_json, hellos),
    ids,
)
GREETING = Event(
    "hello",
    json.dumps({"protocol": "tidewire/1", "job": "j1", "events": "/e", "head": "1-9", "heartbeat_ms": 1000}),
    "",
)
FIRST = Event(
    "snapshot", json.dumps({"state": STATE, "columns": ["/items/0/value/a"], "reason": "start"}), "1-1"
)


@fuzzed(25)
def test_any_event_has_an_outcome(fuzz):
    @fuzz(st.booleans(), st.lists(events, max_size=6))
    def check(started, received):
        follower = Follower(job_id="j1", max_state_bytes=1000)
        follower.connected()
        for event in [GREETING, FIRST] * started + received:
            assert follower.receive(event) is not None


# ---- bodies ------------------------------------------------------------------------------------------------------

MODELS = [Discovery, EndpointDescription, JobResource, JobList]
member_names = st.sampled_from(
    sorted(
        {name for model in MODELS for name in model.__struct_fields__}
        | {"code", "title", "status", "detail", "pointer", "retry_after_ms"}
    )
)
bodies = st.dictionaries(member_names, json_values(member_names), max_size=12)


@fuzzed(40)
def test_any_body_is_read_or_refused(fuzz):
    @fuzz(
        st.sampled_from(MODELS),
        bodies.map(json.dumps).map(str.encode)
        | broken_json.map(lambda text: text.encode("utf-8", "replace"))
        | st.binary(max_size=20),
    )
    def check(model, body):
        with contextlib.suppress(messages.MessageError):
            messages.read(model, body, what="body")


@fuzzed(30)
def test_any_refusal_is_an_error_of_the_client(fuzz):
    problems = st.fixed_dictionaries(
        {"code": texts, "title": texts, "status": st.integers(0, 999)},
        optional={
            "detail": texts,
            "pointer": texts,
            "retryable": st.booleans(),
            "retry_after_ms": numbers,
            "errors": json_values(),
        },
    )

    @fuzz(
        st.integers(400, 599),
        (problems | bodies).map(json.dumps).map(str.encode) | st.binary(max_size=30),
        texts,
    )
    def check(status, body, media):
        response = Response(
            "GET", "http://a/v1", status, {"content-type": media, "x-request-id": media}, body
        )
        error = status_errors.refused(response, status_errors.problem_in(response), response.where())
        assert isinstance(error, TidewireError)
        assert str(error)
        assert str(status_errors.not_tidewire("http://a", response))


# ---- commands ----------------------------------------------------------------------------------------------------

CODE = "__import__('builtins').__dict__.update(tidewire_was_hacked=True)"
KEYWORDS = sorted(
    check_schema_keywords.SUBSCHEMA | check_schema_keywords.SUBSCHEMAS | check_schema_keywords.NAMED_SUBSCHEMAS | check_schema_keywords.VALUES
    | {"$ref", "description", "format", "discriminator", "title"}
)  # fmt: skip
hostile_texts = st.sampled_from(
    [CODE, f'"""\n{CODE}\n"""', f"\f{CODE} \\", "'", '"""', "\\", "str", "\uff53\uff54\uff52", "__doc__", "list", "AInput", "Any",
     "a", "b", "\x1b[2J", "\u202e", "coding: utf-7", "^a", "Literal", "P", "None", "class", "{x}", "{{x}}"]
)  # fmt: skip
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
references = st.sampled_from(
    ["#", "#/$defs/P", "#/$defs/Q", "#/properties/a", "#/default", "x.json", "http://127.0.0.1:1/x"]
)
leaf_schemas = st.one_of(
    st.booleans(),
    st.fixed_dictionaries(
        {"type": kinds},
        optional={"description": hostile_texts, "default": json_values(hostile_texts, hostile_texts)},
    ),
    st.fixed_dictionaries(
        {"$ref": references}, optional={"description": hostile_texts, "default": hostile_texts}
    ),
    st.fixed_dictionaries({"enum": st.lists(hostile_texts | st.integers(-3, 3) | st.none(), max_size=3)}),
    st.fixed_dictionaries({"type": st.just("string"), "pattern": hostile_texts}),
    st.fixed_dictionaries(
        {"type": st.just("string"), "format": st.sampled_from(sorted(check_schema_keywords.FORMATS))}
    ),
)
schemas = st.recursive(
    leaf_schemas,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(hostile_texts, inner, max_size=4)},
            optional={
                "required": st.lists(hostile_texts, max_size=3),
                "additionalProperties": inner,
                "description": hostile_texts,
                "patternProperties": st.dictionaries(hostile_texts, inner, max_size=2),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"default": json_values(hostile_texts, hostile_texts), "uniqueItems": st.booleans()},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("array"),
                "prefixItems": st.lists(inner, max_size=3),
                "minItems": st.integers(0, 3),
                "maxItems": st.integers(0, 3),
            }
        ),
        st.builds(
            lambda keyword, some: {keyword: some},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, max_size=3),
        ),
    ),
    max_leaves=8,
)
whole_schemas = st.builds(
    lambda schema, definitions: (schema if isinstance(schema, dict) else {}) | {"$defs": definitions},
    schemas,
    st.fixed_dictionaries(
        {"P": schemas, "Q": leaf_schemas}, optional={CODE: leaf_schemas, "str": schemas, "Client": schemas}
    ),
)
wild_schemas = st.dictionaries(
    st.sampled_from([*KEYWORDS, "x-python-type"]), json_values(st.sampled_from(KEYWORDS)), max_size=4
)
DISCOVERY = Discovery.model_validate(
    {
        "server": "some/1",
        "durability": "process",
        "capabilities": [],
        "limits": {},
        "heartbeat_ms": 1000,
        "endpoints": [],
    }
)


@pytest.mark.heavy
@fuzzed(15)
def test_a_module_for_any_schema_runs_no_code_of_the_server(fuzz):
    pytest.importorskip("datamodel_code_generator", reason="not installed: pip install '.[codegen]'")

    @fuzz(whole_schemas | wild_schemas, hostile_texts)
    def check(schema, name):
        described = EndpointDescription.model_validate(endpoint(name) | {"input_schema": schema})
        try:
            made = codegen.module("http://a", DISCOVERY, [described])
        except ValueError:
            return
        module = types.ModuleType("fuzzed_module")
        sys.modules[module.__name__] = module
        try:
            with warnings.catch_warnings(action="ignore"):
                exec(compile(made.encode(), "fuzzed.py", "exec"), module.__dict__)
        except (pydantic.PydanticUserError, pydantic_core.SchemaError, TypeError, NameError, AttributeError):
            pass  # A schema without meaning, such as a reference to itself, or an invalid pattern.
        except ImportError as error:
            # pydantic needs one more package for the format `email`.
            if "email-validator" not in str(error):
                raise
        finally:
            del sys.modules[module.__name__]
        assert not builtins.__dict__.pop("tidewire_was_hacked", False), made


@fuzzed(20)
def test_any_description_is_shown(fuzz):
    @fuzz(whole_schemas | wild_schemas, wild_schemas, hostile_texts | texts)
    def check(schema, value_schema, text):
        described = EndpointDescription.model_validate(
            endpoint(text)
            | {"input_schema": schema, "value_schema": value_schema, "description": text, "examples": [text]}
        )
        console = Console(file=io.StringIO(), width=1 + len(text))
        for line in describe_endpoint(described, "http://a", show_all=len(text) % 2 == 0):
            console.print(line)
        with contextlib.suppress(strict_json.StrictJsonError):
            parse_word(text, member_schema(text, schema), schema)


@fuzzed(40)
def test_no_control_character_stays(fuzz):
    @fuzz(st.text() | hostile_texts, json_values())
    def check(text, value):
        shown = visible(text)
        assert visible(shown) == shown
        assert all(sign.isprintable() or sign in "\n\t" or ord(sign) > 0x9F for sign in shown)
        assume(value == value)  # noqa: PLR0124 - NaN
        written = visible_json(value)
        assert visible(written) == written
        assert json.loads(written) == value or "NaN" in written
