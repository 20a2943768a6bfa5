"""Text of `tidewire describe`: the endpoints of a server, or the input and the value of one endpoint.

By default, each endpoint and each member takes one line, which is cut at the width of the terminal. With `--all`, nothing
is cut, and limits, capabilities and descriptions are added. Text from the server is wrapped in `Text` objects, because
rich would interpret plain strings as markup.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

from tidewire.commands.job_and_token_tables import server_text
from tidewire.commands.server_url import command_line
from tidewire.inputs.input_words import resolved, words_for_required_members, words_of
from tidewire.protocol.resources import Discovery, EndpointDescription
from tidewire.terminal_escapes import visible, visible_json

DURABILITY: Final = {
    "process": "jobs are kept until the server stops",
    "host": "jobs survive a restart of the server",
    "replicated": "jobs survive the loss of a machine",
}
_MAX_EXAMPLES: Final = 2
_MAX_DEPTH: Final = 3
_GAP: Final = 2
"""Number of spaces between two columns of a table."""
_MIN_LAST: Final = 24
"""Minimum width of the last column of a table, in cells. If less space is left, its text moves to the next line or is
omitted.
"""


def describe_server(discovery: Discovery, url: str, width: int, *, show_all: bool) -> Iterator[Text]:
    """Yield the parts of the text that describes a server: its name, its endpoints and, with `show_all`, its limits."""
    yield server_text(f"{discovery.server} at {url}", "bold")
    yield Text(DURABILITY[discovery.durability])
    yield Text("")
    rows = [
        (each.name, _line(each.summary) + (" (input optional)" if each.defaults else ""))
        for each in discovery.endpoints
    ]
    yield from _table(("endpoint", "description"), rows, width, wrap=show_all)
    yield Text("")
    if show_all:
        limits = [(name, _number(value)) for name, value in discovery.limits.model_dump().items()]
        yield from _table(("limit", ""), limits, width)
        yield Text("")
        yield server_text(f"protocol: {discovery.protocol}")
        yield server_text(f"capabilities: {', '.join(discovery.capabilities) or 'none'}")
    else:
        yield _hint(f"limits: --all; one endpoint: {command_line(url, 'describe')} ENDPOINT")


def describe_endpoint(
    description: EndpointDescription, url: str, width: int, *, show_all: bool
) -> Iterator[Text]:
    """Yield the parts of the text that describes an endpoint: its input, its value and commands that call it."""
    yield Text.assemble((visible(description.name), "bold"), f"  {_line(description.summary)}".rstrip())
    details = description.description.removeprefix(description.summary).strip()
    if show_all and details:
        yield server_text(details)
    yield Text("")
    schema, value = description.input_schema, description.value_schema
    yield from _members("input", schema, width, show_all=show_all)
    yield Text("")
    yield from _members("value", value, width, show_all=show_all)
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
        yield _hint("full descriptions and limits: --all; JSON schemas: --json")


def _calls(description: EndpointDescription) -> list[list[str]]:
    """Return the arguments of commands that call an endpoint: one command for each example, or if there are no examples,
    one command with the required members.
    """
    schema = description.input_schema
    calls = [words_of(example, schema) for example in description.examples[:_MAX_EXAMPLES]]
    return calls or [words_for_required_members(schema)]


def _members(what: str, schema: Any, width: int, *, show_all: bool) -> Iterator[Text]:
    """Yield a table of an object's members with the required ones first, or one line if there are none."""
    target = resolved(schema, schema)
    properties = _object(target.get("properties"))
    if not properties:
        yield Text.assemble((what, "bold"), ": ", server_text(type_of(schema, schema)))
        return
    required = _array(target.get("required"))
    is_input = what == "input"
    rows = []
    for name in sorted(properties, key=lambda each: is_input and each not in required):
        member = _object(properties[name])
        default = visible_json(member["default"]) if "default" in member else ""
        row = [name, type_of(member, schema), "required" if name in required else default]
        rows.append([*(row if is_input else row[:2]), _description(member)])
    columns = (what, "type", "default", "description") if is_input else (what, "type", "description")
    yield from _table(columns, rows, width, wrap=show_all)


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
    # The schema of an optional member is `anyOf` of the limited type and null, so the limits are in one of the branches.
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


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, wrap: bool = False
) -> Iterator[Text]:
    """Yield the lines of a table that is at most `width` cells wide.

    With `wrap`, the text in the last column is wrapped, and no text is shortened. Otherwise each row is one line, and
    the text in all columns except the first is shortened to fit.
    """
    cells = [[_line(cell) for cell in row] for row in (columns, *rows)]
    if len(columns) > 1 and not any(row[-1] for row in cells[1:]):
        cells, columns = [row[:-1] for row in cells], columns[:-1]
    first = range(len(columns) - 1)
    widths = [max(cell_len(row[at]) for row in cells) for at in first]
    if not wrap:
        widths = [*widths[:1], *(min(each, max(len("required"), width // 4)) for each in widths[1:])]
    indent = sum(widths) + _GAP * len(widths)
    least = min(_MIN_LAST, max(cell_len(row[-1]) for row in cells))
    for number, row in enumerate(cells):
        style = "" if number else "bold"
        start = "".join(_padded(_cut(row[at], widths[at]), widths[at] + _GAP) for at in first)
        last, left = row[-1], width - indent
        if wrap and last and left < least:
            yield Text(start.rstrip(), style)
            start, left = " " * 4, max(2, width - 4)  # one wide character
        lines = _wrapped(last, left) if wrap else [_cut(last, left) if left >= least else ""]
        for line in lines or [""]:
            yield Text(f"{start}{line}".rstrip(), style)
            start = " " * cell_len(start)


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else f"{chop_cells(text, max(1, width - 1))[0]}…"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap text at spaces. A word that is wider than a line is split."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width) if word else []
    return lines


def _line(text: str) -> str:
    return " ".join(visible(text).split())


def _hint(text: str) -> Text:
    return server_text(text, "dim")


def _object(value: Any) -> dict[str, Any]:
    """Return a part of a schema that should be an object. A server's schema may be malformed."""
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    """Return a part of a schema that should be an array. A server's schema may be malformed."""
    return value if isinstance(value, list) else []
