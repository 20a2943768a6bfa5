"""The files of vectors hold their own rules: shape, names, and sentences that exist and are those of the tested role."""

import json

import pytest

from support.spec_document import REGISTRY, Draft202012Validator, breaches, document
from support.spec_vectors import FOLDER, NAMES, whole

ROLES = {one.id: one.role for one in document.requirements}
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_file_fits_its_schema(name):
    file = whole(name)
    assert breaches("vector-file", file) == []
    folder, stem = name.split("/")
    schema = {"$ref": f"vector-{folder}.schema.json#/$defs/{stem}"}
    validator = Draft202012Validator(schema, registry=REGISTRY)
    for vector in file["vectors"]:
        assert [error.message for error in validator.iter_errors(vector)] == [], vector["name"]


@pytest.mark.parametrize("name", NAMES)
def test_vectors_have_names_of_their_own(name):
    names = [vector["name"] for vector in whole(name)["vectors"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_file_says_what_each_member_means(name):
    file = whole(name)
    used = {member for vector in file["vectors"] for member in vector} - {"name"}
    assert used == set(file["members"])


@pytest.mark.parametrize("name", NAMES)
def test_sentences_exist_and_bind_the_role_that_is_tested(name):
    file = whole(name)
    for vector in [file, *file["vectors"]]:
        for sentence in vector.get("requirements", []):
            roles = {ROLES[sentence], file["role"]}
            assert len(roles) == 1 or "both" in roles, (vector.get("name"), sentence)


@pytest.mark.parametrize("name", NAMES)
def test_readme_explains_the_file(name):
    row = f"| [`{name}`]({name}.json) | {whole(name)['role']} | "
    assert row in README


def test_readme_counts_no_file_that_is_gone():
    assert README.count(".json) | ") == len(NAMES)


def test_files_are_one_vector_a_line():
    for name in NAMES:
        text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
        lines = [line.strip().rstrip(",") for line in text.splitlines() if line.startswith('    {"name": ')]
        assert [json.loads(line) for line in lines] == whole(name)["vectors"], name
