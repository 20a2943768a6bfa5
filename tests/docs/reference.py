"""The parts of the reference that are made from the code. `python tests/docs/reference.py` writes them."""

import re
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def errors() -> str:
    import tidewire.errors

    tree = re.search(r"\n\n(    TidewireError\n.*?)\n\n", tidewire.errors.__doc__ or "", re.DOTALL)
    assert tree is not None
    return "```text\n" + "\n".join(line[4:] for line in tree[1].splitlines()) + "\n```"


def settings() -> str:
    from tidewire_server.configuration import allowed
    from tidewire_server.settings import Settings

    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{name}` | `{field.default!r}` | {allowed(field)} | {field.description} |")
    return "\n".join(rows)


PARTS = {"client.md": ("errors", errors), "server.md": ("settings", settings)}


def with_parts(page: str) -> str:
    """A page's text with its generated part made anew."""
    name, make = PARTS[page]
    text = (REFERENCE / page).read_text()
    marked = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert marked.search(text), page
    return marked.sub(lambda match: f"{match[1]}{make()}\n{match[2]}", text)


if __name__ == "__main__":
    for page in PARTS:
        (REFERENCE / page).write_text(with_parts(page))
