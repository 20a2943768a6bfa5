"""The appendix quotes programs that run here, and binds nobody."""

import re

from interop.appendix import APPENDIX, ROOT, quoted
from support.spec_document import document

TEXT = APPENDIX.read_text(encoding="utf-8")
NUMBERS = {"Thirty-nine": 39, "A hundred and forty-nine": 149}
KEY_WORDS = r"\b(MUST|SHALL|SHOULD|REQUIRED|RECOMMENDED|MAY|OPTIONAL)\b"


def test_the_appendix_quotes_the_programs_as_they_are():
    found = quoted(TEXT)
    assert set(found) == {"tests/interop/browser_client.js", "tests/interop/stdlib_server.py"}
    for file, text in found.items():
        assert text == (ROOT / file).read_text(encoding="utf-8"), (
            "python tests/interop/appendix.py writes it anew"
        )


def test_the_appendix_counts_their_lines_right():
    counted = [NUMBERS[words] for words in re.findall(r"^([A-Z][a-z -]+) lines", TEXT, re.MULTILINE)]
    assert counted == [len(text.splitlines()) for text in quoted(TEXT).values()]


def test_the_appendix_says_of_bytes_what_was_measured():
    measured = (ROOT / "docs/explanation/measurements.md").read_text(encoding="utf-8")
    servers = {
        "Gradio 6.31, diffs in an envelope": "gradio",
        "this protocol, each step an event with its id, checks included": "tidewire, one event per step",
        "this protocol, merged as in section 5.5": "tidewire, merged",
    }
    said = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \| bench \|$", TEXT, re.MULTILINE))
    assert said.keys() == servers.keys()
    for name, server in servers.items():
        row = rf"^\| {server} \| a chat \| 20,000 \| [\d,]+ \| [\d,]+ \| ([\d.]+) \|"
        (found,) = re.findall(row, measured, re.MULTILINE)
        assert abs(float(said[name]) / float(found) - 1) < 0.02, name


def test_the_appendix_binds_nobody():
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(KEY_WORDS, prose) == []


def test_the_sentences_that_the_appendix_names_exist():
    known = {one.id for one in document.requirements}
    named = set(re.findall(r"TW-[A-Z]{3}-\d{3}", TEXT))
    assert named
    assert named <= known


def test_the_sentences_that_answer_the_questions_exist():
    text = (ROOT / "tests/interop/javascript/QUESTIONS.md").read_text(encoding="utf-8")
    named = set(re.findall(r"TW-[A-Z]{3}-\d{3}", text))
    assert len(named) > 40
    assert named <= {one.id for one in document.requirements}
