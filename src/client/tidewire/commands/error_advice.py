"""Advice of errors on the command line, which refers to commands and options instead of to calls of Python."""

from tidewire.commands.server_url import VARIABLE, command_line
from tidewire.errors import (
    AuthenticationError,
    InvalidInputError,
    NotATidewireServerError,
    QueueFullError,
    RequestError,
    StateTooLargeError,
    TidewireError,
    TotalTimeoutError,
    TransportError,
)

_PYTHON = ("client.", "Client(", "with_options", "idempotency_key", "=…")
"""Parts of the advice in `tidewire.errors` and in the client that only programs can follow."""


def advise(error: TidewireError, url: str, endpoint: str | None = None, key: str | None = None) -> None:
    """Replace an error's advice if it refers to Python.

    Args:
        error: The error.
        url: URL of the server.
        endpoint: Name of the endpoint that was called, if it is known.
        key: Idempotency key of the call, if the user has set one.
    """
    # Advice of redirects that the client does not follow.
    advice = error.advice.replace("Create the client with the URL", "Use the URL")
    error.advice = advice = advice.replace("Create a client with the new URL", "Use the new URL")
    match error:
        case AuthenticationError():
            advice = (
                "Pass a valid token in the environment variable TIDEWIRE_TOKEN or with --token-file FILE, or other "
                "credentials with --header 'NAME: VALUE'."
            )
        case _ if not any(part in advice for part in _PYTHON):
            return
        case InvalidInputError():
            advice = f"To see the input, run: {command_line(url, 'describe', *filter(None, [endpoint]))}"
        case QueueFullError():
            advice = "Repeat the command later."
        case StateTooLargeError():
            advice = "Data received before this error is valid. The job keeps running on the server."
        case NotATidewireServerError():
            advice = f"Check the argument URL and {VARIABLE}."
        case TransportError() | TotalTimeoutError() if error.job_id is not None:
            advice = (
                f"The job may still run. To attach to it, run: {command_line(url, 'attach', error.job_id)}"
            )
        case TransportError() | TotalTimeoutError() | RequestError() if "may or may not" in advice:
            again = f" Repeat the command with --idempotency-key {key}, or" if key else " To"
            advice = (
                f"The job may or may not have started.{again} look for it with: {command_line(url, 'jobs')}"
            )
        case _:
            advice = ""
    error.advice = advice
