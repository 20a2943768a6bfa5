"""The apps before and after the move in the migration guides run, and give the same results."""

import contextlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tidewire import Client

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import migration  # noqa: E402 - a script that is not in a package

pytestmark = pytest.mark.timeout(120)
needs_gradio = pytest.mark.skipif(
    find_spec("gradio") is None or find_spec("gradio_client") is None,
    reason="needs Gradio: pip install -e '.[peers]'",
)
needs_sse = pytest.mark.skipif(find_spec("sse_starlette") is None, reason="sse-starlette is not installed")


@contextlib.contextmanager
def app(name):
    guide, file, run = migration.APPS[name]
    with migration.serving(migration.code(guide, file) + run) as (_, port):
        yield f"http://127.0.0.1:{port}"


@needs_gradio
@pytest.mark.slow
def test_the_app_with_gradio():
    import gradio_client

    with app("gradio") as url:
        client = gradio_client.Client(url, verbose=False)
        try:
            assert [*client.submit("Hello, world", api_name="/reply")][-1] == "Hello, world "
            assert client.predict("abc", api_name="/lengths") == 3
            assert client.predict(3, api_name="/train") == "trained"
        finally:
            client.close()


def test_the_app_moved_from_gradio():
    with app("gradio, moved") as url, Client(url) as client:
        assert client.run("reply", message="Hello, world") == "Hello, world "
        assert client.run("lengths", text="abc") == 3
        reports = []
        job = client.submit("train", epochs=3)
        job.listener = reports.append
        assert job.result() == "trained"
        assert (reports[-1].phase, reports[-1].total, reports[-1].unit) == ("training", 3, "epochs")


@needs_sse
def test_the_endpoint_with_sse_starlette():
    with app("sse-starlette") as url:
        assert migration.by_httpx_sse(url, "Hello, world", [], repeats=False) == ["Hello,", "world"]


def test_the_endpoint_moved_from_sse_starlette():
    with app("sse-starlette, moved") as url:
        assert migration.by_tidewire("talk", url, "Hello, world") == ["Hello,", "world"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lost"),
    [
        pytest.param("sse-starlette", 199, marks=needs_sse),
        ("sse-starlette, moved", 0),
        ("gradio, moved", 0),
    ],
)
def test_the_measurement_counts_the_words_that_a_cut_loses(name, lost):
    expected = [f"word{n}" for n in range(migration.WORDS)]
    with app(name) as url, migration.CountingProxy(int(url.rpartition(":")[2]), migration.CUT_AT) as proxy:
        found = migration.run_client(name, proxy.url, 1, 60.0)
    assert proxy.cut_at is None
    assert proxy.bytes > migration.WORDS
    assert found["words"] == expected[: len(expected) - lost]


def test_the_tables_come_from_the_results(tmp_path, monkeypatch):
    medians = {
        name: {"bytes": 100 * at, "server_cpu": at, "client_cpu": at, "lost": at, "repeated": 0, "error": ""}
        for at, name in enumerate(migration.APPS, start=1)
    }
    results = tmp_path / "migration.json"
    results.write_text(json.dumps({"medians": medians, "python": "3.11.7", "versions": {"gradio": "6"}}))
    pages = {guide: tmp_path / page.name for guide, page in migration.PAGES.items()}
    for guide, page in pages.items():
        page.write_text(migration.PAGES[guide].read_text())
    monkeypatch.setattr(migration, "PAGES", pages)
    migration.write_tables(results)
    table = (
        pages["gradio"].read_text().partition("<!-- measured: gradio -->\n")[2].partition("<!-- end -->")[0]
    )
    assert "| bytes to the client, one reply | 0.5 × | 1.0 × |" in table
    assert "| words lost after a cut, of 400 | 1 | 2 |" in table
    assert table.endswith("1 × is 200 bytes, 2.00 s and 2.00 s. Measured with Python 3.11.7, gradio 6.\n")
    assert pages["sse"].read_text().count("<!-- end -->") == 1


@pytest.mark.parametrize("guide", migration.PAGES)
def test_a_guide_has_its_measured_table(guide):
    page = migration.PAGES[guide].read_text()
    table = page.partition(f"<!-- measured: {guide} -->\n")[2].partition("<!-- end -->")[0]
    assert [label for label in migration.ROWS.values() if f"| {label} |" not in table] == []
