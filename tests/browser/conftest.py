"""A browser for the tests of the page at `/`."""

import pytest


@pytest.fixture(scope="module")
def browser():
    from support.chromium import CHROMIUM
    from support.page_browser import chromium_browser

    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with chromium_browser() as browser:
        yield browser
