"""From logits to tokens: sampling, logits processors, structured output, top-n and the columns of a step."""
