"""Runs the JavaScript blocks of the documentation in Node, page by page, against a real server."""

import subprocess

import pytest

from docs.test_code_blocks import PAGES, ROOT, WRITTEN_URL, blocks, name_of, site  # noqa: F401
from support.foreign_programs import NODE, needs_node

PACKAGE = ROOT / "clients/javascript"


def uses_the_package(page):
    return any(block.language == "js" and 'from "tidewire"' in block.text for block in blocks(page))


WITH_THE_PACKAGE = [page for page in [*PAGES, PACKAGE / "README.md"] if uses_the_package(page)]


@pytest.mark.heavy
@needs_node
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", WITH_THE_PACKAGE, ids=name_of)
def test_javascript_blocks_of_a_page_run(page, site, tmp_path):  # noqa: F811
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/tidewire").symlink_to(PACKAGE)
    program = "\n".join(block.text for block in blocks(page) if block.language == "js")
    (tmp_path / "page.mjs").write_text(program.replace(WRITTEN_URL, site), encoding="utf-8")
    run = subprocess.run(
        [str(NODE), "page.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_pages_with_javascript_are_found():
    assert len(WITH_THE_PACKAGE) >= 2
