"""Text of `tidewire describe`: the endpoints of a server, or the input and the value of one endpoint.

By default, each endpoint and each member takes one line, which is cut at the width of the terminal. With `--all`, nothing
is cut, and limits, capabilities and descriptions are added. Text from the server is wrapped in `Text` objects, because
rich would interpret plain strings as markup.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tidewire.commands.job_tables import server_text
from tidewire.commands.server_url import command_line
from tidewire.inputs.input_words import resolved, words_for_required_members, words_of
from tidewire.protocol.resources import Discovery, EndpointDescription
from tidewire.terminal_escapes import visible, visible_json

DURABILITY: Final = {
    "process": "jobs are lost when the server stops",
    "host": "jobs survive a restart of the server",
    "replicated": "jobs survive the loss of a machine",
}
_MAX_EXAMPLES: Final = 2
_MAX_DEPTH: Final = 3
_MAX_CELL: Final = 24
"""Maximum width of the middle columns of a table, in terminal cells."""


def describe_server(discovery: Discovery, url: str, *, show_all: bool) -> Iterator[RenderableType]:
    """Yield the parts of the text that describes a server: its name, its endpoints and, with `show_all`, its limits."""
    yield server_text(f"{discovery.server} at {url}", "bold")
    yield Text(DURABILITY[discovery.durability])
    yield Text("")
    rows = [
        (each.name, _line(each.summary) + (" (input optional)" if each.defaults else ""))
        for each in discovery.endpoints
    ]
    yield _table(("endpoint", "description"), rows, show_all=show_all)
    yield Text("")
    if show_all:
        limits = [(name, _number(value)) for name, value in discovery.limits.model_dump().items()]
        yield _table(("limit", ""), limits, show_all=True)
        yield Text("")
        yield server_text(f"protocol: {discovery.protocol}")
        yield server_text(f"capabilities: {', '.join(discovery.capabilities) or 'none'}")
    else:
        yield server_text(f"limits: --all; one endpoint: {command_line(url, 'describe')} ENDPOINT", "dim")


def describe_endpoint(
    description: EndpointDescription, url: str, *, show_all: bool
) -> Iterator[RenderableType]:
    """Yield the parts of the text that describes an endpoint: its input, its value and commands that call it."""
    yield Text.assemble((visible(description.name), "bold"), f"  {_line(description.summary)}".rstrip())
    details = description.description.removeprefix(description.summary).strip()
    if show_all and details:
        yield server_text(details)
    yield Text("")
    schema, value = description.input_schema, description.value_schema
    yield _members("input", schema, show_all=show_all)
    yield Text("")
    yield _members("value", value, show_all=show_all)
    yield Text("")
    if show_all:
        supported = [
            " ".join([name, *_limits_in(value)])
            for name, value in description.capabilities.model_dump().items()
            if value
        ]
        yield server_text(f"capabilities: {', '.join(supported) or 'none'}")
        yield Text("")
    for words in _calls(description):
        yield server_text(visible(command_line(url, "call", description.name, *words)))
    if not show_all:
        yield Text("full descriptions and limits: --all; JSON schemas: --json", "dim")


def _calls(description: EndpointDescription) -> list[list[str]]:
    """Return the arguments of commands that call an endpoint: one command for each example, or if there are no examples,
    one command with the required members.
    """
    schema = description.input_schema
    calls = [words_of(example, schema) for example in description.examples[:_MAX_EXAMPLES]]
    return calls or [words_for_required_members(schema)]


def _members(what: str, schema: Any, *, show_all: bool) -> RenderableType:
    """Return a table of an object's members with the required ones first, or one line if there are none."""
    target = resolved(schema, schema)
    properties = _object(target.get("properties"))
    if not properties:
        return Text.assemble((what, "bold"), ": ", server_text(type_of(schema, schema)))
    required = _array(target.get("required"))
    is_input = what == "input"
    rows = []
    for name in sorted(properties, key=lambda each: is_input and each not in required):
        member = _object(properties[name])
        default = visible_json(member["default"]) if "default" in member else ""
        row = [name, type_of(member, schema), "required" if name in required else default]
        rows.append([*(row if is_input else row[:2]), _description(member)])
    columns = (what, "type", "default", "description") if is_input else (what, "type", "description")
    return _table(columns, rows, show_all=show_all)


def _description(member: Mapping[str, Any]) -> str:
    """Return the description of a member and its limits. The title is omitted, because it only repeats the name."""
    text = str(member.get("description") or "")
    limits = ", ".join(_limits_of(member))
    return f"{text} ({limits})" if text and limits else text or limits


def _limits_of(member: Mapping[str, Any]) -> Iterator[str]:
    forms = {
        "minimum": "≥ {}",
        "maximum": "≤ {}",
        "exclusiveMinimum": "> {}",
        "exclusiveMaximum": "< {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "minItems": "at least {} elements",
        "maxItems": "at most {} elements",
    }
    # The schema of an optional member is `anyOf` with a branch for null. Its limits are then in another branch.
    branches = [_object(each) for each in _array(member.get("anyOf"))]
    for name, form in forms.items():
        for each in (member, *branches):
            if name in each:
                yield form.format(each[name])
                break


def type_of(schema: Any, root: Any, *, depth: int = 0) -> str:
    """Return a short name for the type that a JSON Schema describes, such as `array of integer`."""
    schema = resolved(schema, root)
    if depth > _MAX_DEPTH:
        return "any"
    if "const" in schema:
        return visible_json(schema["const"])
    if "enum" in schema:
        return " | ".join(visible_json(one) for one in _array(schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(
                dict.fromkeys(type_of(one, root, depth=depth + 1) for one in _array(schema[several]))
            )
    kind = schema.get("type", "any")
    if kind == "array":
        element = type_of(schema.get("items"), root, depth=depth + 1)
        return f"array of ({element})" if " | " in element else f"array of {element}"
    if kind == "object" and _object(schema.get("properties")):
        return "{" + ", ".join(schema["properties"]) + "}"
    return kind if isinstance(kind, str) else " | ".join(map(str, _array(kind)))


def _limits_in(capability: Any) -> list[str]:
    """Return the limits of a capability, such as `(max_top 20)`."""
    limits = []
    for name, value in _object(capability).items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        limits.append(f"({name} {text if isinstance(text, str) else _number(value)})")
    return limits


def _number(value: int | None) -> str:
    return "no limit" if value is None else f"{value:,}".replace(",", " ")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, show_all: bool) -> Table:
    """Return a table whose last column takes the remaining width. With `show_all`, texts are wrapped. Otherwise each row is one
    line. All columns except the first are shortened to fit.
    """
    if len(columns) > 1 and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, name in enumerate(columns):
        # On a narrow terminal, rich shrinks a column with `no_wrap` last, so the names stay readable.
        table.add_column(name, no_wrap=at == 0, max_width=_MAX_CELL if 0 < at < len(columns) - 1 else None)
    for row in rows:
        table.add_row(
            *(
                Text(_line(cell), no_wrap=not show_all, overflow="fold" if show_all else "ellipsis")
                for cell in row
            )
        )
    return table


def _line(text: str) -> str:
    return " ".join(visible(text).split())


def _object(value: Any) -> dict[str, Any]:
    """Return a part of a schema that should be an object. A server's schema may be malformed."""
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    """Return a part of a schema that should be an array, or an empty list if the server's schema is malformed."""
    return value if isinstance(value, list) else []
