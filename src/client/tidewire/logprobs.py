"""Public import path of `tidewire.jobs.logprob_arrays`: log-probabilities of a whole generation as numpy arrays."""

from tidewire.jobs.logprob_arrays import Logprobs, logprobs_of

__all__ = ["Logprobs", "logprobs_of"]
