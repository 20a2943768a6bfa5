"""Relay generated text through a FastAPI application, so that browsers reach only this application.

$ tidewire serve                                                         # in another terminal
$ TIDEWIRE_URL=http://127.0.0.1:8000 fastapi run docs/examples/fastapi_relay.py --port 8001
$ curl -N -X POST 'http://127.0.0.1:8001/texts?prompt=import'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tidewire import AsyncClient, AsyncJob


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


def streamed(job: AsyncJob[dict]) -> StreamingResponse:
    return StreamingResponse(job.iter_text(), media_type="text/plain", headers={"Job-Id": job.id})


@app.post("/texts")
async def write(prompt: str, max_tokens: int = 64) -> StreamingResponse:
    return streamed(await app.state.client.submit("generate", prompt=prompt, max_tokens=max_tokens))


@app.get(
    "/texts/{job_id}"
)  # the same text again, from its start: after a broken connection, or in another tab
async def read(job_id: str) -> StreamingResponse:
    return streamed(app.state.client.job(job_id))
