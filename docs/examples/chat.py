"""Chat in the terminal with a model that has a chat template. The client keeps the history.

$ tidewire serve --model FOLDER                                          # in another terminal
$ TIDEWIRE_URL=http://127.0.0.1:8000 python docs/examples/chat.py
"""

from tidewire import Client

history: list[dict[str, str]] = []

with Client() as client:
    while True:
        try:
            question = input("> ")
        except EOFError:
            break
        history.append({"role": "user", "content": question})
        job = client.submit("generate", messages=history, max_tokens=200)
        for piece in job.iter_text():
            print(piece, end="", flush=True)
        print()
        history.append({"role": "assistant", "content": job.result()["text"]})
