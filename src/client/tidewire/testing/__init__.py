"""Fake server for testing programs that use the client, without sockets, processes or waiting.

    with FakeServer() as server:
        server.endpoint("generate").streams(["Hel", "lo"]).cuts_after(1)
        with Client(server.url) as client:
            assert "".join(client.submit("generate", prompt="…").iter_text()) == "Hello"
        assert (server.cuts, server.resumes) == (1, 1)

The fake server implements the real protocol: `tidewire.protocol` creates its states, diffs, checks and digests, and the
client cannot distinguish them from those of a real server. Inside the `with` block, every client of this process with the
server's `url` is connected to the fake server, including clients that the program under test creates.

`pytest_plugins = ["tidewire.testing.pytest_plugin"]` provides the fixture `tidewire_server`.
"""

from tidewire.testing.endpoint_script import Answer, FakeToken
from tidewire.testing.fake_endpoint import FakeEndpoint
from tidewire.testing.fake_server import FakeServer, Submit

__all__ = ["Answer", "FakeEndpoint", "FakeServer", "FakeToken", "Submit"]
