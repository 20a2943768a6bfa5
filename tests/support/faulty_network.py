"""Plan of random faults for a TCP proxy between a client and a server. A seed determines the faults.

  fault         | effect
  --------------+-----------------------------------------------------------------------------------------------
  none          | none: the connection passes unchanged
  refuse        | the connection is reset at its first byte
  fin, rst      | the connection is closed or reset within the bytes of one direction
  stall         | forwarding stops within the bytes of one direction, and the connection stays open
  bytes         | every byte at the beginning of each direction is sent in its own segment
  delay         | each piece is forwarded late

A fault can occur at any byte, including the first, and so also in the handshake of TLS.
"""

import random
from collections.abc import Mapping

from tidewire_conformance.wire.fault_proxy import Cut, Fault, Plan, Slow

WEIGHTS: Mapping[str, float] = {
    "none": 25, "refuse": 5, "fin": 20, "rst": 20, "stall": 5, "bytes": 10, "delay": 15,
}  # fmt: skip
REACH = 8_000
"""Number of bytes of one direction within which a connection breaks."""


def random_faults(seed: int) -> Plan:
    draw = random.Random(seed)

    def plan(_number: int) -> Fault | None:
        [fault] = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        of, after = "request" if draw.random() < 0.3 else "response", draw.randrange(REACH)
        match fault:
            case "refuse":
                return Cut(how="rst", of="request")
            case "bytes":
                return Slow(singly=2_000)
            case "delay":
                return Slow(delay=0.01)
            case "none":
                return None
        return Cut(after=after, how=fault, of=of)  # type: ignore[arg-type]

    return plan
