"""Lint for the prose: phrases that readers had to read twice, and British spelling, each with a replacement.

Prose is the text of markdown outside code, and the docstrings and comments of Python. Generated pages are not checked,
because their text comes from the code. `make check` runs this file as a program.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("spec", "docs", "src")
"""Folders whose prose is checked."""
GENERATED = ("docs/explanation/measurements.md", "docs/proof/", "spec/coverage.md")
"""Beginnings of paths that are not checked."""

PHRASES = {
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more\b|less\b|later\b|deeper\b)": "is not a …",
    r"\bwhoever\b|\bwhosoever\b": "the caller, any client that …",
    r"\banew\b": "again, a new …",
    r"\b(is|are|was|were|be|been|being) told\b": "is notified of, gets, is configured with",
    r"\btell(s|ing)?\b(?! apart)": "reports, states, shows, distinguishes",
    r"\bgiv(en|es?|ing) back\b|\bgave back\b": "returned, released",
    r"\bin the words of\b": "as",
    r"\blet(s|ting)? go\b": "releases",
    r"\bgo(es|ing)? on\b|\bwent on\b": "continues",
    r"\bcom(es?|ing) to an end\b": "ends",
    r"\b(hand(s|ed|ing)?) over\b": "delivers",
    r"\bmidway\b": "while running, in the middle of",
    r"\bvoid(s|ed)?\b": "retracted",
    r"\bof (its|their|your|our) own\b(?! \w)": "its own …, separate",
    r"\bbeside\b|\bbesides\b": "next to, in addition to",
    r"\blest\b|\bsuch that\b": "so that, otherwise",
    r"\bby way of\b": "through",
    r"\bstand(s|ing)? for\b|\bstood for\b": "represents, replaces",
    r"\bnobody\b": "no client, no reader",
    r"\bstrangers?\b": "third party, unknown caller",
    r"\blet(s)? alone\b|\bnone the less\b": "(rephrase)",
    r"\bneighbou?rs?\b": "the other items",
    r"\btakes? (it|them|this|that) for\b": "treats it as",
    r"\bwhat (came|is there|there is)\b": "(name the data)",
    r"\bfor ever\b": "forever",
    r"\bhappy to\b|\bhas no word\b|\bto the letter\b|\bby the letter of\b": "(rephrase)",
    # American spelling.
    r"\b(\w*(?:serial|token|normal|author|synchron|summar|recogn|organ|initial|optim|minim|maxim|final|util|general"
    r"|special|canonical|categor|custom|emphas|material|parallel|random|visual))is(e|es|ed|ing|er|ers|ation)\b": "-ize",
    r"\bbehaviou?rs?\b(?<!behavior)(?<!behaviors)": "behavior",
    r"\b\w*(colou|honou|favou|labou|flavou)r\w*": "-or",
    r"\b(centre|licence|catalogue|artefact|grey|analyse|whilst|amongst)\w*": "American spelling",
}
"""Regular expression, without regard to case → replacement to suggest."""

_COMPILED = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in PHRASES.items()]


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Find listed phrases; yields the line number, the phrase and the replacement."""
    for pattern, better in _COMPILED:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0], better


def _blank(match: re.Match[str]) -> str:
    """Replace a match by blank lines, so that line numbers stay correct."""
    return "\n" * match[0].count("\n")


def prose_of_markdown(text: str) -> str:
    """Remove fenced blocks, generated parts, code spans and link targets from a page."""
    text = re.sub(r"^(`{3,}).*?^\1$", _blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!-- generated:.*?<!-- end -->", _blank, text, flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", lambda span: "`" + _blank(span), text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def prose_of_python(source: str) -> str:
    """Return the docstrings and comments of a module at their lines, without code spans."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] += token.string
    for node in ast.walk(ast.parse(source)):
        # Attribute docstrings are expressions as well, so all constant statements count.
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            for offset, line in enumerate(node.value.value.splitlines()):
                lines[node.lineno + offset] += line
    return re.sub(r"`[^`\n]*`", "`", "\n".join(lines[1:]))


def files() -> list[Path]:
    """Return the checked files."""
    found = [
        file
        for folder in FOLDERS
        for suffix in ("*.md", "*.py")
        for file in sorted((ROOT / folder).rglob(suffix))
    ]
    return [file for file in found if not str(file.relative_to(ROOT)).startswith(GENERATED)]


def main() -> int:
    """Print the findings of all files, and return the exit code."""
    found = []
    for file in files():
        text = file.read_text(encoding="utf-8")
        prose = prose_of_markdown(text) if file.suffix == ".md" else prose_of_python(text)
        place = file.relative_to(ROOT)
        found += [f"{place}:{line}: {phrase!r} → {better}" for line, phrase, better in findings(prose)]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
