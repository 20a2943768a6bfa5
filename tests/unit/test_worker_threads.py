"""Threads that call the functions of endpoints."""

import os
import subprocess
import sys

import pytest

FORKED = """
import os, threading
from tidewire_server.endpoints.function_threads import start_call

def call():
    ended = threading.Event()
    start_call(lambda: 1, lambda _: ended.set(), "call")
    return ended.wait(20)

call()
child = os.fork()
if not child:
    os._exit(0 if call() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_passes_no_call_to_a_thread_of_its_parent():
    found = subprocess.run([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, text=True, timeout=60)
    assert found.stdout == "0\n"
