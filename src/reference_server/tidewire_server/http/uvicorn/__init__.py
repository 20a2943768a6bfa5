"""Integration with private members of uvicorn: per-connection backpressure, limits on connections and request heads.

No other folder uses private members of uvicorn. `pyproject.toml` excludes uvicorn versions that are not tested yet.
`tests/integration/test_private_upstream_members.py` lists every private member in use, and fails with the member's
name if uvicorn removes it.

module             | uses
-------------------+------------------------------------------------------------------------------------------------
uvicorn_protocol   | `HttpToolsProtocol` as a base class: its parser callbacks, `pipeline`, `cycle`, `flow`
uvicorn_internals  | `RequestResponseCycle` behind an ASGI `send`: `transport`, `flow`, `more_body`, `chunked_encoding`
slow_reader_sender | no private members: it waits and writes through `uvicorn_internals`

An HTTP protocol written from scratch on httptools would be longer, because it would repeat uvicorn's request and
response cycle. It would also not replace `uvicorn_internals`, which is still needed by applications that mount
`server.app` under uvicorn's own protocol.
"""
