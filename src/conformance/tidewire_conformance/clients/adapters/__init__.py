"""Clients that the suite brings along, each a program that stands by itself and imports nothing of the suite.

`python -m tidewire_conformance.clients.adapters.shell_launcher` is a toy out of curl and awk: what a page of shell can do, and what the
suite says of it. `python -m tidewire_conformance.clients.adapters.chromium_page` is an EventSource in a real Chromium.
"""
