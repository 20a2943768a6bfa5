"""A fake server for tests of programs that use the client. It needs no sockets and no processes, and never waits.

    with FakeServer() as server:
        server.endpoint("generate").streams(["Hel", "lo"]).cuts_after(1)
        with Client(server.url) as client:
            assert "".join(client.submit("generate", prompt="…").iter_text()) == "Hello"
        assert (server.cuts, server.resumes) == (1, 1)

The fake server implements the real protocol. It creates its states, diffs, checks and digests with `tidewire.protocol`, so that
the client handles them as if a real server had sent them. Inside the `with` block, every client in this process that uses the
server's `url` is connected to the fake server, including clients that the program under test creates.

To get the pytest fixture `tidewire_server`, add `pytest_plugins = ["tidewire.testing.pytest_plugin"]` to a conftest.
"""

from tidewire.testing.endpoint_script import Answer, FakeToken
from tidewire.testing.fake_endpoint import FakeEndpoint
from tidewire.testing.fake_server import FakeServer, Submit

__all__ = ["Answer", "FakeEndpoint", "FakeServer", "FakeToken", "Submit"]
