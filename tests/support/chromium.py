"""Chromium without a window, for tests of web pages."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tidewire_conformance.clients.examples.chromium_client import FLAGS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Path of the installed browser; None if there is none."""

needs_chromium = [
    pytest.mark.browser,
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
"""Marks of a test that needs the browser."""


@contextlib.contextmanager
def chromium(url: str, folder: Path, flags: Sequence[str] = ()) -> Iterator[None]:
    """Show a page while the `with` block runs.

    Args:
        url: URL of the page.
        folder: Empty folder for the browser's profile.
        flags: Further flags of the browser.
    """
    command = [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={folder}", url]
    home = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(
        command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
