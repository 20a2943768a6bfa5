"""Error messages of requests whose step failed (`failure_message`)."""

from __future__ import annotations

from typing import Any

import torch

from tidewire_server.generation.torch_engine.step_scheduler import StepPlan


def failure_message(error: Exception, step: StepPlan[Any], slots: int) -> str:
    """Return the error message for a request that failed in a separate step. It contains no details of the error.

    Args:
        error: Exception that the step raised.
        step: The step. It has one request.
        slots: Maximum number of requests that run at the same time.
    """
    name = type(error).__name__
    # On a CPU, torch raises a RuntimeError.
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
    if not is_memory:
        return f"the engine failed in a step of this request ({name}); see the server's log for details"
    tokens = sum(part.end - part.start for part in step.prefill)
    work = f"{tokens} token{'' if tokens == 1 else 's'} of the prompt" if tokens else "the next token"
    return (
        f"the engine's memory does not suffice for {work} of this request ({name}); shorten the prompt, or start the "
        f"server with fewer slots (now {slots}) or a shorter context"
    )
