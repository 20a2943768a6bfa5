"""Compute five thousand embeddings. Stop the script and start it again: it computes only what is missing.

$ python docs/examples/embeddings.py
"""

import sys
import zlib

import numpy as np

from tidewire import Client, MapProgress
from tidewire_server import Server

server = Server()


@server.endpoint(batch=True, max_batch_size=256)
def embed(text: list[str]) -> list[list[float]]:
    """Count the trigrams of each text in 64 buckets, and scale the counts to length 1."""
    counts = np.zeros((len(text), 64))
    for row, each in enumerate(text):
        for at in range(len(each) - 2):
            counts[row, zlib.crc32(each[at : at + 3].encode()) % 64] += 1
    return (counts / np.linalg.norm(counts, axis=1, keepdims=True)).round(4).tolist()


def show(now: MapProgress) -> None:
    print(f"\r{now.ended:,} of {now.total:,}", end="", file=sys.stderr)


if __name__ == "__main__":
    texts = [f"Order {n}: {n % 7} parts for customer {n % 41}" for n in range(5000)]
    inputs = [{"text": text} for text in texts]
    with server.running() as url, Client(url) as client:
        values = client.map("embed", inputs, resume_file="embeddings.jsonl", progress=show)
        vectors = np.array([*values])
    nearest = int(np.argsort(vectors @ vectors[0])[-2])
    print(f"{len(vectors)} vectors. The nearest one to {texts[0]!r} is {texts[nearest]!r}")
