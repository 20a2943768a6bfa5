"""HTTP requests to an engine (`EngineRequests`): its description, and the streams of its answers. Only this module uses httpx.

Redirects are not followed, because the key would be sent to another place.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from tidewire_server.generation.engine_interface import EngineError, InputError
from tidewire_server.generation.upstream.answer_reader import reason_of
from tidewire_server.generation.upstream.url_pool import UrlError
from tidewire_server.tracing import trace_headers

CONNECT_TIMEOUT: Final = 10.0
"""Time limit for a connection to an engine, in seconds."""
DESCRIBE_TIMEOUT: Final = 10.0
"""Time limit for a request that describes an engine, in seconds."""
MAX_BODY_BYTES: Final = 1 << 20
"""Maximum size of an answer that is not a stream, in bytes."""
MAX_MODELS: Final = 1000
"""Maximum number of models that are read from an engine's list."""

_TOO_LONG: Final = (
    "context length",
    "context size",
    "context_length",
    "context window",
    "too long",
    "maximum input",
)
"""Parts of the messages with which engines reject a prompt that is too long."""
_OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


@dataclass(frozen=True)
class EngineDescription:
    """What an engine says about itself."""

    kind: str
    models: tuple[str, ...]
    context: int | None = None
    chat: bool = True
    """Whether the model has a chat template, as far as the engine says so."""


class EngineRequests:
    """HTTP client for the engines of one upstream. It belongs to the event loop that runs when it is created.

    Args:
        key: Bearer token, or None.
        timeout: Number of seconds without a byte after which an engine counts as silent.
    """

    def __init__(self, key: str | None, timeout: float) -> None:
        self._key = key
        self._timeout = timeout
        bearer = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(
            headers={"accept-encoding": "identity", **bearer},
            # The environment could have credentials for other hosts, or a proxy that sees the key.
            trust_env=False,
            verify=ssl.create_default_context(),
            # An engine that closes an idle connection while a request is sent on it would count as lost.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def describe(self, url: str) -> EngineDescription:
        """Ask an engine for its kind, its models and its limits.

        Raises:
            UrlError: The engine does not answer, is loading its model, or rejects the key.
        """
        root = url.removesuffix("/v1")
        status, models = await self._get(f"{url}/models", required=True)
        data = models.get("data")
        entries = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
        names = tuple(each["id"] for each in entries[:MAX_MODELS] if isinstance(each.get("id"), str))
        first = entries[0] if entries else {}
        kind = _OWNERS.get(str(first.get("owned_by")), "openai")
        meta = first.get("meta")
        contexts = [first.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None]
        chat = True
        if kind == "llama.cpp":
            chat = bool((await self._get(f"{root}/props"))[1].get("chat_template"))
        elif kind == "openai":
            _, info = await self._get(f"{root}/info")
            if "text-generation" in str(info.get("router", "")) or "max_total_tokens" in info:
                kind, contexts = "tgi", [info.get("max_total_tokens")]
            else:
                paths = (await self._get(f"{root}/openapi.json"))[1].get("paths")
                if isinstance(paths, dict) and "/load_model" in paths and "/v1/completions" in paths:
                    kind = "transformers"
        if status >= 500 and kind == "openai":
            raise UrlError(f"answers with the status {status}")
        context = next((each for each in contexts if type(each) is int and 0 < each < 2**31), None)
        return EngineDescription(kind, names, context, chat)

    async def _get(self, url: str, *, required: bool = False) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON object of an answer, which is empty if the answer has none.

        Args:
            url: The URL.
            required: Whether an answer such as 401 or 503 is an error.
        """
        timeout = httpx.Timeout(DESCRIBE_TIMEOUT)
        async with self._answer(self._http.build_request("GET", url, timeout=timeout)) as response:
            if required:
                _check_status(response)
            content = await _json_of(response)
            return response.status_code, content if isinstance(content, dict) else {}

    async def stream(self, url: str, path: str, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Send a request, and yield the bytes of its answer, after an empty piece when the engine has accepted the request.
        Closing the iterator closes the connection.

        Raises:
            UrlError: The engine cannot be reached, fails, is silent or busy, rejects the key, or the connection breaks.
            InputError: The engine rejects the input.
            EngineError: The engine does not serve this request.
        """
        timeout = httpx.Timeout(self._timeout, connect=CONNECT_TIMEOUT)
        request = self._http.build_request(
            "POST", f"{url}/{path}", json=body, headers=trace_headers(), timeout=timeout
        )
        async with self._answer(request) as response:
            _check_status(response)
            if response.status_code != 200:
                raise self._rejection(response.status_code, path, await _json_of(response))
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise EngineError("the engine did not answer with an event stream")
            yield b""
            async for data in response.aiter_raw():
                yield data

    @contextlib.asynccontextmanager
    async def _answer(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Send a request, and convert the exceptions of httpx."""
        response = None
        try:
            response = await self._http.send(request, stream=True)
            if response.headers.get("content-encoding", "identity") != "identity":
                # A small compressed answer could fill the memory.
                raise EngineError(
                    "the engine compressed its answer, although this server does not accept that"
                )
            yield response
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise UrlError(f"cannot be reached ({type(error).__name__})") from None
        except httpx.TimeoutException:
            raise UrlError("was silent for too long", began=True) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise UrlError(f"closed the connection ({type(error).__name__})", began=True) from None
        finally:
            if response is not None:
                await response.aclose()

    def _rejection(self, status: int, path: str, content: Any) -> EngineError | InputError:
        """Return the error for an answer that rejects the request, without the key."""
        reason = reason_of(content)
        if self._key:
            reason = reason.replace(self._key, "***")
        if status in {400, 413, 422}:
            too_long = status == 413 or any(part in reason.lower() for part in _TOO_LONG)
            code = "input_too_long" if too_long else "invalid_input"
            return InputError(f"the engine rejected the input: {reason}", member="", code=code)
        return EngineError(
            f"the engine answered {path} with the status {status}: {reason}; check --upstream and --model"
        )


def _check_status(response: httpx.Response) -> None:
    """Raise an error if the answer says something about the engine and not about the request."""
    status = response.status_code
    if status in {401, 403}:
        advice = "set TIDEWIRE_UPSTREAM_KEY or upstream_key_file"
        raise UrlError(f"rejects the key of this server ({status}); {advice}", "rejected")
    if status in {429, 503}:
        wait = response.headers.get("retry-after", "")
        seconds = float(wait) if wait.isdecimal() and len(wait) < 9 else None
        raise UrlError(f"is busy or loads its model ({status})", "busy", wait=seconds)
    if 300 <= status < 400:
        raise UrlError(f"answers with a redirect ({status}), which is not followed", began=True)
    if status >= 500 and response.request.method == "POST":
        raise UrlError(f"answers with the status {status}", began=True)


async def _json_of(response: httpx.Response) -> Any:
    """Read a limited number of bytes in a limited time, and return their JSON, or None."""
    data = bytearray()
    try:
        async with asyncio.timeout(DESCRIBE_TIMEOUT):
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_BODY_BYTES:
                    return None
        return json.loads(data)
    except (ValueError, RecursionError, TimeoutError):
        return None
