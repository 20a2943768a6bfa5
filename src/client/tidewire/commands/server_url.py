"""The argument URL of the commands, which may be omitted if the environment variable TIDEWIRE_URL contains the URL."""

import re
import shlex
from typing import Any, Final

import typer
import typer.core

from tidewire.http.url_and_token import URL_VARIABLE, url_of_environment

LOGPROBS: Final = "--logprobs"
"""Option whose value may be omitted."""
DEFAULT_LOGPROBS: Final = 5

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class CommandWithUrl(typer.core.TyperCommand):
    """Command whose first argument is a URL. Without a URL on the command line, the command uses TIDEWIRE_URL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Add the default value. The parser would otherwise use the next argument as the value.
        args = [f"{LOGPROBS}={DEFAULT_LOGPROBS}" if arg == LOGPROBS else arg for arg in args]
        parsed, _, _ = self.make_parser(ctx).parse_args([*args])
        url, begins_with_url = url_of_environment(), _is_url(str(parsed.get("url") or ""))
        if url is not None and not begins_with_url:
            args = [url, *args]
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # Any string is a valid argument, so this error means that an argument is missing. If the user omitted the URL, the
            # first argument was parsed as the URL, and the error names the last argument.
            argument = error.param is not None and error.param.param_type_name == "argument"
            if argument and url is None and not begins_with_url:
                error.message = f"Pass the URL of a server, or set the environment variable {URL_VARIABLE}."
            raise


def check_url(word: str) -> None:
    """Check that the first argument of a command may be a URL.

    Raises:
        ValueError: The argument is not a URL. For example, it is the name of an endpoint.
    """
    if not _is_url(word):
        raise ValueError(
            f"{word!r} is not the URL of a server; pass a URL such as http://127.0.0.1:8000 as the first argument, or set "
            f"{URL_VARIABLE}"
        )


def command_line(url: str, command: str, *words: str) -> str:
    """Return a command that a user can paste into a shell. The URL is omitted if TIDEWIRE_URL contains it."""
    default = (url_of_environment() or "").rstrip("/")
    return shlex.join(["tidewire", command, *([] if url == default else [url]), *words])


def _is_url(word: str) -> bool:
    """Return whether an argument is a URL, possibly without a scheme, and not the name of an endpoint or a member."""
    return _SCHEME.match(word) is not None or ("=" not in word and (":" in word or "/" in word))
