"""Texts of callers cannot forge log lines or control a terminal."""

import io
import logging
import sys

import pytest

from tidewire_server.serving import log_format
from tidewire_server.serving.log_format import EscapingFormatter

FORMAT = "%(levelname)s %(name)s: %(message)s"


@pytest.fixture
def log():
    """Return a logger and a function that returns the lines that it has written."""
    logger, written = logging.Logger("tidewire_server.test"), io.StringIO()  # noqa: LOG001 - not shared with other tests
    handler = logging.StreamHandler(written)
    handler.setFormatter(EscapingFormatter(FORMAT))
    logger.addHandler(handler)
    return logger, lambda: written.getvalue().split("\n")[:-1]


def fail(logger: logging.Logger, text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        logger.exception("job 1: endpoint failed")


ATTACKS = [
    "a\nERROR tidewire_server: forged",
    "a\rERROR tidewire_server: forged",
    "\x1b[2J\x1b]52;c;cm0gLXJmIC8=\x07",
    "\x9b31m",
    "a\u2028ERROR forged\u2029\x85\x0b\x0cERROR forged",
    "\u202etxt.exe",
    "\x00\x7f",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_exception_text_is_indented_and_escaped(log, text):
    logger, lines = log
    fail(logger, f"bad input: {text}")
    head, *details = lines()
    assert head == "ERROR tidewire_server.test: job 1: endpoint failed"
    assert details[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in details)
    assert "".join(details).isprintable()
    assert "bad input: " in "".join(details)


@pytest.mark.parametrize("text", ATTACKS)
def test_message_is_one_escaped_line(log, text):
    logger, lines = log
    logger.warning("%s of %s", "path", text)
    (line,) = lines()
    assert line.isprintable()
    assert line.startswith("WARNING tidewire_server.test: path of ")


def test_causes_notes_and_groups_are_indented_and_escaped(log):
    logger, lines = log
    inner = ValueError("x\nERROR forged")
    inner.add_note("note\nERROR \x1b[31m forged")
    try:
        raise ExceptionGroup("group\nERROR forged", [inner]) from inner
    except ExceptionGroup:
        logger.exception("failed", stack_info=True)
    _, *details = lines()
    assert all(line.startswith("    ") and line.isprintable() for line in details)


def test_traceback_cached_by_another_formatter_is_not_used(log):
    logger, lines = log
    try:
        raise ValueError("x\nERROR forged")
    except ValueError:
        record = logger.makeRecord("n", logging.ERROR, "f", 1, "m", (), sys.exc_info())
    logging.Formatter().format(record)
    logger.handle(record)
    assert all(line.startswith("    ") for line in lines()[1:])


def test_printable_text_is_unchanged(log):
    logger, lines = log
    logger.error("Grüße, 世界\t🌍 \\n\n")
    assert lines() == ["ERROR tidewire_server.test: Grüße, 世界\t🌍 \\n"]


def test_text_of_the_maximum_length_is_kept_and_a_longer_one_is_shortened(log, monkeypatch):
    monkeypatch.setattr(log_format, "_MAX_LENGTH", 200)
    logger, lines = log
    prefix = len("ERROR tidewire_server.test: ")
    logger.error("x" * (200 - prefix))
    logger.error("x" * (201 - prefix))
    whole, cut = lines()
    assert whole == f"ERROR tidewire_server.test: {'x' * (200 - prefix)}"
    assert "… 1 characters omitted …" in cut


def test_megabytes_of_a_caller_are_not_logged(log):
    logger, lines = log
    fail(logger, "x" * 2_000_000 + "\n" * 2_000_000)
    assert sum(map(len, lines())) < 100_000
    assert "Traceback" in lines()[1]


def test_logging_that_the_program_has_configured_is_kept(monkeypatch):
    root, own = logging.RootLogger(logging.INFO), logging.NullHandler()
    monkeypatch.setattr(logging, "root", root)
    root.addHandler(own)
    log_format.set_up_logging()
    assert (root.handlers, root.level) == ([own], logging.INFO)
    root.removeHandler(own)
    log_format.set_up_logging()
    (handler,) = root.handlers
    assert isinstance(handler.formatter, EscapingFormatter)
    assert root.level == logging.WARNING
