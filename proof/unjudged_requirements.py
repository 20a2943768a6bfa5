"""Requirements that the suite judges neither of a server nor of a client, and why.

Those that nothing outside could judge are listed in spec/README.md, under "Not seen on the wire". A requirement that gets
a check or a scenario is removed here: a test demands it.
"""

_READER = "binds who reads, and is judged of clients; that a server does not write it otherwise is judged where it writes"
_LONG = "`grace_ms` is at least 60 seconds, which is longer than a check"
_PAGE = "about pages: the page of the appendix is judged in Chromium, by `tests/browser/test_page_client.py`"
_OPERATION = "takes the hands of an operator: a proxy with a limit, a stop, a store that cannot be read"
_FORBIDDEN = "takes an endpoint that one of two callers may not use; a description does not tell of one"
_BYTES = "takes tokens whose bytes are known, and end within a character: no input of a stranger's model brings them for sure"
_TIES = "takes ties, or values before they are rounded: no input of a stranger's model brings them for sure"
_WRITER = "binds who writes, and is judged of servers"

REASONS = {
    "TW-OVR-014": "takes a proxy in front of the server that adds a prefix to paths",
    "TW-OVR-026": _WRITER,
    "TW-DSC-006": _FORBIDDEN,
    "TW-DSC-021": "takes an endpoint that breaks its own schema; that values fit it is judged (TW-DSC-020)",
    "TW-FRM-052": "binds who reads: what it makes of the end shows as the end that it reports, judged by TW-CLI-021",
    "TW-RES-002": _READER,
    "TW-RES-027": "`log_ttl_s` is longer than a run",
    "TW-RES-031": _READER,
    "TW-RES-032": _READER,
    "TW-RES-046": "takes a primary copy of a log that cannot be read",
    "TW-DIF-017": _READER,
    "TW-DIF-020": _READER,
    "TW-DIF-022": _READER,
    "TW-DIF-024": _READER,
    "TW-DIF-025": _READER,
    "TW-DIF-028": _READER,
    "TW-DIF-032": _WRITER,
    "TW-DIF-041": "when a server wrote does not show through the times of a network",
    "TW-DIF-049": _WRITER,
    "TW-DIF-055": _WRITER,
    "TW-DIF-069": "60 seconds are longer than a check",
    "TW-JOB-058": "what is computed does not show",
    "TW-JOB-064": _LONG,
    "TW-JOB-066": _LONG,
    "TW-JOB-067": _LONG,
    "TW-JOB-068": _LONG,
    "TW-JOB-076": "takes an anonymous caller who is not the suite",
    "TW-BAT-013": "which input is at fault is the function's to say; that items fail alone is judged (TW-BAT-004)",
    "TW-GEN-005": "advice on a number that a server may choose",
    "TW-GEN-014": _BYTES,
    "TW-GEN-015": _BYTES,
    "TW-GEN-019": "takes a prompt so long that it is read in parts, whatever the machine",
    "TW-GEN-021": "a size, measured by `bench/wire.py`",
    "TW-GEN-032": _TIES,
    "TW-GEN-035": _TIES,
    "TW-GEN-036": _TIES,
    "TW-GEN-039": _BYTES,
    "TW-GEN-040": "takes two vocabularies",
    "TW-GEN-042": _BYTES,
    "TW-ERR-009": "whether a text is of use is for people to say",
    "TW-ERR-010": "any of the problems is right; what each fault by itself is answered with is judged",
    "TW-BRW-001": _PAGE,
    "TW-BRW-002": _PAGE,
    "TW-BRW-003": _PAGE,
    "TW-BRW-004": _PAGE,
    "TW-BRW-016": "a token lives for minutes, which is longer than a check",
    "TW-BRW-021": "about what stands in front of the server",
    "TW-BRW-022": _PAGE,
    "TW-BRW-023": "about several streams of one client at a time; a scenario plays one job",
    "TW-BRW-024": _PAGE,
    "TW-BRW-025": "takes a client that has no credentials but a stream token; the adapters have none for one",
    "TW-SEC-004": _FORBIDDEN,
    "TW-SEC-005": "takes an anonymous caller who is not the suite",
    "TW-SEC-007": "takes credentials that expire within a run",
    "TW-SEC-015": "no sentence names the time",
    "TW-SEC-029": "whatever credentials a server takes come with `--header`",
    "TW-DEP-002": _OPERATION,
    "TW-DEP-003": _OPERATION,
    "TW-DEP-004": _OPERATION,
    "TW-DEP-005": _OPERATION,
    "TW-VER-006": "which names are an extension's, nobody lists",
}
"""Requirement → why."""
