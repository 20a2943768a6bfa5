"""Pictures of the page at `/` for the documentation, each view wide and narrow, light and dark.

`python docs/examples/screenshots.py` writes the pictures that the documentation shows into `docs/images`. With `--all FOLDER`,
it writes every view in every form into a folder. The fonts of the pictures are those of the machine.
"""

import argparse
import base64
import contextlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pictured_server import picture
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "images"
SIZES = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 390, "height": 844}}
DOCUMENTED = {
    "tokens-wide-light",
    "tokens-narrow-dark",
    "tree-wide-light",
    "picture-wide-dark",
    "lost-connection-wide-light",
    "queue-narrow-light",
    "operator-wide-light",
}
"""Pictures that the documentation shows."""
PATIENCE = 60


class ServedExample:
    """The example server in its own process, which can be killed and started again at the same port."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags, self.port = folder, flags, "0"
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "tidewire_server",
            "pictured_server.py",
            "--port",
            self.port,
            "--port-file",
            str(port_file),
        ]
        self.process = subprocess.Popen(
            [*command, *self.flags], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(20 * PATIENCE):
            if port_file.exists():
                break
            time.sleep(0.05)
        self.port = port_file.read_text().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def forget_jobs(self) -> None:
        """Delete all jobs. A server that was killed has none, and is started again."""
        if self.process.poll() is not None:
            self.start()
        with (
            contextlib.suppress(urllib.error.HTTPError),
            urllib.request.urlopen(f"{self.url}/v1/jobs") as answer,
        ):
            for job in json.load(answer)["jobs"]:
                urllib.request.urlopen(
                    urllib.request.Request(f"{self.url}/v1/jobs/{job['id']}", method="DELETE")
                ).close()

    def submit(self, endpoint: str, **body: Any) -> str:
        url = f"{self.url}/v1/endpoints/{endpoint}/jobs"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return str(json.load(answer)["id"])


@contextlib.contextmanager
def served(*flags: str) -> Iterator[ServedExample]:
    with tempfile.TemporaryDirectory() as folder:
        server = ServedExample(Path(folder), *flags)
        try:
            yield server
        finally:
            server.kill()


def run(page: Page, server: ServedExample, endpoint: str, example: int = 0) -> None:
    page.goto(f"{server.url}/#/endpoints/{endpoint}")
    page.get_by_role("heading", name=endpoint, exact=True).wait_for()
    page.locator(".example").nth(example).click()
    page.get_by_role("button", name="Run").click()
    page.wait_for_url("**/#/jobs/*")


def start(page: Page, server: ServedExample) -> None:
    page.goto(server.url)
    page.get_by_role("button", name="Run").wait_for()


def tokens(page: Page, server: ServedExample) -> None:
    page.goto(f"{server.url}/#/endpoints/generate")
    page.locator(".example").nth(1).click()
    page.get_by_label("max_tokens").fill("120")
    page.get_by_label("prompt", exact=True).fill('import json\n\ndef load(path):\n    """Load')
    page.get_by_label("temperature").fill("0.9")
    page.get_by_role("button", name="Edit as JSON").click()
    given = json.loads(page.get_by_label("Input as JSON").input_value())
    page.get_by_label("Input as JSON").fill(json.dumps(given | {"seed": 4}))
    page.get_by_role("button", name="Edit as a form").click()
    page.get_by_role("button", name="Run").click()
    page.locator(".chip.succeeded").first.wait_for()
    page.locator("#result .block span").nth(40).wait_for()
    page.locator("details.more").evaluate("(more) => { more.open = false; }")
    page.evaluate("scrollTo(0, 0)")
    page.locator("#result .block :is(.s4, .s5, .s6)").nth(2).click()
    page.locator("#token-details").wait_for()


def tree(page: Page, server: ServedExample) -> None:
    run(page, server, "train")
    page.get_by_text(re.compile(r"losses: \[1\d elements\]")).wait_for()


def picture_view(page: Page, server: ServedExample) -> None:
    run(page, server, "paint")
    page.locator(".progress", has_text=re.compile("[67] of 8 steps")).wait_for()


def lost_connection(page: Page, server: ServedExample) -> None:
    run(page, server, "transcribe")
    page.locator(".progress", has_text=re.compile(r"6\d of 180 seconds")).wait_for()
    server.kill()
    page.locator(".connection.bad").wait_for()
    page.get_by_text("Connection", exact=True).click()


def queue(page: Page, server: ServedExample) -> None:
    server.submit("transcribe", input={"minutes": 1})
    server.submit("transcribe", input={"minutes": 1})
    run(page, server, "transcribe")
    page.locator(".queue", has_text="Position").wait_for()


def failed(page: Page, server: ServedExample) -> None:
    page.goto(f"{server.url}/#/endpoints/caption")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hills.png"
        file.write_bytes(base64.b64decode(picture(1)))
        page.get_by_label("image").set_input_files(file)
        page.get_by_role("img", name="Chosen file").wait_for()
        page.get_by_role("button", name="Run").click()
        page.locator(".chip.failed").first.wait_for()


def operator(page: Page, server: ServedExample) -> None:
    for _ in range(4):
        server.submit("transcribe", input={"minutes": 2})
    server.submit("train", input={})
    page.goto(f"{server.url}/#/operator")
    for turn in range(14):
        server.submit("embed", inputs=[{"text": "a" * each} for each in range(3 + turn)])
        server.submit("generate", input={"max_tokens": 90 + 20 * (turn % 4), "temperature": 1})
        page.wait_for_timeout(900)


def token_dialog(page: Page, server: ServedExample) -> None:
    page.goto(server.url)
    page.get_by_role("dialog").wait_for()


def gone(page: Page, server: ServedExample) -> None:
    page.goto(f"{server.url}/#/jobs/2yJq8sVbT1mHkP0dXw4RcA")
    page.locator(".chip.lost").wait_for()


VIEWS: dict[str, tuple[Callable[[Page, ServedExample], None], tuple[str, ...]]] = {
    "start": (start, ()),
    "tokens": (tokens, ()),
    "tree": (tree, ()),
    "picture": (picture_view, ()),
    "lost-connection": (lost_connection, ()),
    "queue": (queue, ()),
    "failed": (failed, ()),
    "operator": (operator, ()),
    "gone": (gone, ()),
    "token-dialog": (token_dialog, ("--token-file", "TOKENS")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--all", type=Path, metavar="FOLDER", help="write every view in every form into this folder"
    )
    parser.add_argument("--only", help="write only the pictures whose names begin with this text")
    options = parser.parse_args()
    folder: Path = options.all or IMAGES
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{view}-{size}-{theme}" for view in VIEWS for size in SIZES for theme in ("light", "dark")]
    chosen = [
        name for name in names if (options.all or name in DOCUMENTED) and name.startswith(options.only or "")
    ]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as secrets:
        (Path(secrets) / "tokens").write_text("ada:sesame\n")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for view, (show, flags) in VIEWS.items():
            forms = [name.rsplit("-", 2)[1:] for name in chosen if name.rsplit("-", 2)[0] == view]
            if not forms:
                continue
            with served(
                *(str(Path(secrets) / "tokens") if flag == "TOKENS" else flag for flag in flags)
            ) as server:
                for size, theme in forms:
                    context = browser.new_context(viewport=SIZES[size], color_scheme=theme)
                    page = context.new_page()
                    show(page, server)
                    page.wait_for_timeout(400)
                    page.screenshot(path=folder / f"page-{view}-{size}-{theme}.png")
                    context.close()
                    server.forget_jobs()
                    print(view, size, theme, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
