"""Code that uses private members of uvicorn: backpressure per connection, and limits on connections and request heads.

No other folder uses them. `pyproject.toml` bounds uvicorn below the first untested minor version, and
`tests/integration/test_private_upstream_members.py` lists each member and fails by its name when uvicorn drops it.

module             | uses
-------------------+------------------------------------------------------------------------------------------------
uvicorn_protocol   | `HttpToolsProtocol` as a base class: its parser callbacks, `pipeline`, `cycle`, `flow`
uvicorn_internals  | `RequestResponseCycle` behind an ASGI `send`: `transport`, `flow`, `more_body`, `chunked_encoding`
slow_reader_sender | nothing private; it waits and writes through `uvicorn_internals`

A protocol of our own on httptools would be longer: it would have to repeat uvicorn's request and response cycle, and
`uvicorn_internals` would remain for applications that mount `server.app` under uvicorn's own protocol.
"""
