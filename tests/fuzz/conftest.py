from support.fuzzing import fuzz

__all__ = ["fuzz"]
