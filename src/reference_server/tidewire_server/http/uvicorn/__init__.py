"""Backpressure for each connection, and limits on connections and request heads. The code uses private members of
uvicorn.

Only this folder uses private members of uvicorn. `pyproject.toml` excludes versions of uvicorn that have not been
tested. `tests/integration/test_private_upstream_members.py` checks every private member that this folder uses, and
names the missing member if uvicorn has removed one.

module             | uses
-------------------+------------------------------------------------------------------------------------------------
uvicorn_protocol   | `HttpToolsProtocol` as a base class: its parser callbacks, `pipeline`, `cycle`, `flow`
uvicorn_internals  | `RequestResponseCycle` behind an ASGI `send`: `transport`, `flow`, `chunked_encoding`
slow_reader_sender | no private members, because it uses `uvicorn_internals`

The alternative would be to write an HTTP protocol on top of httptools. It was not chosen because its code would be
longer. Lines without blank lines and comments, with uvicorn 0.54:

- The modules of this folder have 585 lines: 257 in `uvicorn_protocol`, 204 in `uvicorn_internals` and 124 in
  `slow_reader_sender`.
- uvicorn's `httptools_impl.py`, which a protocol of our own would have to replace, has 471 lines. It contains the parser
  callbacks, the pipelining of requests and the request and response cycle. Support for WebSockets could be left out.

The protocol of our own would replace only the parts of `uvicorn_protocol` that work around uvicorn. It would need the
limits in it, and it would not replace `uvicorn_internals`, because an application that mounts `server.app` runs under
uvicorn's own protocol.
"""
