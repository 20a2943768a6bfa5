"""nginx in its own process, with the configurations that docs/how-to/behind-nginx.md shows."""

import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/behind-nginx.md"
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")

needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt install nginx-light")
"""Mark of a test that needs nginx."""


def page_blocks():
    """The configurations on the page: for one server, for a path, and for several servers."""
    return re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)


def page_configuration(*, path):
    """The configuration for one server: at the root, or with its lines inside the `location` of a path."""
    server, under_path, _ = page_blocks()
    if not path:
        return server
    lines = re.search(r"proxy_pass [^\n]*\n(.*?)\n    }", server, re.DOTALL)[1]
    location = under_path.replace("    # and the lines from above", lines)
    return f"server {{ listen 8080;\n{location}\n}}"


def several_servers(urls):
    """The configuration for several servers."""
    *_, site = page_blocks()
    addresses = re.findall(r"server (10\.0\.0\.\d:8000)", site)
    for address, url in zip(addresses, urls, strict=True):
        site = site.replace(address, urlsplit(url).netloc)
    return site


def nginx(folder, upstream, port, *, path=False):
    """Run nginx in front of one server."""
    return nginx_with(
        page_configuration(path=path).replace("127.0.0.1:8000", urlsplit(upstream).netloc), folder, port
    )


@contextmanager
def nginx_with(site, folder, port):
    """Run nginx with a configuration that listens on port 8080."""
    site = site.replace("listen 8080", f"listen 127.0.0.1:{port}")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nworker_processes 1;\nevents {{}}\nhttp {{\n"
        f'log_format methods "$request_method $uri $status";\naccess_log {folder}/access.log methods;\n'
        f"{temporary}{site}\n}}\n"
    )
    command = [NGINX, "-p", str(folder), "-e", f"{folder}/error.log", "-c", "nginx.conf", "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 20
            while True:
                assert process.poll() is None, process.stderr.read().decode()
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert time.monotonic() < deadline, "nginx did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)
