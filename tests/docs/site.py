"""Server for the code blocks of the documentation: the endpoints of the tutorial, and text generation.

Run as `python site.py STORY_FILE PORT_FILE`.
"""

import runpy
import sys


def main(story: str, port_file: str) -> None:
    from tidewire_server.generation import add_generate

    server = runpy.run_path(story)["server"]
    add_generate(server)
    server.run(port=0, port_file=port_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
