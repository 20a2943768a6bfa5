"""Names and messages that the guides quote exist in the code."""

import re
from pathlib import Path

from tidewire import errors
from tidewire.protocol.messages import ENDED
from tidewire_server.metrics import Metrics

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs/how-to"


def sources() -> str:
    """The text of all sources, in which a string that continues on the next line is one string."""
    text = "\n".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
    return re.sub(r'"\n\s*f?"', "", text)


def test_messages_in_troubleshooting_exist():
    page = (HOW_TO / "troubleshooting.md").read_text()
    first_cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    quoted = {name for cell in first_cells for name in re.findall("`([^`]+)`", cell)}
    code = sources()
    system = {"Address already in use", "yield token"}
    unknown = {name for name in quoted - system if name not in code and not hasattr(errors, name)}
    assert len(quoted) > 30
    assert not unknown


def test_the_table_of_metrics_is_complete():
    page = (HOW_TO / "monitor.md").read_text()
    table = page[page.index("<!-- metrics -->") :].split("\n\n")[0]
    metrics = Metrics()
    metrics.measure("items_running", "", list)
    metrics.measure("items_waiting", "", list)
    for name in ("pool_workers", "pool_workers_ready", "pool_workers_busy", "pool_workers_lost"):
        metrics.measure(name, "", list)
    for name in ("workers", "slots", "batch_size", "generated_tokens"):
        metrics.measure(name, "", list)
    served = {
        sample.removeprefix("# TYPE ").split()[0]
        for sample in metrics.page().decode().splitlines()
        if sample.startswith("# TYPE ") and "_created " not in sample
    }
    assert set(re.findall(r"`(tidewire_\w+)`", table)) == served


def test_the_metric_of_ended_jobs_has_each_status_of_an_ended_job():
    page = (HOW_TO / "monitor.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `tidewire_jobs_ended_total`")]
    assert {*re.findall(r"`(\w+)`", row)} >= ENDED
