"""Conformance adapter that runs the JavaScript package in Chromium.

The page has an origin with plain HTTP and a host other than localhost, where browsers offer no `crypto.subtle`.
"""

from pathlib import Path

from tidewire_conformance.clients.examples import chromium_client

HOST = "tidewire.test"
RESOLVE = f"--host-resolver-rules=MAP {HOST} 127.0.0.1"
ROOT = Path(__file__).parents[2]
SOURCES = (*ROOT.glob("clients/javascript/src/*.js"), ROOT / "tests/interop/javascript/run_command.mjs")
TRAITS = (
    "submit",
    "batch",
    "checkpoint",
    "cancel",
    "discover",
    "credentials",
    "attempts",
    "in_turn",
    "exact_json",
    "digests",
    "id_fields",
)

if __name__ == "__main__":
    chromium_client.main(
        Path(__file__).with_name("package_adapter.html").read_text(encoding="utf-8"),
        "the JavaScript package in Chromium",
        TRAITS,
        modules={f"/{path.relative_to(ROOT)}": path.read_text(encoding="utf-8") for path in SOURCES},
        host=HOST,
        # The scripted server answers no preflight requests, because the scenarios do not test the CORS of servers.
        flags=(RESOLVE, "--disable-web-security"),
    )
