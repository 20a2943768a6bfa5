"""Engine with OpenAI's API in its own process, which generates a known text and misbehaves as a test tells it.

`POST /script` sets what the engine does, `GET /journal` returns the requests that it has received. After a mark in the
prompt, the engine continues its text: the prompt `mark + text[:n]` is followed by `text[n:]`. A token has three characters.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx2

from proof.forked_process import Forked
from support.free_port import free_port
from support.reference_server import eventually

MARK = "»"
TOKEN = 3
TEXT = "".join(f"{number} né 😀 of " for number in range(4000))
"""The text that the engine generates."""
START_LIMIT = 30.0


def expected(tokens: int) -> str:
    """Return the text of the first tokens."""
    return TEXT[: TOKEN * tokens]


def is_ready(url: str) -> bool:
    """Return whether a server has reached its engine."""
    return httpx2.get(f"{url}/readyz").status_code == 200


def until_ready(url: str) -> None:
    """Wait until a server has reached its engine."""
    eventually(lambda: is_ready(url), START_LIMIT)


class ScriptedEngine:
    """The engine, within a `with` block."""

    def __init__(self, **settings: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.settings = settings
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the engine, and wait until it answers."""
        self._process = Forked(
            "support.scripted_engine",
            str(self.port),
            json.dumps(self.settings),
            cwd=Path(__file__).parents[1],
        )
        give_up = time.monotonic() + START_LIMIT
        while True:
            try:
                self.journal()
            except httpx2.HTTPError:
                assert time.monotonic() < give_up, "the engine did not start"
                time.sleep(0.01)
            else:
                return

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def script(self, **settings: Any) -> None:
        """Set what the engine does:

        kind: its `owned_by`; `models`: names or entries of the listed models, or a status; `status`: of all answers; `key`:
        accepted key.
        answers: what the next requests get, and the last one all later requests. An object with `status`, `headers`, and
        `send`: a list of texts, `{"hex": bytes}`, `{"repeat": text, "times": n}`, `{"tokens": n}`, `"cut"` or `"hang"`.
        With `silent`, no byte is sent.
        pause: seconds before each token. tokens: maximum number of tokens in a chunk.
        """
        httpx2.post(f"http://127.0.0.1:{self.port}/script", json=settings, timeout=10).raise_for_status()

    def journal(self) -> list[dict[str, Any]]:
        """Return the requests for texts, each with its path, headers and body, and with `closed` if the client left early."""
        return httpx2.get(f"http://127.0.0.1:{self.port}/journal", timeout=10).json()


@contextmanager
def scripted_engine(**settings: Any) -> Iterator[ScriptedEngine]:
    with ScriptedEngine(**settings) as engine:
        yield engine


# ---- the process --------------------------------------------------------------------------------------------------


class CutError(Exception):
    """The script ends the connection."""


class Script:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.journal: list[dict[str, Any]] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, CutError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.respond(reader, writer, method, path, headers, body)
        writer.close()

    async def respond(self, reader, writer, method, path, headers, body):
        settings = self.settings
        if path == "/script":
            self.settings, self.journal = json.loads(body), []
            return await self.send(writer, 200, "{}")
        if path == "/journal":
            return await self.send(writer, 200, json.dumps(self.journal))
        if "status" in settings:
            return await self.send(writer, settings["status"], '{"error":{"message":"scripted"}}')
        if settings.get("key") and headers.get("authorization") != f"Bearer {settings['key']}":
            return await self.send(writer, 401, '{"error":{"message":"wrong key"}}')
        if method == "GET":
            return await self.describe(writer, path)
        entry = {"path": path, "headers": headers, "body": json.loads(body), "closed": False}
        self.journal.append(entry)
        answers = settings.get("answers") or [{}]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        watch = asyncio.create_task(reader.read(1))
        try:
            await self.answer(writer, entry["body"], answer, watch)
        finally:
            entry["closed"] = watch.done()
            watch.cancel()
        raise CutError  # Each answer has its own connection.

    async def describe(self, writer, path):
        models = self.settings.get("models", ["scripted"])
        if path == "/v1/models" and isinstance(models, int):
            return await self.send(writer, models, "Internal Server Error")
        if path == "/v1/models":
            kind = self.settings.get("kind", "vllm")
            data = [
                name
                if isinstance(name, dict)
                else {"id": name, "owned_by": kind, "max_model_len": self.settings.get("context")}
                for name in models
            ]
            return await self.send(writer, 200, json.dumps({"object": "list", "data": data}))
        found = self.settings.get("pages", {}).get(path)
        return await self.send(writer, 404 if found is None else 200, json.dumps(found or {}))

    async def send(self, writer, status, text, headers=()):
        head = [
            f"HTTP/1.1 {status} x",
            "content-type: application/json",
            f"content-length: {len(text.encode())}",
            *headers,
        ]
        writer.write(("\r\n".join(head) + "\r\n\r\n" + text).encode())
        await writer.drain()

    async def answer(self, writer, request, answer, watch):
        if answer.get("silent"):
            await watch
            raise CutError
        status = answer.get("status", 200)
        headers = [f"{name}: {value}" for name, value in answer.get("headers", {}).items()]
        if status != 200:
            await self.send(
                writer, status, json.dumps(answer.get("body", {"error": {"message": "no"}})), headers
            )
            return
        media = answer.get("media_type", "text/event-stream")
        head = ["HTTP/1.1 200 OK", f"content-type: {media}", "transfer-encoding: chunked", *headers]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
        for step in answer.get("send", [{"tokens": None}]):
            if step == "cut":
                await writer.drain()
                raise CutError
            if step == "hang":
                await watch
                raise CutError
            if isinstance(step, str):
                await self.chunk(writer, step.encode())
            elif "hex" in step:
                await self.chunk(writer, bytes.fromhex(step["hex"]))
            elif "repeat" in step:
                for _ in range(step["times"]):
                    await self.chunk(writer, step["repeat"].encode())
                    if watch.done():
                        raise CutError
            else:
                await self.tokens(writer, request, step["tokens"], watch)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def chunk(self, writer, data):
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    async def tokens(self, writer, request, limit, watch):
        """Generate text after the mark. With a limit, end after that number of tokens, without an end of the answer."""
        chat = "messages" in request
        if chat:
            last = request["messages"][-1]
            at = len(last["content"]) if last["role"] == "assistant" else 0
        else:
            _, found, so_far = request["prompt"].partition(MARK)
            at = len(so_far) if found else 0
        most = request["max_tokens"]
        counted = request.get("stream_options", {}).get("continuous_usage_stats")
        merged = self.settings.get("tokens", 1)
        number = 0
        while number < most and (limit is None or number < limit):
            count = min(merged, most - number, (limit or most) - number)
            if pause := self.settings.get("pause"):
                await asyncio.sleep(pause)
            piece = TEXT[at : at + TOKEN * count]
            at += TOKEN * count
            number += count
            await self.event(writer, request, piece, number, counted, count=count)
            if watch.done():
                raise CutError
        if limit is None:
            await self.event(writer, request, "", number, True, finish="length")
            await self.chunk(writer, b"data: [DONE]\n\n")

    async def event(self, writer, request, text, number, counted, *, count=0, finish=None):
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if "messages" in request:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        if request.get("logprobs") and count:
            ids = range(number - count, number)
            most = request.get("top_logprobs") or request["logprobs"]
            tops = [{f"token_id:{(i + j) % 50}": -0.5 - j for j in range(most)} for i in ids]
            if "messages" in request:
                choice["logprobs"] = {
                    "content": [
                        {"token": f"token_id:{i % 50}", "logprob": -0.5, "top_logprobs": [
                            {"token": name, "logprob": value} for name, value in top.items()
                        ]}
                        for i, top in zip(ids, tops, strict=True)
                    ]
                }  # fmt: skip
            else:
                choice["logprobs"] = {
                    "tokens": [f"token_id:{i % 50}" for i in ids],
                    "token_logprobs": [-0.5] * count,
                    "top_logprobs": tops,
                }
        body: dict[str, Any] = {"id": "x", "choices": [choice]}
        if counted:
            body["usage"] = {"prompt_tokens": 7, "completion_tokens": number}
        await self.chunk(writer, f"data: {json.dumps(body)}\n\n".encode())


async def main(port: int, settings: dict[str, Any]) -> None:
    server = await asyncio.start_server(Script(settings).handle, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), json.loads(sys.argv[2])))
