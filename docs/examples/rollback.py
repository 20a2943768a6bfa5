"""Retract the end of a text that was already sent, as a search does that finds a better continuation.

$ python docs/examples/rollback.py
"""

import time

from tidewire import Client
from tidewire_server import Server, Stream

DRAFTS = ("The answer is 41", "The answer is 42", "The question comes first")

server = Server()


@server.endpoint
def write(stream: Stream[str]) -> None:
    """Write the first draft, and change it to each of the others."""
    text = ""
    for draft in DRAFTS:
        same = next((at for at, (a, b) in enumerate(zip(text, draft, strict=False)) if a != b), len(text))
        stream.truncate(len(text) - same)
        for letter in draft[same:]:
            stream.append(letter)
            time.sleep(0.02)
        text = draft


if __name__ == "__main__":
    with server.running() as url, Client(url) as client:
        shown = ""
        for update in client.submit("write"):
            kept = (
                len(shown) - update.deleted
            )  # code points to keep; reading `deleted` accepts the retraction
            shown = shown[:kept] + update.text
            print(f"\r\x1b[K{shown}", end="", flush=True)
    print(f"\nThe text is: {shown}")
