"""What became of each connection that a pair of nodes tried, as ``pair-connect`` tells it."""

from __future__ import annotations

from typing import NamedTuple

from preflight.fleet.rails.lanes import Way

PROTOCOL = "mooncake-preflight/pair/v1"
HERE, THERE = "here", "there"
# Directions: from here to there, and back.
OUT, BACK = "out", "back"
VERBS, WRITE = "verbs", "write"


class PairPort(NamedTuple):
    """One side of a connection. gid: as a person writes it. mtu_bytes: None where not known."""

    device: str
    port: int
    gid: str
    mtu_bytes: int | None


class Failure(NamedTuple):
    """side: where it failed. kind: of a verbs call, of a write. number: errno, or the status of the
    completion, None for one that never came. size_bytes: of a write."""

    side: str
    kind: str
    step: str
    number: int | None
    size_bytes: int = 0


class Writes(NamedTuple):
    """One direction of a pair of ports. small_seconds, large_seconds: of the writes, the shortest
    of several small ones; None where it was not acknowledged. arrived_bytes: of the largest write
    that is whole in the other side's memory, acknowledged or not; None where it did not say.
    """

    small_seconds: float | None = None
    large_seconds: float | None = None
    failure: Failure | None = None
    arrived_bytes: int | None = None


class TriedPair(NamedTuple):
    """One pair of ports. facts: what addresses and routes say of it. back: None where it was not
    tried. cause: of whatever is broken."""

    here: PairPort
    there: PairPort
    facts: Way
    out: Writes
    back: Writes | None = None
    cause: str = ""

    @property
    def works(self) -> bool:
        """Both ways; what was not tried back does not count against it."""
        return self.out.failure is None and (self.back is None or self.back.failure is None)


class TriedPort(NamedTuple):
    """A TCP port that was connected to. error: "" where it could be. what: of the launch, "" for
    one that was asked for. way: OUT for a port of the other side, BACK for one of this."""

    port: int
    seconds: float | None
    error: str
    what: str = ""
    way: str = OUT


class PairAnswer(NamedTuple):
    """error: why the pairs could not be tried, "" where they were. connect_seconds: of TCP.

    over: "rdma", or "tcp" where the launch moves no data over RDMA: then TCP is all there is.
    """

    peer: str
    connect_seconds: float | None
    pairs: tuple[TriedPair, ...]
    ports: tuple[TriedPort, ...]
    error: str
    over: str = "rdma"

    @property
    def status(self) -> str:
        """A pair that was tried and is broken fails; nothing tried is nothing known."""
        if not all(one.works for one in self.pairs) or any(one.error for one in self.ports):
            return "fail"
        if self.over == "tcp":
            return "unknown" if self.error or self.connect_seconds is None else "pass"
        return "unknown" if self.error or not self.pairs else "pass"
