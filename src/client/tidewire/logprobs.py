"""Log-probabilities of a whole generation as numpy arrays: the public path of `tidewire.jobs.logprobs`."""

from tidewire.jobs.logprobs import Logprobs, logprobs_of

__all__ = ["Logprobs", "logprobs_of"]
