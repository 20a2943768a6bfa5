"""Advice in error messages on the command line. It names commands and options instead of Python calls."""

from tidewire.commands.server_url import command_line
from tidewire.errors import (
    AuthenticationError,
    InvalidInputError,
    NotATidewireServerError,
    ProtocolError,
    QueueFullError,
    RequestError,
    StateTooLargeError,
    TidewireError,
    TotalTimeoutError,
    TransportError,
)
from tidewire.http.url_and_token import COLON_ADVICE, URL_VARIABLE

_PYTHON = ("client.", "Client(", "with_options", "idempotency_key", "=…")
"""Substrings that occur only in advice about the Python API. Such advice does not help users of the command line."""


def advise(error: TidewireError, url: str, endpoint: str | None = None, key: str | None = None) -> None:
    """Replace an error's advice if it names Python calls or arguments.

    Args:
        error: The error.
        url: URL of the server.
        endpoint: Name of the endpoint that was called, if it is known.
        key: Idempotency key of the call, if the user has set one.
    """
    # Advice for redirects that the client does not follow.
    advice = error.advice.replace("Create the client with the URL", "Use the URL")
    advice = advice.replace("Create a client with the new URL", "Use the new URL")
    error.advice = advice = advice.replace("call map() again with the same file", "repeat the command")
    match error:
        case AuthenticationError() if advice != COLON_ADVICE:
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
        case StateTooLargeError() | ProtocolError() if "max_state_bytes" in advice:
            advice = (
                "This command has a fixed limit. To read more, use the Python client: "
                f"Client({url!r}, max_state_bytes=…).job({error.job_id or 'ID'!r}).result()."
            )
        case NotATidewireServerError():
            advice = f"Check the argument URL and {URL_VARIABLE}."
        case TransportError() | TotalTimeoutError() if error.job_id is not None:
            advice = (
                f"The job may still run. To attach to it, run: {command_line(url, 'attach', error.job_id)}"
            )
        case TransportError() | TotalTimeoutError() | RequestError() if "may or may not" in advice:
            again = f"Repeat the command with --idempotency-key {key}, or look" if key else "Look"
            advice = (
                f"The job may or may not have started. {again} for the job with: {command_line(url, 'jobs')}"
            )
        case _:
            advice = ""
    error.advice = advice
