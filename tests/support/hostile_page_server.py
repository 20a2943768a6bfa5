"""Server whose names, schemas, values, notes and errors try to run scripts in the page, or to make it hang."""

import base64
from dataclasses import replace
from typing import Annotated, Any

from pydantic import WithJsonSchema

from tidewire_server import ItemError, Server, Stream

SCRIPT = "<img src=x onerror=\"window.pwned='yes'\"><script>window.pwned='yes'</script>"
NAMES = (SCRIPT.replace("/", ""), "a?b=c#d%41 .", "__proto__", "\u202etxet esrever", "a" * 300)
SVG = base64.b64encode(
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=1'><script>pwned=1</script></svg>"
).decode()
ENDLESS: dict[str, Any] = {"$ref": "#/properties/endless"}
WIDE = {"type": "object", "properties": {f"member {SCRIPT} {at}": {"type": "string"} for at in range(3000)}}
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(20):
    DEEP = {"anyOf": [DEEP, {"type": "null"}]}


HOSTILE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": SCRIPT,
    "required": "text",
    "properties": {
        "text": {
            "type": "string",
            "default": "javascript:window.pwned='yes'",
            "title": SCRIPT,
            "description": SCRIPT,
        },
        "endless": ENDLESS,
        "deep": DEEP,
        "elsewhere": {"$ref": "https://example.org/schema.json"},
        "numbers": {
            "type": "integer",
            "minimum": "<b>",
            "maximum": [],
            "enum": "x",
            "description": {"a": SCRIPT},
        },
        "picture": {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/svg+xml"},
        "choice": {"enum": [SCRIPT, {"a": SCRIPT}, None, 1], "default": [SCRIPT]},
        "__proto__": {"type": "string"},
        SCRIPT: {"type": ["string", "null"], "maxLength": -1},
        "wide": WIDE,
        "nothing": None,
    },
}


def hostile_page_server(**settings: Any) -> Server:
    """Return the server."""
    server = Server(**settings)

    @server.endpoint(examples=[{}, {"text": SCRIPT}])
    async def values(text: str = "", stream: Stream[Any] = None) -> None:  # type: ignore[assignment]
        stream.note(SCRIPT, level="warning")
        stream.usage(**{SCRIPT: 1})
        stream.progress(1, 2, unit=SCRIPT, phase=SCRIPT)
        stream.set(
            "",
            {
                SCRIPT: SCRIPT,
                "__proto__": {"polluted": True},
                "constructor": {"prototype": {"polluted": True}},
                "link": "javascript:window.pwned='yes'",
                "image": "data:text/html,<script>pwned=1</script>",
                "": [SCRIPT, None, True, -0.0, 1e300, [[[[[[[[SCRIPT]]]]]]]]],
                "a/b~c": "\u202e\u0000\ufeff\u2028",
                "long": "x" * 200_000,
                "many": {f"k{at}": at for at in range(3000)},
            },
        )
        raise ItemError(SCRIPT, code="example.<b>")

    @server.endpoint
    async def picture() -> Annotated[
        str, WithJsonSchema({"type": "string", "contentMediaType": "image/svg+xml"})
    ]:
        return SVG

    @server.endpoint
    async def false_png() -> Annotated[
        str, WithJsonSchema({"type": "string", "contentMediaType": "image/png"})
    ]:
        return SVG

    @server.endpoint(
        capabilities={"logprobs": {"max_top": 1}}, links={"vocabulary": {"hash": "1", "tokens": ["PGI+"]}}
    )
    async def tokens() -> dict[str, Any]:
        return {
            "text": SCRIPT,
            "token_ids": [0, 7, -1],
            "logprobs": [None, -1e9, 3],
            "top_ids": [[0, 99]],
            "top_logprobs": [[None]],
        }

    @server.endpoint
    async def scalar(value: Any) -> Any:
        return value

    # The decorator refuses such names, but another server may have them.
    for endpoint, name in zip(list(server.endpoints.values()), NAMES, strict=True):
        del server.endpoints[endpoint.name]
        endpoint.name = name
        endpoint.input = replace(
            endpoint.input, schema=HOSTILE_SCHEMA if name == NAMES[0] else endpoint.input.schema
        )
        server.endpoints[name] = endpoint
    return server
