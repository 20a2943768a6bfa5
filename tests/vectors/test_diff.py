"""Test vectors for merged diffs and text changes; `unit/test_diff` and `unit/test_document` run the other vectors."""

from support.random_json import canonical_text
from support.spec_vectors import for_each_vector, load_vectors
from tidewire.protocol.document import Document
from tidewire.protocol.document.document import TextChange


@for_each_vector("diff/merged")
def test_merged_diff_has_the_result_of_the_single_diffs(vector):
    one_by_one, at_once = (Document(vector["before"], vector["columns"]) for _ in range(2))
    for event in vector["events"]:
        one_by_one.apply(event["diff"])
    at_once.apply(vector["merged"]["diff"])
    assert (
        canonical_text(one_by_one.value())
        == canonical_text(at_once.value())
        == canonical_text(vector["after"])
    )
    assert vector["merged"]["id"] == vector["events"][-1]["id"]
    assert vector["merged"]["diff"]["on"] == int(vector["held"].partition("-")[2])
    checked = {check[0] for event in vector["events"] for check in checks_of(event)}
    assert {check[0] for check in checks_of(vector["merged"])} == checked


def checks_of(event):
    return event["diff"].get("check", []) if isinstance(event["diff"], dict) else []


@for_each_vector("diff/told")
def test_text_changes_match_the_vector(vector):
    held = Document({"t": vector["old"]}, ["/t"])
    if "diff" in vector:
        held.apply(vector["diff"])
        changes = held.text_changes
    else:
        before, held = held, Document({"t": vector["new"]}, ["/t"])
        changes = held.changes_since(before)
    assert held.value("/t") == vector["new"]
    expected = (vector["void"], vector["text"])
    assert changes == (() if expected == (0, "") else (TextChange("/t", *expected),))


def test_deletion_and_addition_turn_the_old_text_into_the_new():
    for vector in load_vectors("diff/told")["vectors"]:
        old = vector["old"]
        assert old[: len(old) - vector["void"]] + vector["text"] == vector["new"]
