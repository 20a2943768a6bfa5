"""Run the sample server under uvicorn with the options that are passed as JSON, and print its port."""

import json
import sys

import uvicorn

from support.sample_server import sample_server
from tidewire_server.script_endpoint import add_script


class _PrintsItsPort(uvicorn.Server):
    async def startup(self, sockets: object = None) -> None:
        await super().startup()
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


if __name__ == "__main__":
    server = sample_server(shutdown_timeout=0.1, cancel_timeout=0.1, heartbeat=1, retry=0.1)
    add_script(server)
    _PrintsItsPort(uvicorn.Config(server.app, port=0, log_level="warning", **json.loads(sys.argv[1]))).run()
