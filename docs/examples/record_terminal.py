"""Run the commands in a terminal emulator, and save what they show as SVG images for the pages about the command line.

python docs/examples/record_terminal.py docs/images
"""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI
from rich.text import Text

LIMIT = 180.0
"""Time limit in seconds for each wait. The first start of the model is slow."""
FONT = "monospace"
ADDRESS = "http://127.0.0.1:8000"
"""Address in the images, in place of the one with the free port."""
APP = '''
import asyncio
import time
from collections.abc import AsyncIterator
from typing import Literal
from pydantic import BaseModel
from tidewire_server import Append, ItemError, Server, Stream

server = Server()

class Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str

@server.endpoint(on_restart="continue", concurrency_limit=2)
async def story(stream: Stream[str], hero: str = "Ada", chapters: int = 3) -> None:
    """Tell a story."""
    words = [f"Chapter {at + 1}. {hero} crossed the bridge and waited for the answer." for at in range(chapters)]
    words = " ".join(words).split(" ")
    for at in range(len((stream.value or "").split()), len(words)):
        stream.append(words[at] + " ")
        stream.progress(at + 1, len(words), unit="word")
        await asyncio.sleep(0.2)

@server.endpoint(batch=True, max_batch_size=16)
def embed(text: list[str]) -> list[list[float] | ItemError]:
    """Embed texts."""
    time.sleep(0.2)
    return [[len(each) / 10] if each.strip() else ItemError("the text is empty") for each in text]

@server.endpoint(concurrency_limit=4)
async def generate(messages: list[Message], max_tokens: int = 64) -> AsyncIterator[Append[str]]:
    """Reply to a conversation."""
    names = [each.content for each in messages if each.role == "user"]
    reply = "Nice to meet you." if len(names) == 1 else f"You said: {names[0]}"
    for word in reply.split(" "):
        yield Append(word + " ")
        await asyncio.sleep(0.05)
'''


class Recorded:
    """A command in a terminal emulator."""

    def __init__(self, *command: str, columns: int = 88, rows: int = 16) -> None:
        self.screen = pyte.Screen(columns, rows)
        stream = pyte.ByteStream(self.screen)
        main, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self._command = [sys.executable, "-m", "tidewire", *command]
        self.process = subprocess.Popen(self._command, stdin=side, stdout=side, stderr=side, env=environment)
        os.close(side)
        self._main = main
        self._lock = threading.Lock()

        def read() -> None:
            try:
                while chunk := os.read(main, 65536):
                    with self._lock:
                        stream.feed(chunk)
            except OSError:
                pass  # The command has closed the terminal.

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> None:
        """Wait until the screen shows a regular expression."""
        give_up = time.monotonic() + LIMIT
        while not re.search(pattern, "\n".join(line.rstrip() for line in self.screen.display), re.MULTILINE):
            if time.monotonic() > give_up:
                sys.exit(f"the terminal does not show {pattern!r}:\n" + "\n".join(self.screen.display))
            time.sleep(0.02)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self, number: int | None = None) -> None:
        """Wait for the end of the command, after a signal if there is one."""
        if number is not None:
            self.process.send_signal(number)
        self.process.wait(LIMIT)
        self._reader.join(LIMIT)

    def save(self, path: Path, url: str, command: str, *, light: bool = False) -> None:
        """Save the screen as an SVG image, below the command that a user would type."""
        text = Text.assemble((f"$ tidewire {command}\n", "bold"))
        with self._lock:
            last = max((at for at, line in enumerate(self.screen.display) if line.strip()), default=0)
            for row in range(last + 1):
                for column in range(self.screen.columns):
                    cell = self.screen.buffer[row][column]
                    text.append(cell.data, _style(cell))
                text.append("\n")
        text.rstrip()
        text = Text(ADDRESS).join(text.split(url, allow_blank=True))
        console = Console(
            record=True,
            width=self.screen.columns,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
        )
        console.print(text, soft_wrap=True)
        theme = DEFAULT_TERMINAL_THEME if light else MONOKAI
        svg = console.export_svg(
            title=f"tidewire {command.split(' ', maxsplit=1)[0]}", theme=theme, unique_id=path.stem
        )
        # By default rich refers to a web font. Remove the reference, because the image must not load external resources.
        svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
        svg = re.sub(r"font-family:[^;]+;", f"font-family: {FONT};", svg)
        path.write_text(re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL), encoding="utf-8")


def _style(cell: pyte.screens.Char) -> Style:
    def color(name: str) -> str | None:
        if name == "default":
            return None
        name = {"brown": "yellow"}.get(name.removeprefix("bright"), name.removeprefix("bright"))
        return f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else name

    return Style(color=color(cell.fg), bold=cell.bold, underline=cell.underscore, reverse=cell.reverse)


@contextmanager
def serving(*arguments: str, port: int = 0) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """Run `tidewire serve` without a terminal, and yield its process and its URL."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "port")
        command = [
            sys.executable,
            "-m",
            "tidewire",
            "serve",
            *arguments,
            "--port",
            str(port),
            "--port-file",
            str(file),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            give_up = time.monotonic() + LIMIT
            while not (file.exists() and file.read_text().strip()):
                if process.poll() is not None or time.monotonic() > give_up:
                    sys.exit(f"the server did not start: {' '.join(command)}")
                time.sleep(0.05)
            yield process, f"http://127.0.0.1:{file.read_text().strip()}"
        finally:
            process.terminate()
            process.wait(LIMIT)


def record_model(images: Path) -> None:
    """Record a generation of the default model: while it runs, dark and wide, and light and narrow."""
    with serving("--log", "memory") as (_, url):
        words = ("generate", "prompt=import os\n\ndef ", "max_tokens=900", "temperature=0.7", "seed=3")
        for name, columns, light in (("call", 88, False), ("call-narrow", 44, True)):
            view = Recorded("call", url, *words, "--logprobs", columns=columns)
            view.wait_for(r"\d{2,} of 900 tokens  \d+ tokens/s")
            # Stop the view, so that the screen does not change while it is saved.
            view.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            command = "call generate prompt=… --logprobs"
            view.save(images / f"{name}.svg", url, command, light=light)
            view.process.send_signal(signal.SIGCONT)
            view.end(signal.SIGTERM)


def record_app(images: Path, folder: Path) -> None:
    """Record the commands with a server of functions."""
    app = folder / "app.py"
    app.write_text(APP)
    log = ("--log", f"sqlite:///{folder}/log.db", "--shutdown-timeout", "0")
    with serving(str(app), *log) as (process, url):
        describe = Recorded("describe", url, "story")
        describe.end()
        describe.save(images / "describe.svg", url, f"describe {ADDRESS} story")

        inputs = folder / "texts.jsonl"
        texts = ["" if at % 40 == 7 else f"text {at}" for at in range(400)]
        inputs.write_text("".join(f'{{"text": "{each}"}}\n' for each in texts))
        done = Recorded("map", url, "embed", str(inputs))
        done.end()
        done.save(images / "map.svg", url, f"map {ADDRESS} embed texts.jsonl")

        chat = Recorded("chat", url)
        for question in ("My name is Ada.", "What did I say?"):
            chat.wait_for(">$")
            chat.type(question + "\r")
            chat.wait_for(re.escape(question) + r"\n.+\n>$")
        chat.save(images / "chat.svg", url, f"chat {ADDRESS}")
        chat.type("\x04")
        chat.end()

        watch = Recorded("jobs", url, "--watch", rows=12)
        watch.wait_for("updated every second")
        started = [
            Recorded("call", url, "story", f"hero={hero}", "chapters=9") for hero in ("Ada", "Bo", "Cy")
        ]
        started[0].wait_for("of 99 words")
        watch.wait_for("running(.*\n)+.*running")
        watch.save(images / "jobs.svg", url, f"jobs {ADDRESS} --watch")
        watch.end(signal.SIGTERM)
        port = int(url.rpartition(":")[2])
        process.kill()
        process.wait()
        started[0].wait_for("connection lost; retrying in")
        started[0].save(images / "reconnect.svg", url, f"call {ADDRESS} story hero=Ada chapters=9")
        with serving(str(app), *log, port=port):
            for each in started:
                each.end()
        started[0].save(images / "reconnected.svg", url, f"call {ADDRESS} story hero=Ada chapters=9")

    serve = Recorded("serve", str(app), "--port", "0", rows=24)
    serve.wait_for("queued")
    found = re.search(r"http://[\d.:]+", "\n".join(serve.screen.display))
    assert found is not None
    calls = [
        subprocess.Popen(
            [*serve._command[:3], "call", found[0], "story", "chapters=20"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(5)
    ]
    serve.wait_for("3 queued  2 running")
    serve.save(images / "serve.svg", found[0], "serve app.py")
    for each in calls:
        each.terminate()
        each.wait()
    serve.end(signal.SIGINT)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        record_app(target, Path(temporary))
    record_model(target)
