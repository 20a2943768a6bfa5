"""The lint for prose finds listed phrases, and only in prose."""

import pytest

from docs.plain_english import findings, prose_of_markdown, prose_of_python


@pytest.mark.parametrize(
    "sentence",
    [
        "The body is no JSON.",
        "Whoever waits is told its place.",
        "It draws the value anew.",
        "The client hands over the value and goes on.",
        "The tokeniser honours the colour.",
        "A slow neighbour",
    ],
)
def test_a_listed_phrase_is_found(sentence):
    assert list(findings(sentence))


@pytest.mark.parametrize(
    "sentence",
    [
        "There is no cursor, and the job is no longer running.",
        "The client notifies the application and continues.",
        "The tokenizer serializes the behavior of a cancelled job.",
        "Otherwise the promise of precision is exercised.",
    ],
)
def test_plain_sentences_pass(sentence):
    assert list(findings(sentence)) == []


def test_code_is_not_prose():
    page = "Text.\n\n```text\nIt goes on.\n```\n\nThe member `told` is [here](told-anew.md).\n"
    assert list(findings(prose_of_markdown(page))) == []
    assert list(findings(prose_of_python('x = "whoever"  # a comment\n'))) == []
    assert [line for line, _, _ in findings(prose_of_python('x = 1\n\n# whoever\n"""Goes on."""\n'))] == [
        3,
        4,
    ]
