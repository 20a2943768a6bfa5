"""Text generation by other servers with OpenAI's API, such as vLLM, SGLang, TGI, llama.cpp and `transformers serve`.

Such a server is called an *engine* here. The *upstream* consists of all engines behind one endpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.tokenizer_file import TokenizerFile
from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS
from tidewire_server.generation.upstream.upstream_engine import UpstreamEngine
from tidewire_server.user_paths import user_path

if TYPE_CHECKING:
    import os

    from tidewire_server.endpoints.endpoint import OnRestart
    from tidewire_server.server import Server

__all__ = ["UpstreamEngine", "add_upstream"]


def add_upstream(
    server: Server,
    *urls: str,
    model: str | None = None,
    kind: str = "auto",
    key: str | None = None,
    concurrency: int = 64,
    timeout: float = 300.0,
    tokenizer: str | os.PathLike[str] | None = None,
    context: int | None = None,
    max_top: int = 20,
    on_restart: OnRestart | Literal["auto"] = "auto",
    share_prefixes: bool = False,
) -> None:
    """Add the endpoint `generate` to a server. It forwards requests to engines with OpenAI's API.

    The server starts before the engines answer. Until one of them has answered, it rejects new jobs with 503.

    Args:
        server: The server. It must not have an endpoint named `generate` yet.
        urls: Base URLs of engines that serve the same model, such as `http://127.0.0.1:8001/v1`.
        model: Name of the model at the engines. None selects the only model that they list.
        kind: `vllm`, `sglang`, `tgi`, `llama.cpp`, `transformers`, `openai` for any other, or `auto` to ask the engines.
        key: Bearer token for the engines.
        concurrency: Maximum number of requests that one URL processes at the same time. Additional jobs wait.
        timeout: Number of seconds without a received byte after which a request to an engine fails.
        tokenizer: Folder with the `tokenizer.json` of the model. Log-probabilities need it.
        context: Maximum number of tokens of the prompt and the generated text together. None asks the engines.
        max_top: Maximum value of `top_logprobs`.
        on_restart: How the server treats generations when their engine or the server itself stops: "continue", "rerun" or
            "fail". "auto" means "continue". A generation that cannot continue runs again, and its text is replaced from
            the first difference on.
        share_prefixes: Whether vLLM may reuse its cache for the prompts of all callers. By default, only the prompts of
            the same principal share it. The caches of other engines cannot be separated.

    Raises:
        ValueError: A URL, the key or another argument is not valid.
        LoadError: The tokenizer cannot be read.
        ModuleNotFoundError: `tokenizer` is set, and the package tokenizers is not installed.
    """
    if kind != "auto" and kind not in ENGINE_KINDS:
        raise ValueError(f"kind must be auto, {' or '.join(ENGINE_KINDS)}, not {kind!r}")
    if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("the key of the upstream must consist of visible ASCII characters")
    if not urls or not all(map(_is_base_url, urls)):
        # Do not show the URL in the message, because it could contain a key.
        example = "http://127.0.0.1:8001/v1, without credentials, which TIDEWIRE_UPSTREAM_KEY may have"
        raise ValueError(f"an upstream must be the URL of an engine, such as {example}")
    engine = UpstreamEngine(
        urls=[url.rstrip("/") for url in urls],
        model=model,
        kind=None if kind == "auto" else kind,
        key=key,
        concurrency=concurrency,
        timeout=timeout,
        tokenizer=None if tokenizer is None else TokenizerFile(user_path(tokenizer)),
        context=context,
        max_top=max_top,
        on_loss="continue" if on_restart == "auto" else on_restart,
    )
    engine.learned = add_engine(
        server,
        engine,
        on_restart=on_restart,
        share_prefixes=share_prefixes,
        start=engine.start,
        unavailable=engine.unavailable,
    )
    endpoint = server.endpoints["generate"]
    endpoint.begins_itself, engine.limit_calls = True, endpoint.limit_calls


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        return False
    return bool(host) and not (parts.query or parts.fragment or "@" in parts.netloc)
