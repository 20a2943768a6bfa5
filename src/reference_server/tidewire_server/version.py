"""Name and version of the server, which it reports in discovery."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("tidewire")
    except PackageNotFoundError:
        return "0"


SERVER = f"tidewire_server/{_installed()}"
