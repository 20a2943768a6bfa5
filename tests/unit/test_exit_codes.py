"""Exit codes of the commands for errors of the client."""

import pytest

from tidewire.commands.exit_codes import exit_code
from tidewire.errors import (
    ConnectTimeoutError,
    QueueTimeoutError,
    SeveralItemsError,
    TotalTimeoutError,
    TransportError,
    Where,
    class_of,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TotalTimeoutError, 124),
        (QueueTimeoutError, 124),
        (SeveralItemsError, 2),
        (TransportError, 3),
        (ConnectTimeoutError, 3),
    ],
)
def test_an_error_has_its_exit_code(error, code):
    assert exit_code(error("failed")) == code


@pytest.mark.parametrize(("status", "code"), [(404, 2), (408, 3), (413, 2), (429, 3), (500, 3)])
def test_a_refused_request_has_the_exit_code_of_its_status(status, code):
    assert exit_code(class_of(status)("failed", where=Where(status_code=status))) == code
