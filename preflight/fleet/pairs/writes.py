"""What both ends of a pair do: write over a connection, and connect to a port of the other side."""

from __future__ import annotations

import socket
import time

from preflight.fleet.pairs.records import OUT, PortTried
from preflight.fleet.pairs.verbs import BUFFER_BYTES, SMALL_BYTES, Connection, End

# The first write pays for what the devices set up; the shortest of these is the way itself.
SMALL_WRITES = 5
MOST_WRITES = SMALL_WRITES + 1
# Of a port whose packets are dropped; one that is closed says so at once.
PORT_SECONDS = 5.0


def writes(
    made: Connection, other: End, count: int, seconds: list[float]
) -> tuple[int | None, int] | None:
    """The first ``count`` of five small writes and a large one; their times go to ``seconds``.

    The status and size of the one that failed, None where none did. Raises VerbsError.
    """
    for size in ([SMALL_BYTES] * SMALL_WRITES + [BUFFER_BYTES])[:count]:
        done = made.write(other, size)
        if done.status != 0:
            return done.status, size
        seconds.append(done.seconds)
    return None


def port_tried(
    address: str, port: object, deadline: float, what: str = "", way: str = OUT
) -> PortTried:
    """Connected to, and closed again; ``port`` may be anything that was heard."""
    if type(port) is not int or not 0 < port < 1 << 16:
        return PortTried(0, None, "no port", what, way)
    started = time.monotonic()
    limit = max(0.1, min(deadline - started, PORT_SECONDS))
    try:
        socket.create_connection((address, port), limit).close()
    except (OSError, UnicodeError) as error:
        late = isinstance(error, TimeoutError)
        why = f"no answer within {limit:.0f} s" if late else str(error) or "no answer"
        return PortTried(port, None, why, what, way)
    return PortTried(port, time.monotonic() - started, "", what, way)
