"""Example clients for trying out the client mode of the conformance suite.

`python -m tidewire_conformance.clients.adapters.shell_launcher` starts a minimal client in shell, written with curl and
awk. `python -m tidewire_conformance.clients.adapters.chromium_page` drives an EventSource in a real Chromium.
"""
