"""Model code of the text engine: loading checkpoints, the forward pass, attention and the KV cache."""
