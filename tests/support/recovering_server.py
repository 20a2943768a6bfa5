"""Server for `Killed` that notes each call of its endpoints' functions in a file, and waits at gates that tests open."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, create_model

from support.killable_server import Killed
from tidewire_server import Server, Stream

GATES = ("check", "run")
"""Gates at which the option `validate` and the endpoints' functions wait. A gate is open if its file exists."""

ENDPOINTS = ("write", "compute", "together", "sorted")
BATCH = 2
"""Maximum batch size of the last two endpoints, and so the number of their inputs that are checked at the same time."""


def value_of(endpoint: str, n: int, change: str | None = None) -> Any:
    """Return the final value of an item with the input `{"n": n}`."""
    if endpoint != "write":
        return n
    value = {"text": f"{n}:{PIECES}", "rows": [1] * len(PIECES)}
    return value | ({"more": [2] * len(PIECES)} if change == "wider" else {})


PIECES = "abc" * 20


class Recovering(Killed):
    """A server whose endpoints in `ENDPOINTS` note their calls.

    With the setting `change`, a restarted server has other code:

    change           | difference
    -----------------+-------------------------------------------------
    None             | none
    stricter         | the input's member `n` must be below 4
    wider            | the value of `write` has another column
    validate, …      | the option `validate`, … raises a RuntimeError
    crash            | the option `validate` ends the process
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, "support.recovering_server:recovering_server", notes=str(folder), **settings)

    def open(self, gate: str) -> None:
        (self.folder / gate).touch()

    def close(self, *gates: str) -> None:
        for gate in gates:
            (self.folder / gate).unlink(missing_ok=True)

    def calls(self, what: str) -> list[str]:
        """Return the member `n` of the inputs of all noted calls of one function."""
        file = self.folder / "journal"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[1] for line in lines if line.split()[0] == what]

    def forget_calls(self) -> None:
        (self.folder / "journal").unlink(missing_ok=True)


def recovering_server(
    notes: str, change: str | None = None, hide: tuple[str, ...] = (), **settings: Any
) -> Server:
    folder = Path(notes)
    server = Server(**settings)

    def note(what: str, n: int) -> None:
        with (folder / "journal").open("a") as journal:
            journal.write(f"{what} {n}\n")
        if what == change:
            raise RuntimeError(f"{what} is broken")

    async def gate(name: str) -> None:
        while not (folder / name).exists():
            await asyncio.sleep(0.005)

    def read(n: int) -> int:
        note("schema", n)
        if change == "stricter" and n >= 4:
            raise ValueError("n must be below 4")
        return n

    given = create_model("Given", n=(Annotated[int, AfterValidator(read)], ...))

    async def validate(each: Any) -> None:
        note("validate", each.n)
        await gate("check")
        if change == "crash":
            os.kill(os.getpid(), signal.SIGKILL)

    def initial(each: Any) -> dict[str, Any]:
        note("initial", each.n)
        return {"text": f"{each.n}:", "rows": []} | ({"more": []} if change == "wider" else {})

    def columns(each: Any) -> list[str]:
        note("columns", each.n)
        return ["/text", "/rows"] + ["/more"] * (change == "wider")

    def cost(each: Any) -> float:
        note("cost", each.n)
        return 1.0

    def key(each: Any) -> int:
        note("key", each.n)
        return each.n % 2

    async def write(each: BaseModel, stream: Stream[dict[str, Any]]) -> None:
        note("run", each.n)
        for piece in PIECES:
            stream.row(piece, 1, *([2] if change == "wider" else []))
            await asyncio.sleep(0)
        await gate("run")

    async def brief() -> str:
        return "done"

    def compute(each: BaseModel) -> int:
        note("run", each.n)
        while not (folder / "run").exists():
            time.sleep(0.005)
        return each.n

    async def sort(items: list[BaseModel]) -> list[int]:
        for each in items:
            note("run", each.n)
        await gate("run")
        return [each.n for each in items]

    for function in (write, compute):
        function.__annotations__["each"] = given
    sort.__annotations__["items"] = list[given]
    batch = {"batch": True, "max_batch_size": BATCH, "validate": validate}
    server.endpoint(initial=initial, columns=columns, validate=validate, concurrency_group="writers")(write)
    # The check takes longer than the function may run.
    server.endpoint(
        name="brief",
        time_limit=0.05,
        validate=lambda _: asyncio.sleep(0.1),
        concurrency_group="writers",
        concurrency_limit=1,
    )(brief)
    server.endpoint(validate=validate)(compute)
    server.endpoint(name="together", **batch)(sort)
    server.endpoint(name="sorted", cost=cost, max_cost=2.0, key=key, **batch)(sort)
    server.endpoint(name="ping", concurrency_limit=None)(lambda: "pong")
    for name in hide:
        del server.endpoints[name]
    return server
