"""The parts of the reference that are made from the code. `python tests/docs/reference.py` writes them."""

import inspect
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


def options() -> str:
    from tidewire_server import Server

    described = inspect.getdoc(Server.endpoint)
    assert described is not None
    arguments = re.search(r"Args:\n(.*?)\n\nRaises:", described, re.DOTALL)
    assert arguments is not None
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", arguments[1], re.DOTALL | re.MULTILINE)
    names = [name for name in inspect.signature(Server.endpoint).parameters if name != "self"]
    assert [name for name, _ in found] == names
    rows = [f"| `{name}` | {' '.join(meaning.split())} |" for name, meaning in found if name != "function"]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


PARTS = {
    "client.md": {"errors": errors},
    "server.md": {"options": options, "settings": settings},
}


def with_parts(page: str) -> str:
    """A page's text with its generated parts made anew."""
    text = (REFERENCE / page).read_text()
    for name, make in PARTS[page].items():
        before, begins, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, ends, after = rest.partition("<!-- end -->")
        assert ends, f"{page}: {name}"
        text = f"{before}{begins}{make()}\n{ends}{after}"
    return text


if __name__ == "__main__":
    for page in PARTS:
        (REFERENCE / page).write_text(with_parts(page))
