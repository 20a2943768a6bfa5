"""Requirements that no check and no scenario judges, with the reason.

Requirements that cannot be observed from outside are listed in spec/README.md under "Not seen on the wire" instead. A test
fails if a check or scenario judges a requirement that is still listed here.
"""

import re

from tidewire_conformance import specification

_READER_RULE = (
    "applies to the reader, so scenarios for clients judge it; other checks judge what the server writes"
)
_BROWSER_PAGE = (
    "applies to pages: `tests/browser/test_page_client.py` tests the page of the appendix in Chromium"
)
_NEEDS_OPERATOR = "needs an operator: a proxy with a limit, a shutdown, or an unreadable store"
_WRITER_RULE = "applies to the writer, so checks of servers judge it"

REASONS = {
    "TW-OVR-026": _WRITER_RULE,
    "TW-FRM-052": "a check judges the states of a server; for clients, TW-CLI-021 judges the end that they report",
    "TW-RES-002": _READER_RULE,
    "TW-RES-031": _READER_RULE,
    "TW-RES-032": _READER_RULE,
    "TW-RES-046": "needs an unreadable primary copy of a log",
    "TW-DIF-032": _WRITER_RULE,
    "TW-DIF-049": _WRITER_RULE,
    "TW-DIF-055": _WRITER_RULE,
    "TW-DIF-069": "60 seconds are longer than a check may take",
    "TW-JOB-058": "a computation cannot be observed from outside",
    "TW-JOB-086": "needs a server that stops between its response and the end of the function",
    "TW-GEN-005": "a recommended value that a server may change",
    "TW-GEN-019": "needs a prompt that every server processes in several parts, on any machine",
    "TW-GEN-021": "a size on the wire, measured by `bench/wire.py`",
    "TW-GEN-039": "needs a text that contains a special token; no input makes the model of a third-party server produce one reliably",
    "TW-GEN-040": "needs two vocabularies",
    "TW-GEN-045": "needs the engine in front of which the server runs",
    "TW-ERR-009": "only a person can judge whether a text is helpful",
    "TW-BRW-001": _BROWSER_PAGE,
    "TW-BRW-002": _BROWSER_PAGE,
    "TW-BRW-003": _BROWSER_PAGE,
    "TW-BRW-004": _BROWSER_PAGE,
    "TW-BRW-021": "applies to the proxy in front of the server",
    "TW-BRW-022": _BROWSER_PAGE,
    "TW-BRW-023": "applies to a client with several concurrent streams; a scenario has one job",
    "TW-BRW-024": _BROWSER_PAGE,
    "TW-BRW-026": _BROWSER_PAGE,
    "TW-BRW-025": "needs a client with a stream token as its only credential; the adapters cannot pass one",
    "TW-SEC-007": "needs credentials that expire during a run",
    "TW-SEC-015": "no requirement states the time",
    "TW-SEC-029": "the server may choose its credentials; the user passes them with `--header`",
    "TW-DEP-002": _NEEDS_OPERATOR,
    "TW-DEP-005": _NEEDS_OPERATOR,
    "TW-DEP-013": _NEEDS_OPERATOR,
    "TW-DEP-014": _NEEDS_OPERATOR,
    "TW-DEP-015": _NEEDS_OPERATOR,
    "TW-DEP-016": _NEEDS_OPERATOR,
    "TW-DEP-017": _NEEDS_OPERATOR,
    "TW-DEP-018": _NEEDS_OPERATOR,
    "TW-DEP-019": _NEEDS_OPERATOR,
    "TW-DEP-021": _NEEDS_OPERATOR,
    "TW-VER-006": "no list states which names belong to extensions",
}
"""Reasons by requirement."""


def unseen() -> dict[str, str]:
    """Return the requirements that no test over the network can judge, with the reasons from `spec/README.md`."""
    text = (specification.folder() / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Not seen on the wire\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (TW-[^|]+) \| ([^|]+) \|$", section, re.MULTILINE)
    return {name: why for names, why in rows for name in re.findall(r"TW-[A-Z]{3}-\d{3}", names)}
