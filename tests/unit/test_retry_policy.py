"""`RetryPolicy`: its checks and the former names of its fields."""

import copy
import pickle
from dataclasses import replace

import pytest

from tidewire import RetryPolicy


@pytest.mark.parametrize(
    "invalid",
    [
        {"patience": 0},
        {"attempts": 0},
        {"min_delay": 0},
        {"min_delay": 2, "max_delay": 1},
        {"jitter": 1},
        {"jitter": -0.1},
    ],
)
def test_invalid_policy_is_refused(invalid):
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**invalid)


def test_unknown_field_names_raise():
    with pytest.raises(TypeError, match="unexpected keyword argument 'patient'"):
        RetryPolicy(patient=5)


def test_policy_can_be_copied_and_pickled():
    policy = RetryPolicy(5.0, attempts=3)
    assert pickle.loads(pickle.dumps(policy)) == copy.copy(policy) == replace(policy, patience=5.0) == policy
