"""Program that serves what a function returns: `python -m support.serve_program MODULE:FUNCTION PORT PORT_FILE SETTINGS`.

The function is called with the settings, which are JSON, and returns a `Server`. The port file is written when the server
is ready.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn

from tidewire_server import Server
from tidewire_server.serving.listener import bind
from tidewire_server.serving.serve import serve


class _ReportingServer(uvicorn.Server):
    """uvicorn that writes the port file when it is ready."""

    def __init__(self, config: uvicorn.Config, port_file: Path) -> None:
        super().__init__(config)
        self._port_file = port_file

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._port_file.write_text(str(self.config.port))


def main(function: str, port: int, port_file: Path, settings: dict[str, Any]) -> None:
    module, _, name = function.partition(":")
    options = settings.pop("uvicorn", None)
    server: Server = getattr(import_module(module), name)(**settings)
    if options is None:
        serve(server.app, server.settings, listener=bind("127.0.0.1", port), port_file=str(port_file))
    else:
        config = uvicorn.Config(server.app, port=port, log_level="warning", **options)
        _ReportingServer(config, port_file).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
