"""`tidewire codegen` with schemas that try to run code, read files or contact hosts."""

import contextlib
import http.server
import json
import sys
import threading
import types

import pydantic_core
import pytest
import typer.testing

pytest.importorskip("datamodel_code_generator", reason="not installed: pip install '.[codegen]'")

from tidewire import Client
from tidewire.commands import cli
from tidewire.commands.codegen import check_schema_keywords, generated_code
from tidewire.commands.codegen import typed_module as codegen
from tidewire.errors import EndpointNotFoundError
from tidewire.protocol.resources import Discovery, EndpointDescription
from tidewire.testing import FakeServer

CODE = "__import__('builtins').__dict__.update(tidewire_was_hacked=True)"
"""Code that leaves a mark when it runs."""
OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.fixture(autouse=True)
def mark():
    yield
    import builtins

    assert not builtins.__dict__.pop("tidewire_was_hacked", False), "the server's code was executed"


def discovery(names=("a",), server="some/1"):
    return {
        "protocol": "tidewire/1",
        "server": server,
        "durability": "process",
        "capabilities": [],
        "limits": {},
        "heartbeat_ms": 1000,
        "endpoints": [{"name": name, "href": f"/v1/endpoints/{name}"} for name in names],
    }


def description(schema, name="a", value_schema=None):
    return {
        "name": name,
        "input_schema": schema,
        "value_schema": value_schema or {},
        "capabilities": {"streams": True},
    }


def generate(schema, name="a", server="some/1"):
    return codegen.module(
        "http://127.0.0.1:1",
        Discovery.model_validate(discovery(server=server)),
        [EndpointDescription.model_validate(description(schema, name))],
    )


def run(text):
    """Import a generated module from its bytes, as Python does it, and build all of its types."""
    module = types.ModuleType("generated_by_hostile_server")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text.encode(), "generated.py", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def member(**keywords):
    return {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", **keywords}}}


# ---- keywords ----------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_docstring_with_code_that_a_keyword_names_as_annotation_is_rejected():
    schema = member(**{"x-python-type": "__doc__"}) | {"description": f"\f{CODE} \\"}
    with pytest.raises(check_schema_keywords.SchemaError) as caught:
        generate(schema)
    message = "the input schema of the endpoint 'a' has the keyword 'x-python-type'"
    assert str(caught.value).startswith(message)
    assert "at the JSON pointer '/properties/a'" in str(caught.value)
    assert hasattr(run(generate(member() | {"description": f"\f{CODE} \\"})), "AInput")


@pytest.mark.parametrize(
    "keyword",
    ["x-python-type", "x-python-import", "customTypePath", "customBasePath", "$dynamicRef", "$anchor"],
)
@pytest.mark.parametrize(
    "place",
    [
        lambda inner: inner,
        lambda inner: {"properties": {"title": inner}},
        lambda inner: {"$defs": {"P": {"$defs": {"Q": inner}}}},
        lambda inner: {"definitions": {"P": {"items": inner}}},
        lambda inner: {"items": {"anyOf": [{"type": "null"}, inner]}},
        lambda inner: {"properties": {"p": {"$ref": "#/$defs/P", **inner}}, "$defs": {"P": {}}},
        lambda inner: {"patternProperties": {"^a": {"prefixItems": [{"not": inner}]}}},
        lambda inner: {"additionalProperties": {"if": {"then": {"dependentSchemas": {"x": inner}}}}},
    ],
)
def test_keywords_that_json_schema_does_not_have_are_rejected_at_every_depth(keyword, place):
    with pytest.raises(
        check_schema_keywords.SchemaError, match=r"has the keyword '.+' at the JSON pointer|has the keyword"
    ):
        generate(place({keyword: "antigravity.X"}))


def test_annotations_and_unknown_formats_are_dropped():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/a.json",
        "$comment": CODE,
        "title": CODE,
        "type": "object",
        "properties": {"a": {"type": "string", "format": "ulid", "title": CODE, "readOnly": True}},
    }
    assert run(generate(schema)).AInput(a="x").a == "x"


@pytest.mark.parametrize("keyword", ["minItems", "maxItems"])
def test_a_tuple_has_a_maximum_size(keyword):
    def schema(size):
        return {"type": "array", "prefixItems": [{"type": "integer"}], "minItems": 1000, "maxItems": 1000} | {
            keyword: size
        }

    assert hasattr(run(generate(schema(1000))), "AInput")
    for size in (1001, 10**9, 1e9):
        with pytest.raises(
            check_schema_keywords.SchemaError,
            match=f"has the keyword '{keyword}' above 1000 next to 'prefixItems'",
        ):
            generate(schema(size))


# ---- references --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference",
    [
        "http://127.0.0.1:1/s.json",
        "file:///etc/passwd",
        "s.json",
        "s.json#/a",
        "//127.0.0.1:1/s.json",
        "#/properties/a/default",
        "#/properties/b%2Fdefault",
        "#/properties/b~1default",
        "#/properties/../properties/a",
        "#/$defs/none",
        "#anchor",
        "",
        {"$ref": "#"},
        7,
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "discriminator"])
def test_references_to_anything_but_a_subschema_are_rejected(reference, keyword):
    value = reference if keyword == "$ref" else {"propertyName": "k", "mapping": {"a": reference}}
    schema = {
        "properties": {
            "a": {"default": {"x-python-type": "os.PathLike"}},
            "b/default": {},
            "b%2Fdefault": {},
            "r": {keyword: value},
        }
    }
    with pytest.raises(check_schema_keywords.SchemaError, match=r"which is not a subschema.*'/properties/r'"):
        generate(schema)


def test_references_within_the_schema_are_resolved():
    cat, dog = ({"properties": {"kind": {"type": "string"}}, "required": ["kind"]} for _ in range(2))
    schema = {
        "type": "object",
        "properties": {
            "tree": {"type": "array", "items": {"$ref": "#"}},
            "same": {"$ref": "#/properties/tree"},
            "pet": {
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {"c": "#/$defs/Cat", "d": "#/$defs/Dog"},
                },
            },
        },
        "$defs": {"Cat": cat, "Dog": dog},
    }
    module = run(generate(schema))
    made = module.AInput.model_validate({"tree": [{"tree": []}], "pet": {"kind": "d"}})
    assert type(made.pet) is module.Dog
    assert made.tree[0].tree == []


# ---- texts -------------------------------------------------------------------------------------------------------

TEXTS = [
    f'"""\n{CODE}\n"""',
    f"'''\n{CODE}\n'''",
    f'\\"""\n{CODE}\n"""\\',
    f"\\N{{DIGIT ONE}}\\u000a{CODE}\\",
    f"\r\f\v\x85\u2028{CODE}\n{CODE}",
    f"'); {CODE} #",
    f'"); {CODE} #',
    f"{{{{{CODE}}}}}{{% {CODE} %}}",
    f"#\n{CODE}",
    "coding: utf-7 +AAo-" + CODE,
    "# -*- coding: unicode_escape -*- \\u000a" + CODE,
    "__import__",
    "__doc__",
    "\u202e\x1b]0;x\x07\x9b2J",
    "\uff53\uff54\uff52",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_text_is_never_executed(text):
    schema = {
        "type": "object",
        "description": text,
        "required": [text],
        "properties": {
            "m": {"type": "string", "description": text, "default": text, "examples": [text], "title": text},
            text: {"const": text, "default": text},
            "e": {"enum": [text, 1]},
            "p": {"type": "object", "patternProperties": {text: {"type": "integer"}}},
            "q": {"type": "string", "pattern": text},
            "d": {"type": "object", "default": {text: [text]}},
            "c": {"type": "string", "contentEncoding": text, "contentMediaType": text, "format": text},
        },
        "$defs": {text: {"type": "object", "description": text, "properties": {text: {"type": "string"}}}},
    }
    members = schema["properties"]
    for chosen in (
        schema | {"properties": {name: members[name] for name in ("m", "e", "d")}, "$defs": {}},
        {"type": "object", "properties": {text: members[text], "c": members["c"]}, "$defs": schema["$defs"]},
        {"type": "object", "properties": {"p": members["p"]}},
        {"type": "object", "properties": {"q": members["q"]}},
    ):
        try:
            made = generate(chosen, name=text, server=text)
        except ValueError:
            continue
        assert not any(ord(sign) in {0x0C, 0x1B, 0x7F, 0x85, 0x9B, 0x202E} for sign in made)
        with contextlib.suppress(pydantic_core.SchemaError):  # such as an invalid pattern
            assert hasattr(run(made), "TypedClient")


@pytest.mark.parametrize(
    "name",
    ["str", "list", "int", "Any", "Literal", "Annotated", "Field", "AInput", "P", "BaseModel", "ConfigDict", "Final",
     "model_config", "__annotations__", "__class__", "__init__", "_INPUTS", "TypedClient", "None"],
)  # fmt: skip
def test_a_member_with_the_name_of_a_type_does_not_make_its_default_an_annotation(name):
    """pydantic evaluates an annotation whose value is a string, and looks names up among the members of the class."""
    schema = {
        "type": "object",
        "required": ["s", "i", "l", "r", "p", "w", "k", "y"],
        "properties": {
            name: {"type": "string", "default": CODE},
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "l": {"type": "array", "items": {"type": "string"}},
            "r": {"$ref": "#"},
            "p": {"$ref": "#/$defs/P"},
            "w": {},
            "k": {"enum": ["a"]},
            "y": {"type": "string", "minLength": 3},
        },
        "$defs": {"P": {"type": "object", "properties": {name: {"type": "string", "default": CODE}}}},
    }
    assert hasattr(run(generate(schema)), "TypedClient")


def test_a_member_that_python_reads_as_the_name_of_a_type_is_rejected():
    """Python normalizes identifiers, so fullwidth letters spell `str`. The generator does not."""
    wide = "\uff53\uff54\uff52"
    schema = member() | {"properties": {wide: {"type": "string", "default": CODE}, "a": {"type": "string"}}}
    with pytest.raises(generated_code.UnexpectedCodeError, match="an annotation"):
        generate(schema)


# ---- the syntax tree ---------------------------------------------------------------------------------------------

HEAD = "from pydantic import BaseModel, Field\nfrom typing import Annotated, Literal\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "from os import PathLike",
        "from pydantic import ImportString",
        "from typing import *",
        "from . import x",
        CODE,
        f"x = {CODE}",
        f"x: {CODE} = 1",
        "def f(): pass",
        "@staticmethod\nclass A(BaseModel): pass",
        "class A(metaclass=print): pass",
        "class A(print): pass",
        "class A(Annotated): pass",
        f"class A(BaseModel):\n  {CODE}",
        f"class A(BaseModel):\n  a: int = {CODE}",
        f"class A(BaseModel):\n  a: {CODE}",
        f"class A(BaseModel):\n  a: {CODE!r}",
        f"class A(BaseModel):\n  a: list[{CODE!r}]",
        f"class A(BaseModel):\n  a: Annotated[int, {CODE}]",
        f"class A(BaseModel):\n  a: Annotated[int, Field({CODE})]",
        f"class A(BaseModel):\n  a: Annotated[int, Field(default_factory={CODE})]",
        "class A(BaseModel):\n  a: Annotated[int, Field(default_factory=breakpoint)]",
        f"class A(BaseModel):\n  a: Annotated[int, Field(**{CODE})]",
        f"class A(BaseModel):\n  a: Literal[{CODE}]",
        "class A(BaseModel):\n  a: __doc__",
        "class A(BaseModel):\n  a: __name__",
        f"class A(BaseModel):\n  str: str = {CODE!r}",
        f"class A(BaseModel):\n  str: int = {CODE!r}\n  b: list[str]",
        "class A(BaseModel):\n  __slots__: int = 1",
        "class A(BaseModel):\n  a: int = f'{1}'",
        "class A(BaseModel):\n  a: int = lambda: 1",
        "class A(BaseModel):\n  def f(self): pass",
        "class A(BaseModel):\n  model_config = {}",
        "class A(BaseModel):\n  x = 1",
        "class A(BaseModel): pass\nA.model_rebuild(force=True)",
        "class A(BaseModel): pass\nA.parse_file()",
        "BaseModel.model_rebuild()",
        "class A(BaseModel): pass\nclass A(BaseModel): pass",
        "class Field(BaseModel): pass",
        "class str(BaseModel): pass",
        "class _plain(BaseModel): pass",
        "# coding: utf-7",
        "x = 1 if",
    ],
)  # fmt: skip
def test_code_that_models_do_not_need_is_rejected(code):
    source = code if code.startswith("#") else HEAD + code
    with pytest.raises(ValueError, match="the generated module"):
        generated_code.check(source, ())


def test_a_bug_of_the_generator_writes_no_module(monkeypatch):
    import datamodel_code_generator

    monkeypatch.setattr(datamodel_code_generator, "generate", lambda *args, **members: f"{HEAD}{CODE}\n")
    with pytest.raises(generated_code.UnexpectedCodeError, match=r"in line 3: .*No module was written"):
        generate(OBJECT)


# ---- the command -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hostile_server(documents):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(documents[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def command(url, *arguments):
    return typer.testing.CliRunner().invoke(cli.app, ["codegen", url, *arguments])


def test_the_command_leaves_the_file_unchanged_after_a_hostile_schema(tmp_path):
    path = tmp_path / "gpu.py"
    path.write_text("before")
    documents = {
        "/v1": discovery(),
        "/v1/endpoints/a": description(member(**{"x-python-type": "__doc__"})),
    }
    with hostile_server(documents) as url:
        ended = command(url, "-o", str(path))
    assert (ended.exit_code, path.read_text()) == (2, "before")
    assert "the endpoint 'a' has the keyword 'x-python-type'" in ended.output


def test_an_endpoint_that_is_described_under_another_name_is_a_fault_of_the_server():
    with hostile_server({"/v1": discovery(), "/v1/endpoints/a": description(OBJECT, "b")}) as url:
        ended = command(url)
    assert ended.exit_code == 4
    assert "describes the endpoint 'a' under the name 'b'" in ended.output


def test_an_unknown_endpoint_gets_a_suggestion():
    with hostile_server({"/v1": discovery(["generate", "embed"])}) as url:
        near, far = command(url, "--endpoint", "genrate"), command(url, "--endpoint", "zzz")
    assert (near.exit_code, far.exit_code) == (2, 2)
    assert "no endpoint 'genrate'. Did you mean 'generate'?" in near.output
    assert "This server has: generate, embed." in far.output


# ---- calls through the module ------------------------------------------------------------------------------------


def test_a_call_with_an_unknown_endpoint_gets_a_suggestion():
    typed = run(generate(OBJECT, name="talk")).TypedClient(Client("http://127.0.0.1:1"))
    for call in (typed.submit, typed.run, typed.map):
        with pytest.raises(EndpointNotFoundError, match=r"without an endpoint 'tolk'. Did you mean 'talk'\?"):
            call("tolk", [])


def test_keys_and_shared_members_are_passed_on():
    module = run(generate(OBJECT | {"required": ["x"]}, name="talk"))
    with FakeServer() as server:
        server.endpoint("talk").returns("hello")
        with Client(server.url) as client:
            typed = module.TypedClient(client)
            assert typed.run("talk", module.TalkInput(x=1), idempotency_key="k1") == "hello"
            assert typed.submit("talk", module.TalkInput(x=1), idempotency_key="k2").result() == "hello"
            mapped = typed.map("talk", [module.TalkInput(x=1)], idempotency_key="k3", shared={"y": 2})
            assert [*mapped] == ["hello"]
        sent = server.submits
        assert [one.idempotency_key for one in sent[:2]] == ["k1", "k2"]
        assert sent[2].input == {"x": 1, "y": 2}
