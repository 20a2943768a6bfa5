"""Draw the surprise of each token of a text, and the entropy of the model's choice, with matplotlib.

$ tidewire serve                                                         # in another terminal
$ TIDEWIRE_URL=http://127.0.0.1:8000 python docs/examples/surprise.py surprise.png
"""

import sys

import numpy as np
from matplotlib.figure import Figure

from tidewire import Client

with Client() as client:
    job = client.submit("generate", prompt="def mean(values):", max_tokens=40, seed=4, top_logprobs=20)
    texts = [token.text for token in job.tokens()]
    found = job.logprobs()

surprise = -found.logprobs / np.log(2)
shares = np.exp(found.top_logprobs)
shares = np.column_stack([shares, np.clip(1 - shares.sum(axis=1), 0, 1)])  # all other tokens as one candidate
entropy = -(shares * np.log2(shares, where=shares > 0, out=np.zeros_like(shares))).sum(axis=1)

figure = Figure(figsize=(10, 3.4), layout="constrained")
axes = figure.subplots()
axes.bar(range(len(texts)), surprise, color="#e67700", label="surprise of the token")
axes.step(range(len(texts)), entropy, where="mid", color="#0b7285", label="entropy of the choice, at least")
axes.set_xticks(range(len(texts)), [repr(text) for text in texts], rotation=90, family="monospace", size=7)
axes.set_ylabel("bits")
axes.legend()
figure.savefig(sys.argv[1], dpi=120, bbox_inches="tight")
print(f"{len(texts)} tokens, {surprise.sum():.0f} bits; perplexity {np.exp(-found.logprobs.mean()):.1f}")
