"""Exit codes of the commands for errors of the client."""

import pytest

from tidewire.commands.exit_codes import exit_code
from tidewire.errors import (
    ConnectTimeoutError,
    QueueTimeoutError,
    SeveralItemsError,
    TotalTimeoutError,
    TransportError,
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
