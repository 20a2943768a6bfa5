"""Generates the signatures and docstrings of public classes that repeat those of other classes.

- The options of the clients come from the fields of `tidewire.options.Options` and the docstring below each field.
- The options of `Server.endpoint` come from `tidewire_server.endpoints.endpoint.Options` in the same way.
- The signatures and docstrings of the blocking client and its jobs come from the async classes. Function bodies are
  written by hand.

`python src/client/generate_signatures.py` writes the files. With `--check` it only fails if a file is not up to date.
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

SRC: Final = Path(__file__).parents[1]
CLIENT: Final = SRC / "client/tidewire"
SERVER: Final = SRC / "reference_server/tidewire_server"
WIDTH: Final = 118

Def = ast.FunctionDef | ast.AsyncFunctionDef


# ---- options, from the fields of a class -------------------------------------------------------------------------


class Option(NamedTuple):
    annotation: str
    default: str | None
    """Source code of the default value; None if the field has a default factory."""
    text: str


def options_in(path: Path) -> dict[str, Option]:
    """Return the fields of the class `Options` in a module, with the docstring below each field."""
    body = class_in(ast.parse(path.read_text()), "Options").body
    found = {}
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            default = ast.unparse(statement.value) if statement.value else None
            if default is not None and default.startswith("field("):
                default = None
            text = " ".join(text_of(following).split())
            if not text:
                raise ValueError(f"{path}: the field {statement.target.id} has no docstring below it")
            found[statement.target.id] = Option(ast.unparse(statement.annotation), default, text)
    return found


def of_constructor(source: str) -> str:
    """Generate the arguments of `AsyncClient.__init__` that are options. Its other arguments are omitted."""
    options = options_in(CLIENT / "options.py")

    def parameter(match: re.Match[str]) -> str:
        option = options.get(match["name"])
        if option is None:
            return match[0]
        annotation, default = option.annotation, option.default
        if default is None:
            annotation, default = f"{annotation} | None", "None"
        return f"        {match['name']}: {annotation} = {default},"

    (place,) = functions(source, "AsyncClient", "__init__")
    lines = source.splitlines()
    head = "\n".join(lines[place.start : place.body])
    head = re.sub(r"^        (?P<name>\w+): .*,$", parameter, head, flags=re.MULTILINE)
    for name, option in options.items():
        head = with_entry(head, name, option.text)
    return "\n".join([*lines[: place.start], head, *lines[place.body :], ""])


def of_view(source: str) -> str:
    """Generate the arguments of `AsyncClient.with_options`, which are all options of the client. Each argument is
    optional.
    """
    options = options_in(CLIENT / "options.py")
    parameters = [
        f"{name}: {re.sub(r'(?= [|] None$)|$', ' | Unset', option.annotation, count=1)} = UNSET"
        for name, option in options.items()
    ]
    (place,) = functions(source, "AsyncClient", "with_options")
    return with_arguments(source, place, parameters, {name: option.text for name, option in options.items()})


def of_endpoint(source: str) -> str:
    """Generate the options of `Server.endpoint`, both in the overload and in the method."""
    options = options_in(SERVER / "endpoints/endpoint.py")
    parameters = [f"{name}: {option.annotation} = {option.default}" for name, option in options.items()]
    _, overload, _ = functions(source, "Server", "endpoint")
    source = with_arguments(source, overload, parameters, {})
    *_, method = functions(source, "Server", "endpoint")
    texts = {"function": "The function, if this method is used as a decorator without arguments."}
    texts |= {name: option.text for name, option in options.items()}
    return with_arguments(source, method, parameters, texts)


def with_arguments(source: str, place: "Place", parameters: list[str], texts: dict[str, str]) -> str:
    """Replace the keyword-only parameters of a function, and the section `Args` of its docstring."""
    lines = source.splitlines()
    head = "\n".join(lines[place.start : place.body])
    written = "".join(f"        {each},\n" for each in parameters)
    head = re.sub(r"(?<=\n        \*,\n).*?(?=    \) -> )", lambda _: written, head, count=1, flags=re.DOTALL)
    if texts:
        entries = "\n".join(entry(name, text) for name, text in texts.items())
        pattern = r"(?<=\n        Args:\n).*?(?=\n\n        \w+:\n|\n        \"\"\")"
        head = re.sub(pattern, lambda _: entries, head, count=1, flags=re.DOTALL)
    return "\n".join([*lines[: place.start], head, *lines[place.body :], ""])


def with_entry(head: str, name: str, text: str) -> str:
    """Replace the entry of one argument in the section `Args` of a docstring."""
    pattern = rf"^            {name}: .*?(?=\n            \w|\n\n|\n        \"\"\")"
    return re.sub(pattern, lambda _: entry(name, text), head, count=1, flags=re.DOTALL | re.MULTILINE)


def entry(name: str, text: str) -> str:
    indent = " " * 12
    return textwrap.fill(
        f"{name}: {text}",
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


# ---- blocking classes, from the async ones -----------------------------------------------------------------------

PAIRS: Final = (
    ("client.py", "AsyncClient", "sync.py", "Client"),
    ("jobs/job.py", "JobBase", "blocking/blocking_jobs.py", "BlockingJobBase"),
    ("jobs/job.py", "AsyncJob", "blocking/blocking_jobs.py", "Job"),
    ("jobs/batch_job.py", "AsyncBatchJob", "blocking/blocking_jobs.py", "BatchJob"),
)
ASYNC_NAMES: Final = {
    "__iter__": "__aiter__",
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "close": "aclose",
}
OWN_SIGNATURE: Final = {("BlockingJobBase", "__init__")}
OWN_TEXT: Final = {("Client", "Client"), ("Client", "close"), ("BlockingJobBase", "BlockingJobBase")}
"""Classes and methods whose docstrings are not generated, because the blocking class behaves differently from the async
class."""
TO_BLOCKING: Final = (
    (r"\basync (?=def|with|for)", ""),
    (r"\bawait ", ""),
    (r"\bAsync(Client|Job|BatchJob)\b", r"\1"),
    (r"\b(AsyncMap|UpdateIterator)\[", "Iterator["),
    (r" \| AsyncIterable\[Any\]", ""),
    (r" or async iterable\b", ""),
    (r"__a(iter|enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
)


def blocking(text: str) -> str:
    for pattern, replacement in TO_BLOCKING:
        text = re.sub(pattern, replacement, text)
    return text


def of_blocking(source: str, async_source: str, async_class: str, name: str) -> str:
    """Replace the signatures and docstrings in a blocking class by those of the corresponding async class."""
    async_lines = async_source.splitlines()
    # Replace the last method first, so that the line numbers of earlier methods stay valid.
    for method in reversed(methods_in(source, name)):
        counterparts = functions(async_source, async_class, ASYNC_NAMES.get(method, method))
        if not counterparts or (name, method) in OWN_SIGNATURE:
            continue
        places = functions(source, name, method)
        lines = source.splitlines()
        own = lines[places[-1].signature_end : places[-1].body]
        head: list[str] = []
        for place in counterparts:
            head += blocking("\n".join(async_lines[place.start : place.signature_end])).splitlines()
            if place is not counterparts[-1]:
                head.append("")
        last = counterparts[-1]
        text = blocking("\n".join(async_lines[last.signature_end : last.body])).splitlines()
        if (name, method) in OWN_TEXT:
            text = own
        source = "\n".join([*lines[: places[0].start], *head, *text, *lines[places[-1].body :], ""])
    return source if (name, name) in OWN_TEXT else with_class_text(source, name, async_source, async_class)


def with_class_text(source: str, name: str, async_source: str, async_class: str) -> str:
    ours, theirs = class_in(ast.parse(source), name), class_in(ast.parse(async_source), async_class)
    text = theirs.body[0]
    written = async_source.splitlines()[text.lineno - 1 : text.end_lineno]
    lines = source.splitlines()
    first = ours.body[0]
    has_text = bool(text_of(first))
    rest = lines[(first.end_lineno or 0) if has_text else first.lineno - 1 :]
    return "\n".join(
        [*lines[: first.lineno - 1], blocking("\n".join(written)), *([] if has_text else [""]), *rest, ""]
    )


# ---- places in a source ------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Line numbers of the first decorator of a function, the end of its signature and its body. Lines are counted from
    0.
    """

    start: int
    signature_end: int
    body: int


def class_in(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def text_of(node: ast.AST) -> str:
    """Return the text of a statement that is a docstring, or an empty string for any other statement."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return node.value.value
    return ""


def methods_in(source: str, class_name: str) -> list[str]:
    body = class_in(ast.parse(source), class_name).body
    return [*dict.fromkeys(node.name for node in body if isinstance(node, Def))]


def functions(source: str, class_name: str, name: str) -> list[Place]:
    """Find the overloads of a method and the method itself. Setters of properties are left out."""
    found = []
    for node in class_in(ast.parse(source), class_name).body:
        if not isinstance(node, Def) or node.name != name:
            continue
        if any(ast.unparse(each).endswith(".setter") for each in node.decorator_list):
            continue
        if node.returns is None:
            raise ValueError(f"{class_name}.{name} has no return annotation")
        start = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
        signature_end = node.returns.end_lineno or 0
        body = (node.body[0].end_lineno or 0) if text_of(node.body[0]) else signature_end
        found.append(Place(start, signature_end, body))
    return found


# ---- files -------------------------------------------------------------------------------------------------------


def formatted(path: Path, source: str) -> str:
    ruff = [str(Path(sys.executable).with_name("ruff")), "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout  # noqa: S603


def generated() -> Iterator[tuple[Path, str]]:
    """Generate the new contents of the files, and yield each path with its new content."""
    steps: tuple[tuple[Path, Callable[[str], str]], ...] = (
        (CLIENT / "client.py", lambda source: of_view(of_constructor(source))),
        (SERVER / "server.py", of_endpoint),
    )
    sources = {path: formatted(path, make(path.read_text())) for path, make in steps}
    for async_file, async_class, file, name in PAIRS:
        async_source = sources.get(CLIENT / async_file) or (CLIENT / async_file).read_text()
        source = sources.get(CLIENT / file) or (CLIENT / file).read_text()
        sources[CLIENT / file] = of_blocking(source, async_source, async_class, name)
    for path, source in sources.items():
        yield path, formatted(path, source)


def main() -> None:
    stale = [(path, source) for path, source in generated() if path.read_text() != source]
    if "--check" not in sys.argv[1:]:
        for path, source in stale:
            path.write_text(source)
    elif stale:
        names = ", ".join(str(path.relative_to(SRC)) for path, _ in stale)
        sys.exit(f"not up to date: {names}. Run: python src/client/generate_signatures.py")


if __name__ == "__main__":
    main()
