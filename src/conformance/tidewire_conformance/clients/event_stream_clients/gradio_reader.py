"""gradio_client: the reader in `Client.stream_messages`, which shows neither types nor ids.

The reader accepts only messages of Gradio in JSON. So that it can read any stream, the adapter replaces the JSON decoder
of its module by a function that makes each data a message.
"""

import queue
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, Final

from tidewire_conformance.clients.event_stream_clients.adapter_loop import Opened, library, serve

_ANY: Final = "any"


class _Messages(queue.SimpleQueue[Any]):
    """Queue with the method that the reader calls."""

    append = queue.SimpleQueue.put


def open_stream(url: str, _: dict[str, Any]) -> Opened:
    """Read one response. The library does not reconnect."""
    module: Any = library("gradio_client.client", "gradio_client")
    module.json = SimpleNamespace(loads=lambda text: {"msg": "data", "event_id": _ANY, "data": text})
    messages = _Messages()
    client = SimpleNamespace(
        httpx_kwargs={"follow_redirects": True}, ssl_verify=True, sse_url=url, headers={}, cookies=None, pending_lock=threading.Lock(),
        pending_messages_per_event=defaultdict(lambda: messages), pending_event_ids={_ANY}, stream_open=True,
    )  # fmt: skip

    def read() -> None:
        try:
            module.Client.stream_messages(client, "sse_v3", "x")
            messages.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again by the generator
            messages.put(error)

    client.pending_messages_per_event[_ANY] = messages
    threading.Thread(target=read, daemon=True).start()
    while (message := messages.get()) is not None:
        if isinstance(message, BaseException):
            raise message
        yield {"data": message["data"].removeprefix(" ")}


if __name__ == "__main__":
    library("gradio_client.client", "gradio_client")
    serve("gradio_client", [], open_stream)
