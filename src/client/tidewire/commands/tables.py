"""Tables for the terminal, which show jobs, tokens, the endpoints and limits of a server, or the schemas of an endpoint.

All texts of the server are `Text` objects, because rich would read strings as markup.
"""

import math
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from tidewire.commands.terminal_escapes import visible, visible_json
from tidewire.jobs.tokens import Token
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource


def jobs(found: Iterable[JobResource]) -> Table:
    """Return a table of jobs, in the order of the argument."""
    table = Table(box=None, pad_edge=False)
    for name in ("job", "endpoint", "status", "created", "ended"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    for job in found:
        table.add_row(
            *map(_text, (job.id, job.endpoint, job.status, _time(job.created_at), _time(job.ended_at or "")))
        )
    return table


def tokens(found: Iterable[Token]) -> Table:
    """Return a table of tokens. It shows the probability and the rank of each token, and the most probable alternatives."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (
        ("token", "left"),
        ("probability", "right"),
        ("rank", "right"),
        ("alternatives", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for token in found:
        others = [one for one in token.alternatives if one.id != token.id]
        table.add_row(
            _text(repr(token.text)),
            "" if token.logprob is None else _percent(token.logprob),
            "" if token.rank is None else str(token.rank),
            _text(", ".join(f"{one.text!r} {_percent(one.logprob)}" for one in others)),
        )
    return table


def _percent(logprob: float) -> str:
    # A faulty server may send a log-probability above 0, and `exp` of a large number overflows.
    return f"{math.exp(min(logprob, 0.0)):.1%}"


def _text(text: str, style: str = "") -> Text:
    """Return a server's text as it is shown on a terminal."""
    return Text(visible(text), style)


def _time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")


def server(discovery: Discovery) -> Iterator[Any]:
    """Yield the parts of the text that describes a server: its name, its endpoints and its limits."""
    yield _text(discovery.server, "bold").append_text(
        Text(f", {visible(discovery.protocol)}, durability: {discovery.durability}", "not bold")
    )
    endpoints = Table("endpoint", "description", box=None, pad_edge=False)
    for endpoint in discovery.endpoints:
        optional = (" (input optional)", "dim") if endpoint.defaults else ""
        endpoints.add_row(_text(endpoint.name), Text.assemble(visible(endpoint.summary), optional))
    yield endpoints
    limits = Table("limit", "", box=None, pad_edge=False)
    for name, value in discovery.limits.model_dump().items():
        limits.add_row(name, "no limit" if value is None else f"{value:,}".replace(",", " "))
    yield limits


def endpoint(description: EndpointDescription, url: str) -> Iterator[Any]:
    """Yield the parts of the text that describes an endpoint: its input, value type, capabilities and examples."""
    yield Text.assemble((visible(description.name), "bold"), f"  {visible(description.summary)}")
    if description.description:
        yield _text(description.description)
    schema: Any = description.input_schema
    members = Table("member", "type", "default", "description", box=None, pad_edge=False)
    properties = _object(schema.get("properties"))
    required = _array(schema.get("required"))
    for name, member in properties.items():
        default = (
            Text("required", "red")
            if name in required
            else _text(visible_json(member["default"]))
            if "default" in _object(member)
            else ""
        )
        members.add_row(
            _text(name), _text(type_of(member, schema)), default, _text(_summary(_object(member)))
        )
    yield members if properties else _text(f"input: {type_of(schema, schema)}")
    yield _text(f"value: {type_of(description.value_schema, description.value_schema)}")
    supported = [name for name, value in description.capabilities.model_dump().items() if value]
    yield Text(f"capabilities: {', '.join(supported) or 'none'}")
    for example in description.examples[:2]:
        command = shlex.join(["tidewire", "call", url, description.name, "--input", visible_json(example)])
        yield _text(command, "dim")


def type_of(schema: Any, root: Any, *, depth: int = 0) -> str:
    """Return a short name for the type that a JSON Schema describes, such as `array of integer`."""
    if not isinstance(schema, dict) or depth > 3:
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return type_of(_object(root.get("$defs")).get(name), root, depth=depth + 1)
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
        return f"array of {type_of(schema.get('items'), root, depth=depth + 1)}"
    if kind == "object" and _object(schema.get("properties")):
        return "{" + ", ".join(schema["properties"]) + "}"
    return kind if isinstance(kind, str) else " | ".join(map(str, _array(kind)))


def _object(value: Any) -> dict[str, Any]:
    """Return a part of a schema that should be an object. A server's schema may be malformed."""
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    """Return a part of a schema that should be an array. A server's schema may be malformed."""
    return value if isinstance(value, list) else []


def _summary(member: Any) -> str:
    """Return the description or the title of an input member, followed by its limits in parentheses."""
    bounds = {
        "minimum": "≥ {}",
        "maximum": "≤ {}",
        "exclusiveMinimum": "> {}",
        "exclusiveMaximum": "< {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "maxItems": "at most {} elements",
    }
    limits = [form.format(member[name]) for name, form in bounds.items() if name in member]
    text = str(member.get("description") or member.get("title") or "")
    return f"{text} ({', '.join(limits)})" if limits else text
