"""Role of this process among the servers of one database.

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
"""Whether the process that imports the server's file runs its functions. If not, `add_generate` loads no weights."""
