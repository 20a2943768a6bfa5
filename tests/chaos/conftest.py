import pytest

from support.random_seed import SEED


@pytest.fixture(autouse=True)
def _seed():
    print(f"CHAOS_SEED={SEED}")
