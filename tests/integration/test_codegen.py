"""Modules that `tidewire codegen` writes for arbitrary endpoint names and schemas."""

import subprocess
import sys
import types
from datetime import timedelta
from pathlib import Path

import pytest
import typer.testing
from pydantic import TypeAdapter, ValidationError

from support.sample_server import sentence, served
from tidewire import AsyncClient, Binary, Client
from tidewire.commands import cli
from tidewire.commands.codegen import typed_module as codegen
from tidewire.errors import InvalidInputError
from tidewire.install_command import install_command
from tidewire.protocol.resources import Discovery, EndpointDescription
from tidewire.testing import FakeServer

TYPED = Path(__file__).parents[1] / "typing" / "generated_module.py"
"""The type-checked module for the server of `served`. The command in `WRITE` regenerates it."""
TYPED_ONE = TYPED.with_name("generated_module_of_one_endpoint.py")
"""The type-checked module for a server with one endpoint."""
WRITE = "PYTHONPATH=tests:. python tests/integration/test_codegen.py"

pytest.importorskip("datamodel_code_generator", reason="not installed: pip install '.[codegen]'")

OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def described(name, input_schema=OBJECT, value_schema=None, **members):
    return EndpointDescription.model_validate(
        {
            "name": name,
            "input_schema": input_schema,
            "value_schema": {} if value_schema is None else value_schema,
            "capabilities": {"streams": True},
            **members,
        }
    )


def discovery(server="some/1"):
    return Discovery.model_validate(
        {
            "server": server,
            "durability": "process",
            "capabilities": [],
            "limits": {},
            "heartbeat_ms": 1000,
            "endpoints": [],
        }
    )


def generated(*endpoints, server="some/1"):
    """Generate the module and execute it."""
    text = codegen.module("http://127.0.0.1:8000", discovery(server), endpoints)
    module = types.ModuleType("generated")
    sys.modules["generated"] = module
    exec(compile(text, "made.py", "exec"), module.__dict__)
    return module


def adapter(module, name):
    return TypeAdapter(getattr(module, name))


def test_endpoint_names_that_are_not_identifiers_get_type_names():
    module = generated(described("max-tokens"), described("max_tokens"), described("3d"), described("…"))
    assert adapter(module, "MaxTokensInput").validate_python({"x": 1}).x == 1
    for name in ("MaxTokens2Input", "Endpoint3dInput", "EndpointInput"):
        assert hasattr(module, name)
    assert set(module._INPUTS) == {"max-tokens", "max_tokens", "3d", "…"}


def test_base64_is_typed_as_binary():
    picture = TypeAdapter(Binary).json_schema()
    content = {
        "type": "object",
        "properties": {
            "content": picture | {"description": "a picture"},
            "mask": {"anyOf": [picture, {"type": "null"}], "default": None},
            "encoded": {"type": "string", "contentEncoding": "base64", "maxLength": 8},
            "text": picture | {"default": "YQ=="},
        },
        "required": ["content"],
    }
    module = generated(
        described("binary", content, {"type": "array", "items": picture}), described("copy", picture, picture)
    )
    data = adapter(module, "BinaryInput").validate_python({"content": "/w==", "encoded": b"\xfe"})
    assert (data.content, data.mask, data.encoded, data.text) == (b"\xff", None, b"\xfe", "YQ==")
    assert module._plain("binary", data) == {"content": "/w==", "encoded": "/g=="}
    assert adapter(module, "BinaryValue").validate_python(["/w=="]) == [b"\xff"]
    assert module._plain("copy", b"\xff") == "/w=="


def test_a_member_with_a_format_and_a_default_is_a_text():
    """The default in the schema is a text, which would be no valid default of the type for the format."""
    wait = {"type": "string", "format": "duration"}
    members = {
        "wait": wait | {"default": "PT3S"},
        "folder": {"anyOf": [{"type": "string", "format": "path"}, {"type": "null"}], "default": "/x"},
        "pause": {"anyOf": [wait, {"type": "null"}], "default": None},
    }
    module = generated(described("types", {"type": "object", "properties": members}))
    made = module.TypesInput()
    assert (made.wait, made.folder, made.pause) == ("PT3S", "/x", None)
    annotations = {name: field.annotation for name, field in module.TypesInput.model_fields.items()}
    assert annotations == {"wait": str, "folder": str | None, "pause": timedelta | None}
    assert adapter(module, "TypesInput").validate_python({"pause": "PT1S"}).pause == timedelta(seconds=1)


def test_an_endpoint_without_schemas_accepts_and_returns_any_json():
    module = generated(described("any", {}, {}))
    for value in (1, None, {"a": [1.5, "x"]}):
        assert adapter(module, "AnyInput").validate_python(value) == value
        assert adapter(module, "AnyValue").validate_python(value) == value


def test_schemas_other_than_objects_become_their_types():
    module = generated(
        described("words", {"type": "array", "items": {"type": "string"}}, {"enum": ["a", "b"]})
    )
    assert adapter(module, "WordsInput").validate_python(["a"]) == ["a"]
    with pytest.raises(ValidationError):
        adapter(module, "WordsInput").validate_python([1])
    with pytest.raises(ValidationError):
        adapter(module, "WordsValue").validate_python("c")


def test_different_definitions_of_one_name_stay_separate_and_equal_ones_are_shared():
    def having(kind):
        point = {"type": "object", "properties": {"at": {"type": kind}}, "required": ["at"]}
        return {"type": "object", "properties": {"p": {"$ref": "#/$defs/Point"}}, "$defs": {"Point": point}}

    module = generated(
        described("a", having("integer")), described("b", having("string")), described("c", having("string"))
    )
    assert adapter(module, "AInput").validate_python({"p": {"at": 1}}).p.at == 1
    assert adapter(module, "BInput").validate_python({"p": {"at": "x"}}).p.at == "x"
    assert hasattr(module, "Point2")
    assert not hasattr(module, "Point3")


def test_a_definition_does_not_take_the_type_name_of_an_endpoint():
    inner = {"type": "object", "properties": {"q": {"type": "integer"}}}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/TalkInput"}},
        "$defs": {"TalkInput": inner},
    }
    module = generated(described("talk", schema), described("client"), described("job"))
    assert adapter(module, "TalkInput").validate_python({"a": {"q": 1}}).a.q == 1
    assert module.Client is Client


def test_a_recursive_schema_becomes_a_recursive_type():
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    module = generated(described("tree", tree, tree))
    assert adapter(module, "TreeInput").validate_python({"kids": [{"kids": []}]}).kids[0].kids == []


def test_member_names_and_schema_like_defaults_are_preserved():
    schema = {
        "type": "object",
        "properties": {
            "max-tokens": {"type": "integer"},
            "class": {"type": "string"},
            "title": {"type": "object", "default": {"title": "t", "$ref": "elsewhere"}},
        },
    }
    module = generated(described("say", schema))
    instance = module.SayInput(max_tokens=3)
    assert module._plain("say", instance) == {"max-tokens": 3}
    assert adapter(module, "SayInput").validate_python({"class": "c"}).class_ == "c"


def test_the_tag_of_a_union_is_a_required_member_of_an_input():
    """The default of an unset member is not sent, and without the tag the server reads the object as the first branch."""
    pets = {
        name: {
            "type": "object",
            "properties": {"kind": {"const": name, "default": name}, "name": {"type": "string"}},
            "required": ["name"],
        }
        for name in ("Cat", "Dog")
    }
    branches = [{"$ref": f"#/$defs/{name}"} for name in pets]
    pet = {"type": "object", "properties": {"pet": {"anyOf": branches}}, "$defs": pets}
    module = generated(described("pet", pet, pet))
    with pytest.raises(ValidationError, match="kind"):
        module.Dog(name="Rex")
    rex = module.PetInput(pet=module.Dog(kind="Dog", name="Rex"))
    assert module._plain("pet", rex) == {"pet": {"kind": "Dog", "name": "Rex"}}
    assert adapter(module, "PetValue").validate_python({"pet": {"name": "Rex"}}).pet.kind == "Cat"


def test_a_nan_in_a_model_is_refused_and_not_sent_as_null():
    module = generated(described("mean", {"type": "object", "properties": {"of": {}}}))
    with FakeServer() as server:
        server.endpoint("mean").returns(1)
        with (
            Client(server.url) as client,
            pytest.raises(InvalidInputError, match=r"'/input/of/1': nan is not"),
        ):
            module.TypedClient(client).run("mean", module.MeanInput(of=[1.5, float("nan")]))
        assert server.submits == []


def test_unset_members_are_not_sent():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 3}},
    }
    module = generated(described("say", schema, {"type": "string"}))
    with FakeServer() as server:
        server.endpoint("say").returns("hello")
        with Client(server.url) as client:
            assert module.TypedClient(client).run("say", module.SayInput(a="x")) == "hello"
        assert server.submits[0].input == {"a": "x"}


def test_an_external_reference_raises_and_is_not_followed():
    with pytest.raises(ValueError, match=r"'\$ref' with 'http://127.0.0.1:1/s.json'"):
        generated(described("a", {"properties": {"p": {"$ref": "http://127.0.0.1:1/s.json"}}}))


def test_a_server_without_endpoints_raises():
    with pytest.raises(ValueError, match="no endpoint"):
        generated()


HOSTILE = '"""\nraise SystemExit(3)\n"""\\" \'\'\'\nraise SystemExit(4)\n# {x} \\'


@pytest.mark.parametrize(
    "where", ["server", "name", "description", "member", "default", "definition", "pattern"]
)
def test_text_from_the_server_is_never_executed(where):
    schema = {"type": "object", "description": "d", "properties": {"x": {"type": "string"}}}
    server, name = "some/1", "say"
    match where:
        case "server":
            server = HOSTILE
        case "name":
            name = HOSTILE
        case "description":
            schema["description"] = schema["properties"]["x"]["description"] = HOSTILE
        case "member":
            schema["properties"][HOSTILE] = {"type": "integer"}
        case "default":
            schema["properties"]["x"]["default"] = HOSTILE
        case "definition":
            schema["$defs"] = {HOSTILE: {"enum": [HOSTILE]}}
            schema["properties"]["y"] = {"$ref": f"#/$defs/{HOSTILE}"}
        case "pattern":
            schema["properties"]["x"]["pattern"] = HOSTILE.rstrip("\\")
    try:
        module = generated(described(name, schema), server=server)
    except (ValueError, SyntaxError, KeyError):
        return
    assert hasattr(module, "TypedClient")


# ---- against a real server ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url():
    with served() as url:
        yield url


def module_of(url):
    with Client(url) as client:
        found = client.discover()
        descriptions = [client.describe(name) for name in ("talk", "point", "double")]
    return codegen.module("http://127.0.0.1:8000", found, descriptions)


def module_of_one_endpoint():
    pair = {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
        "default": [1, "é"],
    }
    members = {
        "to": pair,
        "from": pair | {"description": "two\nlines"},
        "all": {"type": "array", "default": [1]},
    }
    value = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
    near = described(
        "near",
        {"type": "object", "properties": members},
        value,
        capabilities={"streams": True, "batch": {"max_items": 8}},
    )
    return codegen.module("http://127.0.0.1:8000", discovery(), [near])


def test_the_type_checked_modules_equal_the_generated_ones(url):
    assert TYPED.read_text() == module_of(url), f"run: {WRITE}"
    assert TYPED_ONE.read_text() == module_of_one_endpoint(), f"run: {WRITE}"


def test_the_command_writes_a_module_that_runs_jobs(url, tmp_path, monkeypatch):
    path = tmp_path / "gpu.py"
    command = ["codegen", url, "-o", str(path), "--endpoint", "point", "--endpoint", "talk"]
    result = typer.testing.CliRunner().invoke(cli.app, command)
    assert (result.exit_code, result.output) == (0, "")
    assert path.read_text().startswith(
        f"# Generated by `tidewire codegen {url}` from the endpoint descriptions of tidewire_server/"
    )
    printed = typer.testing.CliRunner().invoke(cli.app, ["codegen", url, *command[4:]])
    assert printed.output == path.read_text()

    monkeypatch.syspath_prepend(tmp_path)
    import gpu

    with Client(url) as client:
        typed = gpu.TypedClient(client)
        assert typed.run("point", gpu.PointInput(x=2)).label == "at 2"
        assert [update.parse() for update in typed.submit("talk", gpu.TalkInput(words=3))][-1] == sentence(3)
        assert [one.x for one in typed.submit_batch("point", [gpu.PointInput(x=1)]).results()] == [1]
        assert [one.x for one in typed.map("point", map(gpu.PointInput, ()))] == []
        assert [one.x for one in typed.map("point", (gpu.PointInput(x=x) for x in range(3)))] == [0, 1, 2]
        resumed = tmp_path / "points.jsonl"
        for _ in range(2):
            points = [gpu.PointInput(x=4), gpu.PointInput(x=5)]
            assert [one.x for one in typed.map("point", points, resume_file=resumed)] == [4, 5]
        assert resumed.read_text().count('"line":"submit"') == 1


@pytest.mark.anyio
async def test_the_generated_async_client_runs_jobs(url):
    module = types.ModuleType("typed")
    sys.modules["typed"] = module
    exec(TYPED.read_text(), module.__dict__)
    async with AsyncClient(url) as client:
        typed = module.TypedAsyncClient(client)
        assert await typed.run("double", module.DoubleInput(x=2)) == 4
        batch = await typed.submit_batch("double", [module.DoubleInput(x=3)])
        assert await batch.results() == [6]
        assert [one async for one in typed.map("double", [module.DoubleInput(x=4)])] == [8]


def test_an_unknown_endpoint_and_an_unwritable_file_exit_with_2(url, tmp_path):
    runner = typer.testing.CliRunner()
    missing = runner.invoke(cli.app, ["codegen", url, "--endpoint", "nope"])
    assert (missing.exit_code, "nope" in missing.output) == (2, True)
    unwritable = runner.invoke(cli.app, ["codegen", url, "--endpoint", "talk", "-o", str(tmp_path)])
    assert (unwritable.exit_code, str(tmp_path) in unwritable.output.replace("\n", "")) == (2, True)


def test_without_the_generator_the_command_prints_how_to_install_it(url):
    hidden = "import sys; sys.modules['datamodel_code_generator'] = None; from tidewire.commands.cli import app; app()"
    command = [sys.executable, "-c", hidden, "codegen", url, "--endpoint", "talk"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert install_command("codegen") in ended.stderr


if __name__ == "__main__":
    with served() as at:
        TYPED.write_text(module_of(at))
        TYPED_ONE.write_text(module_of_one_endpoint())
