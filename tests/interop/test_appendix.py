"""The appendix of the specification quotes tested programs and contains no requirements."""

import re

from interop.appendix import APPENDIX, ROOT, quotations
from support.spec_document import document

TEXT = APPENDIX.read_text(encoding="utf-8")
NUMBERS = {"Thirty-nine": 39, "A hundred and fifty": 150}
KEY_WORDS = r"\b(MUST|SHALL|SHOULD|REQUIRED|RECOMMENDED|MAY|OPTIONAL)\b"


def test_the_appendix_quotes_the_current_programs():
    found = quotations(TEXT)
    assert set(found) == {"tests/interop/browser_client.js", "tests/interop/stdlib_server.py"}
    for file, text in found.items():
        assert text == (ROOT / file).read_text(encoding="utf-8"), (
            "python tests/interop/appendix.py writes it anew"
        )


def test_the_appendix_states_the_line_counts_of_the_programs():
    counted = [NUMBERS[words] for words in re.findall(r"^([A-Z][a-z -]+) lines", TEXT, re.MULTILINE)]
    assert counted == [len(text.splitlines()) for text in quotations(TEXT).values()]


def test_the_appendix_states_the_measured_bytes():
    measured = (ROOT / "docs/explanation/measurements.md").read_text(encoding="utf-8")
    servers = {
        "Gradio 6.31, diffs in an envelope": "gradio",
        "this protocol, each step an event with its id, checks included": "tidewire, one event per step",
        "this protocol, merged as in section 5.5": "tidewire, merged",
    }
    listed = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \| bench \|$", TEXT, re.MULTILINE))
    assert listed.keys() == servers.keys()
    for name, server in servers.items():
        row = rf"^\| {server} \| a chat \| 20,000 \| [\d,]+ \| [\d,]+ \| ([\d.]+) \|"
        (found,) = re.findall(row, measured, re.MULTILINE)
        assert abs(float(listed[name]) / float(found) - 1) < 0.02, name


def test_the_appendix_contains_no_requirement_keywords():
    prose = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(KEY_WORDS, prose) == []


def test_requirements_named_in_the_appendix_exist():
    known = {one.id for one in document.requirements}
    named = set(re.findall(r"TW-[A-Z]{3}-\d{3}", TEXT))
    assert named
    assert named <= known


def test_requirements_named_in_the_questions_exist():
    text = (ROOT / "tests/interop/javascript/QUESTIONS.md").read_text(encoding="utf-8")
    named = set(re.findall(r"TW-[A-Z]{3}-\d{3}", text))
    assert len(named) > 40
    assert named <= {one.id for one in document.requirements}
