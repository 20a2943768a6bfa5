"""Log-probabilities of a whole generation as numpy arrays: the public path of `tidewire.jobs.logprob_arrays`."""

from tidewire.jobs.logprob_arrays import Logprobs, logprobs_of

__all__ = ["Logprobs", "logprobs_of"]
