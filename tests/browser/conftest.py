"""A browser for the tests of the page at `/`."""

import pytest


@pytest.fixture(scope="module")
def browser():
    from support.page_browser import chromium_browser

    with chromium_browser() as browser:
        yield browser
