"""Command-line flags of `tidewire serve`, and the formatting of setting names, values and bounds.

Every setting can be set in the environment and in the configuration file. Only the settings in `FLAGS` also have a flag: the
settings that a tutorial, a how-to guide or the startup banner mentions, and `log_level`.
"""

from collections.abc import Iterable
from typing import Any, Final, get_origin

from pydantic.fields import FieldInfo

from tidewire_server.setting_errors import SECRET, suggestion
from tidewire_server.settings import Launch, Settings
from tidewire_server.user_paths import without_password

GENERATION: Final = "Text generation, without a target"
"""Title of the flags for text generation by the default server."""

UPSTREAM: Final = "Text generation by another engine"
"""Title of the flags for text generation by another engine (`--upstream`)."""

FLAGS: Final = {
    "Process": (
        "host",
        "port",
        "uds",
        "port_file",
        "root_path",
        "allowed_hosts",
        "cors_origins",
        "page",
        "log_level",
        "log_format",
        "debug",
        "reload",
        "no_functions",
    ),
    "Access": ("token_file", "operator_token_file", "allow_anonymous", "single_user", "stream_token_ttl"),
    GENERATION: (
        "model",
        "device",
        "dtype",
        "slots",
        "context",
        "max_top_logprobs",
        "max_num_beams",
        "max_schema_bytes",
        "max_mask_share",
        "on_restart",
        "share_prefixes",
        "profile",
    ),
    UPSTREAM: (
        "upstream",
        "upstream_kind",
        "upstream_key_file",
        "upstream_concurrency",
        "upstream_timeout",
        "tokenizer",
    ),
    "OpenAI surface": ("served_model_names",),
    "Jobs": (
        "default_concurrency_limit",
        "max_queue_size",
        "max_inputs",
        "max_body_bytes",
        "cancel_timeout",
        "shutdown_timeout",
        "script",
    ),
    "Streams": ("heartbeat", "retry", "merge_window", "stall_timeout", "keep_alive_timeout"),
    "Stored jobs": ("log", "log_fsync", "max_attempts", "state_ttl"),
}
"""Title of a group in `--help-all` → settings of this group, which have a flag."""

COMMON: Final = frozenset(
    {
        "host",
        "port",
        "model",
        "upstream",
        "device",
        "log",
        "token_file",
        "reload",
        "no_functions",
        "log_level",
    }
)
"""Settings whose flags are shown by `--help`. The option `--help-all` shows all flags."""

FIELDS: Final[dict[str, FieldInfo]] = dict(Launch.model_fields) | dict(Settings.model_fields)
"""Name → field of each setting of `tidewire serve`."""

ENV_PREFIX: Final = "TIDEWIRE_"

CLIENT_TOKEN: Final = f"{ENV_PREFIX}TOKEN"
"""Environment variable with the token that a client sends. The server does not use it."""

TOKEN_FILES: Final = {
    "tokens": "token_file",
    "operator_tokens": "operator_token_file",
    "upstream_key": "upstream_key_file",
}
"""Setting whose value can be read from a file → setting that contains the path of this file."""

TURNED_OFF: Final = frozenset({"page"})
"""Settings that are on by default. Their flag begins with `--no-`, and turns them off."""

SINGULAR: Final = {
    "tokens": "token",
    "operator_tokens": "operator_token",
    "allowed_hosts": "allowed_host",
    "cors_origins": "cors_origin",
    "upstream": "upstream",
    "served_model_names": "served_model_name",
}
"""Setting with several values → singular name of its flag, which is repeated for each value."""


def flag_of(name: str) -> str:
    """Return the flag of a setting, such as `--max-queue-size`."""
    if name in TURNED_OFF:
        return f"--no-{name}"
    return "TARGET" if name == "target" else f"--{SINGULAR.get(name, name).replace('_', '-')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting, such as `TIDEWIRE_MAX_QUEUE_SIZE`."""
    return ENV_PREFIX + name.upper()


def not_a_flag(arguments: Iterable[str]) -> str | None:
    """Return an error message for the first argument that names a setting without a flag, or None.

    The message contains the line to write into the configuration file instead.
    """
    with_flag = {"target"}.union(*FLAGS.values())
    without = {flag_of(name): name for name in FIELDS if name not in with_flag}
    remaining = iter(arguments)
    for argument in remaining:
        flag, has_value, value = argument.partition("=")
        name = without.get(flag)
        if name in SECRET:
            file = f"in a file with {flag_of(TOKEN_FILES[name])}, " if name in TOKEN_FILES else ""
            return (
                f"{flag} is not a flag, because other users can read command lines; set it {file}in the configuration "
                f"file ({name}), or in the environment ({variable_of(name)})"
            )
        if name:
            value = value if has_value else next(remaining, shown(name, FIELDS[name].default))
            in_file = f'["{value}"]' if get_origin(FIELDS[name].annotation) is tuple else value
            return (
                f"{flag} is not a flag; set it in the file: {name} = {in_file}"
                f" (or in the environment: {variable_of(name)}={value})"
            )
    return None


def unknown(name: str, known: Iterable[str]) -> str:
    """Return an error message for an unknown name. The message suggests a similar known name, if there is one."""
    return f"unknown name {name!r}{suggestion(name, known)}"


def shown(name: str, value: Any) -> str:
    """Format a value for `--help` and `--show-config`. Secrets are hidden."""
    if value is None:
        return "none"
    if name in SECRET and value:
        return f"{len(value)}, not shown" if isinstance(value, tuple) else "not shown"
    if name == "log":
        return without_password(value)
    if isinstance(value, tuple):
        return ", ".join(without_password(str(each)) for each in value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"
