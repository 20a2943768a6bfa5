"""Roles of processes that share one database: which of them answer requests, and which run functions.

  command                            | answers requests | runs functions
  -----------------------------------+------------------+---------------
  `tidewire serve`                   | yes              | yes
  `tidewire serve --no-functions`    | yes              | no
  `tidewire worker`                  | no               | yes

All three commands import the same file, which registers the endpoints.
"""

from contextvars import ContextVar
from typing import Final

RUNS_FUNCTIONS: Final[ContextVar[bool]] = ContextVar("runs_functions", default=True)
"""Whether this process runs the functions of the file that it imports. If not, `add_generate` loads no weights."""
