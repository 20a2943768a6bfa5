"""Conformance adapter that runs the JavaScript package in Chromium."""

from pathlib import Path

from tidewire_conformance.clients.examples import chromium_client

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
        # The scripted server answers no preflight requests, because the scenarios do not test the CORS of servers.
        flags=("--disable-web-security",),
    )
