"""Stream a generated text to the terminal.

$ tidewire serve                                                         # in another terminal
$ TIDEWIRE_URL=http://127.0.0.1:8000 python docs/examples/stream.py
"""

from tidewire import Client

with Client() as client:
    job = client.submit("generate", prompt="def read_lines(path):", max_tokens=64)
    for update in job:
        print(update.text, end="", flush=True)
    print()
