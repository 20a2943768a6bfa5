"""The suite by itself: `python -m tidewire_conformance URL`."""

from tidewire_conformance.cli import main

main()
