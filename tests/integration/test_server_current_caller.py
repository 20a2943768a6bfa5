"""The principal for which a validation or a function runs (`CALLER`), by which shared work is divided."""

from support.reference_server import serving
from tidewire_server import Server
from tidewire_server.principals import CALLER


def test_validation_and_function_run_for_the_principal_of_the_request():
    validated: list[str] = []
    server = Server(tokens=("ann:ann-token", "bob:bob-token"))

    @server.endpoint(validate=lambda name: validated.append(CALLER.get()), concurrency_limit=2)
    async def caller(name: str) -> str:
        return CALLER.get()

    @server.endpoint
    def threaded() -> str:
        return CALLER.get()

    with serving(server, authorization="Bearer ann-token") as peer:
        for name in ("bob", "ann", "bob"):
            peer.http.headers["authorization"] = f"Bearer {name}-token"
            assert peer.value("caller", {"name": name}) == name
            assert peer.value("threaded") == name
    assert validated == ["bob", "ann", "bob"]
