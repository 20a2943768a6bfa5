"""`tidewire codegen`: a Python module from what a server says of its endpoints.

datamodel-code-generator makes the models; what is here gives it the schemas as one document, whose names are settled
before, and writes the two classes below the models that let an editor complete `client.submit(…)`.

  an endpoint's schema              | its type in the module
  ----------------------------------+----------------------------------------------------------------------------------
  an object with members            | a pydantic model, `TalkInput` or `TalkValue`
  anything else                     | a type alias of that name, such as `list[Point]`
  none: `{}`                        | a type alias of that name for `JsonValue`
  one of its `$defs`                | a model of that name; where two that differ share it, the endpoint's name is added

What a server says is not trusted: it stands in the module as names, literals and docstrings, never as code.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidewire.protocol.resources import Discovery, EndpointDescription

IMPORTS: Final = (
    "collections.abc.Iterable",
    "collections.abc.Iterator",
    "pydantic.JsonValue",
    "pydantic.TypeAdapter",
    "tidewire.AsyncBatchJob",
    "tidewire.AsyncClient",
    "tidewire.AsyncJob",
    "tidewire.BatchJob",
    "tidewire.Client",
    "tidewire.Job",
    "tidewire.jobs.map_iterator.AsyncMap",
    "typing.Any",
    "typing.Final",
    "typing.Literal",
    "typing.overload",
)
"""Names that the two classes below the models use. No model may have one of them, nor a name of a class below."""

_POINTER: Final = re.compile(r"#/(?:\$defs|definitions)/([^/]+)(/.*)?")
_MEMBERS: Final = frozenset({"properties", "patternProperties"})
"""Keywords below which stand names of the server's, and their schemas."""
_DATA: Final = frozenset({"const", "default", "enum", "examples"})
"""Keywords below which stand values, and no schemas."""
_SYNC, _ASYNC = "TypedClient", "TypedAsyncClient"
_OURS: Final = {_SYNC, _ASYNC, "BaseModel", "Model"}


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """An endpoint, and the names of its types in the module."""

    name: str
    batches: bool
    input: str
    value: str


def module(url: str, discovery: Discovery, endpoints: Iterable[EndpointDescription]) -> str:
    """The module's text, the same for the same server.

    Args:
        url: Where the server is, without credentials.
        discovery: What it says of itself.
        endpoints: Those that are to stand in the module.

    Raises:
        ImportError: datamodel-code-generator is not installed.
        ValueError: There is no endpoint, or a schema is none that models can be made of.
    """
    names, stems = _Names({one.rpartition(".")[2] for one in IMPORTS} | _OURS), _Names(set())
    found: list[_Endpoint] = []
    schemas: dict[str, Any] = {}
    without: list[str] = []
    described = sorted(endpoints, key=lambda each: each.name)
    for each in described:
        root, types = stems.fresh(_camel(each.name)), []
        for part, schema in (("Input", each.input_schema), ("Value", each.value_schema)):
            type_ = names.fresh(root + part)
            types.append(type_)
            schemas[type_] = schema
            without += [] if schema else [type_]
        found.append(_Endpoint(each.name, each.capabilities.batch is not None, *types))
    if not found:
        raise ValueError("this server has no endpoint to make a module of")
    header = (
        f"# Made by `tidewire codegen {_line(url)}` from what {_line(discovery.server)} says of itself"
        f" ({_line(discovery.protocol)}).\n# Do not edit it: make it again."
    )
    glue = "".join(_glue(found))
    used = {*re.findall(r"\w+", glue), *(["JsonValue"] if without else [])}
    imports = [one for one in IMPORTS if one.rpartition(".")[2] in used]
    text = _models(_document(schemas, names), header, imports)
    for name in without:
        text = text.replace(f'TypeAliasType("{name}", Any)', f'TypeAliasType("{name}", JsonValue)')
    whole = f"{text.rstrip()}\n\n{glue}"
    ast.parse(whole)
    return whole


# ---- names -------------------------------------------------------------------------------------------------------


class _Names:
    """Names of the module, each given once."""

    def __init__(self, given: set[str]) -> None:
        self._given = given

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._given:
            name, number = f"{wanted}{number}", number + 1
        self._given.add(name)
        return name


def _camel(name: str) -> str:
    """A name as that of a class: `max-tokens` is `MaxTokens`."""
    words = re.findall(r"[A-Za-z0-9]+", name)
    joined = "".join(word[:1].upper() + word[1:] for word in words)
    return joined if joined[:1].isalpha() else f"Endpoint{joined}"


def _line(text: str) -> str:
    """A text of the server's, in one line of a comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)[:200]


# ---- models ------------------------------------------------------------------------------------------------------


def _document(schemas: dict[str, Any], names: _Names) -> dict[str, Any]:
    """All schemas side by side, with the definitions that they brought along: no name stands for two of them."""
    components: dict[str, Any] = {}
    shared: dict[tuple[str, str], str] = {}
    for root, schema in schemas.items():
        definitions = {
            name: content
            for place in ("$defs", "definitions")
            for name, content in (schema.get(place) or {}).items()
        }
        told = json.dumps(definitions, sort_keys=True)
        known = {}
        for name in definitions:
            # Definitions refer to each other: they are the same where all that came with them is.
            if (name, told) not in shared:
                shared[name, told] = names.fresh(_camel(name))
            known[name] = shared[name, told]
        for name, content in definitions.items():
            components[known[name]] = _moved(content, root, known)
        body = {key: value for key, value in schema.items() if key not in {"$defs", "definitions"}}
        components[root] = _moved(body, root, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "", "version": ""},
        "paths": {},
        "components": {"schemas": components},
    }


def _moved(schema: Any, root: str, known: dict[str, str]) -> Any:
    """A schema whose references point to where the definitions now stand."""
    if isinstance(schema, list):
        return [_moved(each, root, known) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MEMBERS and isinstance(value, dict):
            moved[key] = {name: _moved(each, root, known) for name, each in value.items()}
        elif key != "title":
            moved[key] = value if key in _DATA else _moved(value, root, known)
    if isinstance(reference := schema.get("$ref"), str):
        moved["$ref"] = _pointed(reference, root, known)
    return moved


def _pointed(reference: str, root: str, known: dict[str, str]) -> str:
    place = _POINTER.fullmatch(reference)
    if place is not None and place[1] in known:
        return f"#/components/schemas/{known[place[1]]}{place[2] or ''}"
    if place is None and (reference == "#" or reference.startswith("#/")):
        return f"#/components/schemas/{root}{reference[1:]}"
    # One that leads elsewhere is never followed: it would have this machine ask for what a server names.
    raise ValueError(f"the schema of {root} refers to {reference!r}, which is not in it")


def _models(document: dict[str, Any], header: str, imports: list[str]) -> str:
    import datamodel_code_generator as generator  # noqa: PLC0415 - an extra, and it takes a second
    from datamodel_code_generator.enums import DataModelType  # noqa: PLC0415

    try:
        text = generator.generate(
            json.dumps(document),
            input_file_type=generator.InputFileType.OpenAPI,
            output_model_type=DataModelType.PydanticV2BaseModel,
            target_python_version=generator.PythonVersion.PY_311,
            custom_file_header=header,
            additional_imports=imports,
            allow_population_by_field_name=True,
            disable_timestamp=True,
            enum_field_as_literal=generator.LiteralType.All,
            formatters=[generator.Formatter.BUILTIN],
            strict_nullable=True,
            use_annotated=True,
            use_schema_description=True,
            use_standard_collections=True,
            use_type_alias=True,
            use_union_operator=True,
        )
    except generator.Error as error:
        raise ValueError(f"no models can be made of this server's schemas: {error}") from None
    if not isinstance(text, str):
        raise ValueError("no models can be made of this server's schemas")  # noqa: TRY004 - the server's fault
    return text


# ---- the two classes ---------------------------------------------------------------------------------------------

# name, its argument, what comes back: blocking and async, whether it is awaited
_METHODS: Final = (
    ("submit", "input: {input}", "Job[{value}]", "AsyncJob[{value}]", True),
    ("run", "input: {input}", "{value}", "{value}", True),
    ("submit_batch", "inputs: Iterable[{input}]", "BatchJob[{value}]", "AsyncBatchJob[{value}]", True),
    ("map", "inputs: Iterable[{input}]", "Iterator[{value}]", "AsyncMap[{value}]", False),
)

_PLAIN: Final = '''

def _plain(endpoint: str, value: Any) -> Any:
    """An input as JSON, without what was not set."""
    return _INPUTS[endpoint].dump_python(value, mode="json", by_alias=True, exclude_unset=True)
'''


def _glue(endpoints: Sequence[_Endpoint]) -> Iterator[str]:
    for name, part in (("_INPUTS", "input"), ("_VALUES", "value")):
        yield f"\n{name}: Final[dict[str, TypeAdapter[Any]]] = {{\n"
        for each in endpoints:
            yield f"    {each.name!r}: TypeAdapter({getattr(each, part)}),\n"
        yield "}\n"
    yield _PLAIN
    yield from _class(_SYNC, "Client", endpoints)
    yield from _class(_ASYNC, "AsyncClient", endpoints)


def _class(name: str, client: str, endpoints: Sequence[_Endpoint]) -> Iterator[str]:
    yield f'\n\nclass {name}:\n    """The endpoints of this server by their types, over a `{client}`."""\n'
    yield f"\n    def __init__(self, client: {client}) -> None:\n        self.client = client\n"
    waits = client == "AsyncClient"
    for method, argument, blocking, later, awaited in _METHODS:
        having = [each for each in endpoints if each.batches or method != "submit_batch"]
        define = "async def" if waits and awaited else "def"
        result = later if waits else blocking
        signatures = [
            f"    {define} {method}(self, endpoint: Literal[{each.name!r}], {_of(argument, each)}, /)"
            f" -> {_of(result, each)}:"
            for each in having
        ]
        if len(signatures) > 1:
            yield from (f"\n    @overload\n{signature} ...\n" for signature in signatures)
            yield f"\n    {define} {method}(self, endpoint: str, {argument.partition(':')[0]}: Any, /) -> Any:\n"
        elif signatures:
            yield f"\n{signatures[0]}\n"
        else:
            continue
        given = (
            "_plain(endpoint, input)"
            if argument.startswith("input:")
            else "(_plain(endpoint, each) for each in inputs)"
        )
        call = f"self.client.{method}(endpoint, {given}, returns=_VALUES[endpoint])"
        yield f"        return {'await ' if waits and awaited else ''}{call}\n"


def _of(form: str, endpoint: _Endpoint) -> str:
    return form.format(input=endpoint.input, value=endpoint.value)
