"""HTTP client for engines (`EngineRequests`), which reads their descriptions and streams. Only this module uses httpx2.

Redirects are not followed, because the bearer token (*key*) would be sent to another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, NamedTuple

import httpx2

from tidewire_server.generation.engine_interface import EngineError, InputError
from tidewire_server.generation.upstream.answer_reader import reason_of, rejection
from tidewire_server.generation.upstream.url_pool import UrlError
from tidewire_server.tracing import trace_headers

ANSWER_TIMEOUT: Final = 10.0
"""Time limit for connecting to an engine, and for reading its description, in seconds."""
MAX_BODY_BYTES: Final = 1 << 20
"""Maximum size of an answer that is not a stream, in bytes."""

_OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}


class NotFoundError(EngineError):
    """The engine answers with 404, because it does not have the path, or because its model has changed."""


class EngineDescription(NamedTuple):
    """Properties that an engine reports. Those that it does not report are None or empty."""

    kind: str
    models: tuple[str, ...]
    context: int | None
    chat: bool
    """Whether the model has a chat template."""


class EngineRequests:
    """HTTP client for the engines of one upstream. Create and use it on the same event loop. A request fails after `timeout`
    seconds without a received byte.
    """

    def __init__(self, key: str | None, timeout: float) -> None:
        self._key, self._timeout = key, timeout
        bearer = {} if key is None else {"authorization": f"Bearer {key}"}
        self._http = httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **bearer},
            # Ignore environment variables, which could contain credentials for other hosts, or a proxy that would see the key.
            trust_env=False,
            verify=ssl.create_default_context(),
            # Keep no idle connections. If an engine closed one just as a request is sent, the request would be lost.
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def describe(self, url: str, kind: str | None, model: str | None = None) -> EngineDescription:
        """Ask an engine for its models, the context length of one model, and its kind unless it is known. Raise a `UrlError` if
        the engine does not answer, is loading its model, rejects the key, or does not list its models.
        """
        root = url.removesuffix("/v1")
        answer, models = await self._get(f"{url}/models")
        _check_status(answer)
        data = models.get("data")
        entries = [each for each in data if isinstance(each, dict)] if isinstance(data, list) else []
        names = tuple(each["id"] for each in entries if isinstance(each.get("id"), str))
        first = entries[0] if entries else {}
        asks, kind = kind is None, kind or _OWNERS.get(str(first.get("owned_by")), "openai")
        chosen = next((each for each in entries if model in (None, each.get("id"))), {})
        # In vLLM, an adapter (LoRA) has the context length of its base model.
        base = next((each for each in entries if each.get("id") == chosen.get("parent")), {})
        meta = chosen.get("meta")
        contexts = [
            chosen.get("max_model_len"),
            base.get("max_model_len"),
            meta.get("n_ctx") if isinstance(meta, dict) else None,
        ]
        chat = True
        if kind == "llama.cpp":
            chat = bool((await self._get(f"{root}/props"))[1].get("chat_template"))
        elif asks and kind == "openai":
            _, info = await self._get(f"{root}/info")
            if "text-generation" in str(info.get("router", "")) or "max_total_tokens" in info:
                kind, contexts = "tgi", [info.get("max_total_tokens")]
            else:
                paths = (await self._get(f"{root}/openapi.json"))[1].get("paths")
                if isinstance(paths, dict) and "/load_model" in paths and "/v1/completions" in paths:
                    kind = "transformers"
        lists = answer.status_code == 200 and isinstance(data, list)
        # `transformers serve` cannot list its models if it serves a folder.
        if not lists and (kind != "transformers" or answer.status_code < 500):
            raise UrlError(
                f"answers GET …/models with the status {answer.status_code}, and not with a list of models; check "
                "--upstream, whose URL usually ends with /v1"
            )
        context = next((each for each in contexts if type(each) is int and 0 < each < 2**31), None)
        return EngineDescription(kind, names, context, chat)

    async def _get(self, url: str) -> tuple[httpx2.Response, dict[str, Any]]:
        """Send a GET request. Return the response and its JSON object. If the body is not an object, this is an empty dict."""
        async with self._answer("GET", url, ANSWER_TIMEOUT, timeout=ANSWER_TIMEOUT) as response:
            content = await _json_of(response)
            return response, content if isinstance(content, dict) else {}

    async def stream(self, url: str, path: str, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        """Send a request. Yield empty bytes when the engine has accepted it, then the bytes of the answer. Closing the
        iterator closes the connection.

        Raises:
            UrlError: The engine cannot be reached, fails, is silent or busy, rejects the key, or the connection breaks.
            InputError: The engine rejects the input.
            NotFoundError: The engine does not have the path or the model.
            EngineError: The engine does not serve this request.
        """
        timeout = httpx2.Timeout(self._timeout, connect=ANSWER_TIMEOUT)
        options = {"json": body, "headers": trace_headers(), "timeout": timeout}
        within = ANSWER_TIMEOUT + self._timeout
        async with self._answer("POST", f"{url}/{path}", within, **options) as response:
            _check_status(response)
            if response.status_code != 200:
                raise self._error_of(response.status_code, path, await _json_of(response))
            if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                raise EngineError("the engine did not answer with an event stream")
            yield b""
            async for data in response.aiter_raw():
                yield data

    @contextlib.asynccontextmanager
    async def _answer(
        self, method: str, url: str, within: float, **options: Any
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request whose answer must begin within `within` seconds. Exceptions of httpx2 become `UrlError`."""
        try:
            # Limit the whole wait. httpx2 limits only each read, and an engine may send informational responses (1xx) forever.
            async with (
                asyncio.timeout(within) as limit,
                self._http.stream(method, url, **options) as response,
            ):
                limit.reschedule(None)
                if response.headers.get("content-encoding", "identity") != "identity":
                    # Refuse compressed answers, because a small answer could fill the memory when it is decompressed.
                    if method == "GET":
                        raise UrlError("compresses its answers, which this server does not accept")
                    raise EngineError("the engine compressed its answer, which this server does not accept")
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            # Remove the host from the end of a message about a certificate, because clients see this error.
            reason = str(error).partition(", certificate is not valid for")[0] or type(error).__name__
            raise UrlError(f"cannot be reached ({reason})") from None
        except (TimeoutError, httpx2.TimeoutException):
            raise UrlError("was silent for too long", began=True) from None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise UrlError(f"closed the connection ({type(error).__name__})", began=True) from None

    def hide(self, text: str) -> str:
        """Remove the key from a text that the engine has sent."""
        return text.replace(self._key, "***") if self._key else text

    def _error_of(self, status: int, path: str, content: Any) -> EngineError | InputError:
        """Return the error for a status that `_check_status` allows, except 200."""
        if status >= 500:
            reason = f": {self.hide(reason_of(content))}" if isinstance(content, dict) else ""
            message = f"answers with the status {status}{reason}"
            return UrlError(message, began=True, of_request=status == 500)
        reason = self.hide(reason_of(content)) if content else "it sent no reason"
        if status in {400, 413, 422}:
            return rejection(status, f"rejected the input: {reason}")
        kind = NotFoundError if status == 404 else EngineError
        return kind(f"the engine answered {path} with the status {status}: {reason}; check --upstream")


def _check_status(response: httpx2.Response) -> None:
    """Raise an error if the status indicates a problem of the engine rather than of the request."""
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


async def _json_of(response: httpx2.Response) -> Any:
    """Read a body in limited time. Return its JSON value. If it is not JSON, return its text; if it is too large, None."""
    data = bytearray()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_BODY_BYTES:
                    return None
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")
    except TimeoutError:
        return None
