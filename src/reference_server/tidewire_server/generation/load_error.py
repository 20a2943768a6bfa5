"""The error for a checkpoint that cannot be loaded, in a module that does not import torch."""


class LoadError(Exception):
    """The checkpoint cannot be loaded, or is not supported. The message gives the reason."""
