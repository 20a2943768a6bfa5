"""Exit codes of the `tidewire` commands, and the text in `--help` that explains them."""

from typing import Final

from tidewire.errors import (
    InvalidValueError,
    ItemFailedError,
    JobCancelledError,
    JobFailedError,
    ProtocolError,
    RequestError,
    ResumeFileError,
    SeveralItemsError,
    TidewireError,
    TotalTimeoutError,
    VoidTextError,
)

SUCCESS: Final = 0
JOB_FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
PROTOCOL_FAULT: Final = 4
OUTPUT_FAILED: Final = 5
TEXT_RETRACTED: Final = 6
TIMED_OUT: Final = 124
"""Exit code after a time-out. The command `timeout` of GNU coreutils uses the same code."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

_MEANINGS: Final = {
    SUCCESS: "success",
    JOB_FAILED: "the job failed or was cancelled",
    USAGE: "the usage or the input is invalid",
    UNREACHABLE: "the server is unreachable or too busy",
    PROTOCOL_FAULT: "the server violates the protocol",
    OUTPUT_FAILED: "the output cannot be written",
    TEXT_RETRACTED: "the server retracted text that was already printed",
    TIMED_OUT: "the time of --timeout passed (the job keeps running)",
    INTERRUPTED: "the command was interrupted (the job of `call` or `attach` keeps running)",
    BROKEN_PIPE: "the output pipe was closed, for example by `head`",
}

EPILOG: Final = f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in _MEANINGS.items())}."
"""Text at the end of the help of the commands."""


def exit_code(error: TidewireError) -> int:
    """Return the exit code of a command that ends with an error of the client."""
    match error:
        case ResumeFileError() | SeveralItemsError():
            return USAGE
        case TotalTimeoutError():
            return TIMED_OUT
        case JobFailedError() | JobCancelledError() | ItemFailedError() | InvalidValueError():
            return JOB_FAILED
        case ProtocolError():
            return PROTOCOL_FAULT
        case VoidTextError():
            return TEXT_RETRACTED
        case RequestError():
            status = error.status_code
            busy = status is not None and (status in {408, 429} or status >= 500)
            return UNREACHABLE if busy else USAGE
        case ValueError():
            return USAGE
        case _:
            return UNREACHABLE
