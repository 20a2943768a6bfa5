"""Seed of the random choices of this run. The variable `CHAOS_SEED` repeats a run, and tests print the seed."""

import os
import random

SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().randrange(2**32)))
