"""Tables for the terminal, which show jobs, tokens, the endpoints and limits of a server, or the schemas of an endpoint."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from tidewire.jobs.tokens import Token
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource


def compact(value: Any) -> str:
    """Serialize a value as JSON on one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def jobs(found: Iterable[JobResource]) -> Table:
    """Return a table of jobs, in the order of the argument."""
    table = Table(box=None, pad_edge=False)
    for name in ("job", "endpoint", "status", "created", "ended"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    for job in found:
        table.add_row(
            job.id, escape(job.endpoint), job.status, _time(job.created_at), _time(job.ended_at or "")
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
            escape(repr(token.text)),
            "" if token.logprob is None else f"{math.exp(token.logprob):.1%}",
            "" if token.rank is None else str(token.rank),
            escape(", ".join(f"{one.text!r} {math.exp(one.logprob):.1%}" for one in others)),
        )
    return table


def _time(stamp: str) -> str:
    return stamp[:19].replace("T", " ")


def server(discovery: Discovery) -> Iterator[Any]:
    """Yield the parts of the text that describes a server: its name, its endpoints and its limits."""
    yield f"[bold]{escape(discovery.server)}[/bold], {discovery.protocol}, durability: {discovery.durability}"
    endpoints = Table("endpoint", "description", box=None, pad_edge=False)
    for endpoint in discovery.endpoints:
        optional = " [dim](input optional)[/dim]" if endpoint.defaults else ""
        endpoints.add_row(escape(endpoint.name), escape(endpoint.summary) + optional)
    yield endpoints
    limits = Table("limit", "", box=None, pad_edge=False)
    for name, value in discovery.limits.model_dump().items():
        limits.add_row(name, f"{value:,}".replace(",", " "))
    yield limits


def endpoint(description: EndpointDescription, url: str) -> Iterator[Any]:
    """Yield the parts of the text that describes an endpoint: its input, value type, capabilities and examples."""
    yield f"[bold]{escape(description.name)}[/bold]  {escape(description.summary)}"
    if description.description:
        yield escape(description.description)
    schema = description.input_schema
    members = Table("member", "type", "default", "description", box=None, pad_edge=False)
    properties: Any = schema.get("properties") or {}
    required: Any = schema.get("required") or []
    for name, member in properties.items():
        default = (
            "[red]required[/red]"
            if name in required
            else escape(compact(member["default"]))
            if "default" in member
            else ""
        )
        members.add_row(escape(name), escape(type_of(member, schema)), default, escape(_summary(member)))
    yield members if properties else f"input: {escape(type_of(schema, schema))}"
    yield f"value: {escape(type_of(description.value_schema, description.value_schema))}"
    supported = [name for name, value in description.capabilities.model_dump().items() if value]
    yield f"capabilities: {', '.join(supported) or 'none'}"
    for example in description.examples[:2]:
        yield f"[dim]tidewire call {url} {escape(description.name)} --input '{escape(compact(example))}'[/dim]"


def type_of(schema: Any, root: Any, *, depth: int = 0) -> str:
    """Return a short name for the type that a JSON Schema describes, such as `array of integer`."""
    if not isinstance(schema, dict) or depth > 3:
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return type_of((root.get("$defs") or {}).get(name), root, depth=depth + 1)
    if "const" in schema:
        return compact(schema["const"])
    if "enum" in schema:
        return " | ".join(compact(one) for one in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(dict.fromkeys(type_of(one, root, depth=depth + 1) for one in schema[several]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {type_of(schema.get('items'), root, depth=depth + 1)}"
    if kind == "object" and schema.get("properties"):
        return "{" + ", ".join(schema["properties"]) + "}"
    return kind if isinstance(kind, str) else " | ".join(kind)


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
