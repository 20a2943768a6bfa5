import pytest

from support import fake_and_real
from support.server_process import ServerProcess


@pytest.fixture(scope="module")
def terminal_server(tmp_path_factory):
    """Process with the endpoints of `support.terminal_server`, which can be killed and started again."""
    folder = tmp_path_factory.mktemp("server")
    settings = {"log": f"sqlite:///{folder}/log.db", "max_attempts": 100}
    with ServerProcess(folder, "support.terminal_server:terminal_server", **settings) as server:
        yield server


@pytest.fixture
def terminal_url(terminal_server):
    return terminal_server.url


@pytest.fixture
def go(tmp_path):
    """File for which the endpoint `tell` of the terminal server waits."""
    return tmp_path / "go"


@pytest.fixture(scope="session")
def shared_reference_server():
    with fake_and_real.served("reference") as url:
        yield url


@pytest.fixture(params=fake_and_real.SERVERS)
def either_server(request, shared_reference_server):
    """URL of a new fake server, and of the shared reference server with the same endpoints."""
    if request.param == "reference":
        yield shared_reference_server
    else:
        with fake_and_real.served(request.param) as url:
            yield url
