"""Files of test vectors: each file is valid for its schema, has unique names, and refers to existing requirements."""

import json

import pytest

from support.spec_document import REGISTRY, Draft202012Validator, breaches, document
from support.spec_vectors import FOLDER, NAMES, load_vectors

ROLES = {one.id: one.role for one in document.requirements}
README = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_file_is_valid_for_its_schema(name):
    file = load_vectors(name)
    assert breaches("vector-file", file) == []
    folder, stem = name.split("/")
    schema = {"$ref": f"vector-{folder}.schema.json#/$defs/{stem}"}
    validator = Draft202012Validator(schema, registry=REGISTRY)
    for vector in file["vectors"]:
        assert [error.message for error in validator.iter_errors(vector)] == [], vector["name"]


@pytest.mark.parametrize("name", NAMES)
def test_vectors_have_unique_names(name):
    names = [vector["name"] for vector in load_vectors(name)["vectors"]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMES)
def test_file_explains_each_member(name):
    file = load_vectors(name)
    used = {member for vector in file["vectors"] for member in vector} - {"name"}
    assert used == set(file["members"])


@pytest.mark.parametrize("name", NAMES)
def test_requirements_exist_and_apply_to_the_tested_role(name):
    file = load_vectors(name)
    for vector in [file, *file["vectors"]]:
        for requirement in vector.get("requirements", []):
            roles = {ROLES[requirement], file["role"]}
            assert len(roles) == 1 or "both" in roles, (vector.get("name"), requirement)


@pytest.mark.parametrize("name", NAMES)
def test_readme_lists_the_file(name):
    row = f"| [`{name}`]({name}.json) | {load_vectors(name)['role']} | "
    assert row in README


def test_readme_lists_no_missing_file():
    assert README.count(".json) | ") == len(NAMES)


def test_each_vector_is_on_one_line():
    for name in NAMES:
        text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
        lines = [line.strip().rstrip(",") for line in text.splitlines() if line.startswith('    {"name": ')]
        assert [json.loads(line) for line in lines] == load_vectors(name)["vectors"], name
