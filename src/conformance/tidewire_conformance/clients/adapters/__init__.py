"""Example clients for trying out the client mode of the conformance suite.

`python -m tidewire_conformance.clients.adapters.shell_launcher` starts a minimal client, a shell script that uses
curl and awk. `python -m tidewire_conformance.clients.adapters.chromium_page` runs a client on a page in
Chromium.
"""
