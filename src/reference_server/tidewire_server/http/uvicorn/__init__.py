"""Backpressure for each connection, and limits on connections and request heads, with private members of uvicorn.

Only this folder uses private members of uvicorn. `pyproject.toml` excludes versions of uvicorn that have not been
tested. `tests/integration/test_private_upstream_members.py` checks every private member that this folder uses, and
names the missing member if uvicorn has removed one.

module             | uses
-------------------+------------------------------------------------------------------------------------------------
uvicorn_protocol   | `HttpToolsProtocol` as a base class: its parser callbacks, `pipeline`, `cycle`, `flow`
uvicorn_internals  | `RequestResponseCycle` behind an ASGI `send`: `transport`, `flow`, `chunked_encoding`
slow_reader_sender | no private members, because it uses `uvicorn_internals`

The alternative would be to write an HTTP protocol on top of httptools. It was not chosen because its code would be longer
than this folder: it would need the parser callbacks, the pipelining of requests, and the request and response cycle. It
would also need the limits in `uvicorn_protocol`, and it would not replace `uvicorn_internals`, because an application that
mounts `server.app` runs under uvicorn's own protocol.
"""
