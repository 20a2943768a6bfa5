"""A fake server for the tests of programs that use this client: no socket, no process, no waiting.

    with FakeServer() as server:
        server.endpoint("generate").streams(["Hel", "lo"]).cuts_after(1)
        with Client(server.url) as client:
            assert "".join(client.submit("generate", prompt="…").iter_text()) == "Hello"
        assert (server.cuts, server.resumes) == (1, 1)

It speaks the real protocol: states, diffs, checks and digests are made by `tidewire.protocol`, and the client reads
them as it reads those of any server. While it is entered, every client in this process that is given its `url`
talks to it, also one that the program under test makes itself.

`pytest_plugins = ["tidewire.testing.pytest_plugin"]` gives tests the fixture `tidewire_server`.
"""

from tidewire.testing.endpoint_script import Answer, FakeToken
from tidewire.testing.fake_endpoint import FakeEndpoint
from tidewire.testing.fake_server import FakeServer, Submit

__all__ = ["Answer", "FakeEndpoint", "FakeServer", "FakeToken", "Submit"]
