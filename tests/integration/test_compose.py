"""The deployment of compose.yaml without containers: its processes, with their commands and variables, and its nginx.

The commands of the manifest in docs/how-to/deploy.md are parsed, too.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path

import httpx2
import pytest
import yaml

from support.free_port import free_port
from support.nginx import needs_nginx, nginx_with
from support.postgres_server import needs_postgres
from tidewire import Client, RetryPolicy

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "tidewire"}
TOKEN = "sesame"
START_LIMIT = 60

needs_worker = pytest.mark.skipif(
    "worker" not in {each.name for each in entry_points(group="tidewire.commands")},
    reason="the installed package has no command `tidewire worker`: install it again",
)


def manifests():
    """The documents of the manifest in the how-to, and of the Ingress."""
    pages = [(ROOT / "docs/how-to" / name).read_text() for name in ("deploy.md", "behind-nginx.md")]
    blocks = [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def variables_of(service, url):
    """The environment of a service, with the address of the test's database and a token."""
    given = {"POSTGRES_PASSWORD": "unused", "TIDEWIRE_TOKENS": f"me:{TOKEN}"}
    found = {
        name: re.sub(r"\$\{(\w+)[^}]*\}", lambda match: given[match[1]], value)
        for name, value in service["environment"].items()
    }
    assert found["TIDEWIRE_LOG"].startswith("postgresql://")
    return {**os.environ, **found, "TIDEWIRE_LOG": url, "TIDEWIRE_FORWARDED_ALLOW_IPS": "127.0.0.1"}


@contextmanager
def running(service, url, folder, *arguments):
    command = [sys.executable, "-m", "tidewire", *shlex.split(service["command"]), *arguments]
    with (folder / "errors").open("a") as errors:
        process = subprocess.Popen(
            command,
            env=variables_of(service, url),
            cwd=ROOT / "deploy",
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(condition, folder):
    give_up = time.monotonic() + START_LIMIT
    while not condition():
        assert time.monotonic() < give_up, (folder / "errors").read_text()
        time.sleep(0.02)


def is_ready(port):
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def test_services_refer_to_files_and_addresses_that_exist():
    site = (ROOT / "deploy/nginx.conf").read_text()
    addresses = {
        name: service["networks"]["default"]["ipv4_address"]
        for name, service in SERVICES.items()
        if "networks" in service
    }
    assert set(re.findall(r"server ([\d.]+):8000", site)) == {addresses["server-1"], addresses["server-2"]}
    subnet = COMPOSE["networks"]["default"]["ipam"]["config"][0]["subnet"]
    assert all(address.startswith(subnet.rpartition(".")[0] + ".") for address in addresses.values())
    for service in OURS.values():
        assert service["environment"]["TIDEWIRE_FORWARDED_ALLOW_IPS"] == addresses["nginx"]
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_the_image_contains_every_file_that_the_package_needs():
    copied = re.findall(r"^COPY (.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert names == allowed
    assert {"pyproject.toml", "README.md", "LICENSE", "src", "spec"} <= names
    assert all((ROOT / name).exists() for name in names)


def test_the_manifest_refers_to_names_that_it_defines():
    kinds = {(document["kind"], document["metadata"]["name"]): document for document in manifests()}
    assert len(kinds) == 6
    deployments = [document["spec"] for (kind, _), document in kinds.items() if kind == "Deployment"]
    labels = [spec["template"]["metadata"]["labels"] for spec in deployments]
    assert [spec["selector"]["matchLabels"] for spec in deployments] == labels
    assert kinds["Service", "tidewire"]["spec"]["selector"] in labels
    ingress = kinds["Ingress", "tidewire"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert ("Service", ingress["name"]) in kinds
    for spec in deployments:
        (container,) = spec["template"]["spec"]["containers"]
        assert ("Secret", container["envFrom"][0]["secretRef"]["name"]) in kinds


@pytest.mark.heavy
@needs_worker
def test_the_commands_of_the_manifest_exist():
    for document in manifests():
        if document["kind"] == "Deployment":
            (container,) = document["spec"]["template"]["spec"]["containers"]
            command = [sys.executable, "-m", "tidewire", *container["args"], "--show-config"]
            subprocess.run(command, cwd=ROOT / "deploy", check=True, capture_output=True, timeout=START_LIMIT)


@needs_nginx
@needs_worker
class TestProcesses:
    pytestmark = needs_postgres

    @pytest.mark.heavy
    def test_a_job_of_the_worker_is_read_through_nginx_while_a_server_is_killed(self, database_url, tmp_path):
        assert set(OURS) == {"server-1", "server-2", "worker"}
        site = (ROOT / "deploy/nginx.conf").read_text()
        ports = {name: free_port() for name in ("server-1", "server-2")}
        with ExitStack() as stack:
            processes = {}
            for name, service in OURS.items():
                arguments = ("--port", str(ports[name])) if name in ports else ()
                processes[name] = stack.enter_context(running(service, database_url, tmp_path, *arguments))
            for name, port in ports.items():
                address = SERVICES[name]["networks"]["default"]["ipv4_address"]
                site = site.replace(f"{address}:8000", f"127.0.0.1:{port}")
                wait_until(lambda port=port: is_ready(port), tmp_path)
            url = stack.enter_context(nginx_with(site, tmp_path, free_port()))
            client = stack.enter_context(Client(url, token=TOKEN, retry=RetryPolicy(max_delay=0.2)))
            job = client.submit("count", n=60, pause=0.05)
            text = ""
            for update in job:
                text += update.text or ""
                if processes and len(text.split()) >= 5:
                    processes["server-1"].kill()
                    processes["server-1"].wait()
                    processes.clear()
            assert text == job.result() == "".join(f"{number} " for number in range(60))
