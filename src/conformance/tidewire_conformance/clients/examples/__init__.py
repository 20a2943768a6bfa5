"""Example clients for trying out the client mode of the conformance suite.

`python -m tidewire_conformance.clients.examples.shell_client` starts a minimal client, a shell script that uses
curl and awk. `python -m tidewire_conformance.clients.examples.chromium_client` runs a client on a page in
Chromium.
"""
