"""Implementation of `tidewire chat`, a conversation with a language model. The server does not store the conversation,
so each request contains all earlier messages.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from tidewire.blocking.blocking_jobs import Job
from tidewire.commands.display import Screen
from tidewire.commands.error_advice import advise
from tidewire.commands.follow_job import write_text
from tidewire.commands.server_url import command_line
from tidewire.errors import TidewireError
from tidewire.inputs.input_words import resolved
from tidewire.sync import Client
from tidewire.terminal_escapes import visible_json

PROMPT: Final = "> "
CANCEL_SECONDS: Final = 5.0
"""Time limit for the request that cancels the job after an interrupt, in seconds."""


def converse(
    client: Client,
    endpoint: str,
    members: dict[str, Any],
    screen: Screen,
    *,
    system: str | None = None,
) -> None:
    """Read questions from standard input, and write the replies to standard output, until the input ends.

    Args:
        client: Client of the server.
        endpoint: Name of the endpoint, whose input has the member `messages`.
        members: Other members of each input.
        screen: Output of the command.
        system: System message that begins the conversation.

    Raises:
        ValueError: The endpoint does not accept messages, `n` requests several replies, or a line of a pipe is not UTF-8.
        TidewireError: A job failed, and standard input is not a terminal.
    """
    schema = client.describe(endpoint).input_schema
    if "messages" not in resolved(schema, schema).get("properties", {}):
        raise ValueError(
            f"the input of {endpoint!r} has no member `messages`, so it cannot chat; a language model needs a chat template, such "
            "as a file chat_template.jinja in its folder; without one, use `tidewire call … prompt=TEXT`"
        )
    if isinstance(replies := members.get("n"), int) and replies > 1:
        raise ValueError(
            f"n={replies} requests several replies to a question, but a chat continues with one; omit n"
        )
    interactive = sys.stdin.isatty() and screen.live
    messages = [] if system is None else [{"role": "system", "content": system}]
    for line in _typed_lines(screen) if interactive else _piped_lines():
        if not (question := line.strip()):
            continue
        asked = [*messages, {"role": "user", "content": question}]
        try:
            job = client.submit(endpoint, {**members, "messages": asked})
            reply = _reply(client, job, screen, interactive=interactive)
        except TidewireError as error:
            if not interactive:
                raise
            advise(error, client.url, endpoint)
            screen.error(str(error))
            screen.note("The conversation continues without this question.")
        else:
            messages = [*asked, {"role": "assistant", "content": reply}]


def _typed_lines(screen: Screen) -> Iterator[str]:
    """Yield the lines that the user types, until Ctrl+D."""
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives `input` an editable line and a history; Windows lacks it
    screen.note("Type a question. Ctrl+C stops a reply, Ctrl+D ends the chat.")
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            screen.write("\n")
            return
        except KeyboardInterrupt:
            screen.write("\n")
            screen.note("To end the chat, press Ctrl+D.")


def _piped_lines() -> Iterator[str]:
    """Yield the lines of standard input, which are UTF-8 in every locale."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            question = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"standard input, line {number}: not UTF-8: byte {error.start} cannot be decoded"
            ) from None
        yield question


def _reply(client: Client, job: Job[Any], screen: Screen, *, interactive: bool) -> str:
    """Write the reply while it grows, and return it. An interrupt (Ctrl+C) cancels the job. On a terminal, the conversation
    then continues with the text so far. In a pipe, the interrupt ends the command.
    """
    written: list[str] = []
    try:
        write_text(client, job, screen, written)
        value = job.result()
    except KeyboardInterrupt:
        screen.end_line()
        try:
            client.with_options(timeout=CANCEL_SECONDS).job(job.id).cancel()
        except TidewireError:
            if interactive:
                raise
            cancel = command_line(client.url, "cancel", job.id, *screen.options)
            screen.note(f"the reply may still be generated; to cancel it, run: {cancel}")
        else:
            screen.note("[stopped]")
        if not interactive:
            raise
        return "".join(written)
    finally:
        screen.end_line()
    if not written:
        screen.value(value)
        written.append(value if isinstance(value, str) else visible_json(value))
    return "".join(written)
