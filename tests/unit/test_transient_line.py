"""The line that `tidewire serve` shows on a terminal while it loads a model."""

import logging
import os
import re
import sys

import pytest

from tidewire_server.commands.banner import transient_line


def shown(monkeypatch, terminal):
    """Return what a user sees, line by line, if a record is logged while the line is shown."""
    reader, writer = os.openpty() if terminal else os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        handler = logging.StreamHandler(stream)
        logging.getLogger().addHandler(handler)
        try:
            with transient_line("loading the model"):
                logging.getLogger("any").warning("half done")
        finally:
            logging.getLogger().removeHandler(handler)
        logging.StreamHandler(stream).emit(logging.makeLogRecord({"msg": "loaded the model"}))
        stream.flush()
        text = ""
        while "loaded" not in text:
            text += os.read(reader, 4096).decode()
    os.close(reader)
    return [
        re.sub(r".*\r\x1b\[K", "", line) for line in text.replace("\r\n", "\n").rstrip().split("\n")
    ], text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_transient_line_leaves_only_the_log_records(monkeypatch, terminal):
    lines, text = shown(monkeypatch, terminal)
    assert lines == ["half done", "loaded the model"]
    assert ("loading the model" in text) == terminal
