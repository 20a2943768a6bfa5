"""Sampling of tokens from logits, with logits processors, structured output and log-probabilities."""
