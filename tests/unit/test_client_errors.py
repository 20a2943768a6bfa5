"""Exception hierarchy of the client: documented tree, message parts and pickling."""

import inspect
import pickle
import re

import pytest

from support.tables import for_each_case
from tidewire import errors
from tidewire.errors import Where, refusal
from tidewire.protocol.problems import REGISTRY, problem

CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TidewireError)
]


def documented_parents():
    """Map each class to its parent, as drawn in the docstring of `tidewire.errors`."""
    path = []
    found = {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"^([ │├└─]*)([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth = (len(match[1]) - 4) // 4
        del path[depth:]
        found[match[2]] = path[-1] if path else None
        path.append(match[2])
    return found


def test_documented_tree_shows_every_class_below_its_parent():
    assert documented_parents() == {
        kind.__name__: next((base.__name__ for base in kind.__mro__[1:] if base in CLASSES), None)
        for kind in CLASSES
    }


@for_each_case((kind,) for kind in CLASSES)
def test_every_class_has_a_docstring_and_a_name_ending_in_error(kind):
    assert kind.__name__.endswith("Error")
    assert kind.__doc__


@for_each_case((kind,) for kind in CLASSES)
def test_error_message_and_attributes_survive_pickling(kind):
    where = Where("GET", "http://h/v1/jobs/j1/events", "j1", "1-17", 410, "r-9")
    error = kind(
        "the stream ended early", where=where, problem=problem("job_expired"), advice="Open it again."
    )
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert (
            str(one)
            == "the stream ended early (GET http://h/v1/jobs/j1/events → 410; last event 1-17; request r-9). Open it again."
        )
        assert (one.status_code, one.code, one.request_id) == (410, "job_expired", "r-9")
        assert (one.job_id, one.last_event_id, one.retryable) == ("j1", "1-17", False)


def test_repr_shows_the_current_description():
    error = errors.ItemFailedError("item 0 failed: no")
    error.what = "input 256 failed: no"
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert repr(one) == "ItemFailedError('input 256 failed: no')"


@for_each_case((kind,) for kind in CLASSES)
def test_unknown_attributes_are_none(kind):
    error = kind("the stream ended early.")
    assert str(error).startswith("the stream ended early.")
    assert (error.status_code, error.code, error.request_id, error.job_id, error.last_event_id) == (None,) * 5
    assert error.retryable is False


@pytest.mark.parametrize(
    "kind",
    [
        errors.ConnectTimeoutError,
        errors.SilenceTimeoutError,
        errors.TotalTimeoutError,
        errors.QueueTimeoutError,
    ],
)
def test_timeout_classes_subclass_the_builtin_timeout_error(kind):
    assert issubclass(kind, TimeoutError)


@for_each_case((code,) for code in REGISTRY)
def test_every_registered_problem_code_maps_to_a_request_error(code):
    error = refusal(problem(code, "what happened here"))
    assert isinstance(error, errors.RequestError)
    assert str(error).startswith(f"what happened here [{code}].")
    assert error.retryable is REGISTRY[code].retryable


def test_job_id_is_shown_if_the_url_does_not_contain_it():
    assert str(Where("POST", "http://h/x", "j1")) == "POST http://h/x; job j1"
    assert str(Where(job_id="j1", last_event_id="1-2")) == "job j1; last event 1-2"
