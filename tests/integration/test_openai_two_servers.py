"""The OpenAI surface of a server whose jobs run at another server of the same database."""

import pytest

from support.openai_surface import openai_client, stepwise_server
from support.postgres_server import needs_postgres
from support.reference_server import eventually

pytestmark = needs_postgres


@pytest.fixture
def url(database_url):
    """URL of a server that runs no functions. Another server runs them."""
    front, worker = (stepwise_server(log=database_url, shutdown_timeout=0.2) for _ in range(2))
    front.app.lifespan.functions = False
    with worker.running(), front.running() as url:
        yield url


def test_texts_usage_and_cancel_of_a_job_that_runs_elsewhere(url):
    with openai_client(url) as client:
        same = {"model": "generate", "prompt": "+one \nsleep 0.1\n+two"}
        whole = client.completions.create(**same)
        assert whole.choices[0].text == "one two"
        assert whole.usage.total_tokens == 3
        chunks = [*client.completions.create(**same, stream=True, stream_options={"include_usage": True})]
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "one two"
        assert chunks[-1].usage == whole.usage

        raw = client.completions.with_raw_response.create(
            **(same | {"prompt": "+one\nsleep 30\n+two"}), stream=True
        )
        response = "resp_" + raw.headers["tidewire-job"].rpartition("/")[2]
        eventually(lambda: client.responses.retrieve(response).output_text == "one")
        client.responses.cancel(response)
        eventually(lambda: client.responses.retrieve(response).status == "cancelled")
        raw.http_response.close()
