"""What one node reports to its fleet, field by field: written by ``report``, read by ``merge``.

The contract between whoever asks the nodes (ssh, Slurm, Kubernetes) and who holds their reports
together: one JSON object on one line, ``schemas/node-v1.schema.json``. What is not known is
``{"unknown": reason}``, and an ``Unread`` once it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from checks.base.unknown import Unknown
from preflight.base.program import program_version
from preflight.fleet.base.decode import Unread

SCHEMA = "mooncake-preflight/node/v1"
# How a report begins, whatever its version: merge names those that it does not know.
START = b'{"schema":"mooncake-preflight/node/'
NOT_READ = Unread("not read")

# Of a fact.
Value = str | int | bool


class Rail(NamedTuple):
    """One port of an RDMA device, and the address that it speaks from.

    used: Mooncake takes this device for the launch; None where no launch says so. state, rate,
    link_layer: the kernel's words. mtu_bytes: the active MTU of the port. gid_index, gid_type, gid:
    those that Mooncake takes, None where it takes none. netdev: the interface behind the GID, ""
    without. addresses: ``10.0.0.1/24``, those of the interface. exits: networks with a route out of
    that interface for the GID's address, by all tables in the order of ``ip rule``; None where
    there is no GID, or it is that of an InfiniBand port, or the report is of before this was asked.
    """

    device: str
    port: int
    used: bool | Unknown | None = None
    state: str | Unknown | None = None
    rate: str | Unknown | None = None
    link_layer: str | Unknown | None = None
    mtu_bytes: int | Unknown | None = None
    gid_index: int | Unknown | None = None
    gid_type: str | Unknown | None = None
    gid: str | Unknown | None = None
    netdev: str | Unknown | None = ""
    netdev_mtu_bytes: int | Unknown | None = None
    addresses: tuple[str, ...] | Unknown = ()
    exits: tuple[str, ...] | Unknown | None = None

    @property
    def known_addresses(self) -> tuple[str, ...]:
        return () if isinstance(self.addresses, Unknown) else self.addresses


class Route(NamedTuple):
    """destination: ``10.0.0.0/24``. gateway: "" for what is on the link itself."""

    destination: str
    gateway: str
    interface: str


class NodeLaunch(NamedTuple):
    """What a launch does on one node, as its fleet adds it up: pools, masters, ports, versions.

    source: what the launch is called. hosts: over how many one server runs (``--nnodes``).
    mooncake_version, sglang_version: those that it was sized for, "" where neither runs. protocol:
    of the stores, sorted and joined (``rdma``, ``rdma tcp``), "" without a store. masters:
    ``host:port`` of each that the launch talks to, sorted. services: the rest: (kind, host:port,
    own), own where the launch starts it on this node itself. segment_bytes: what this node adds to
    the cluster's pool; stores: by how many clients. registered_bytes, hugetlb_bytes: of all
    processes here together. mtu_limit_bytes: MC_MTU as Mooncake takes it, the least of all
    processes; None without RDMA. affinity: which NICs of a peer each NIC talks to: ``same name``,
    ``listed`` (MC_NIC_PEER_AFFINITY) or ``any``, the widest of all processes; None without RDMA.
    ports: (what, port) that processes bind here. processes: their names. offload_paths: folders
    that are written.
    """

    source: str
    hosts: int
    mooncake_version: str
    sglang_version: str
    protocol: str | Unknown
    masters: tuple[str | Unknown, ...]
    services: tuple[tuple[str, str | Unknown, bool], ...]
    segment_bytes: int | Unknown
    stores: int | Unknown
    registered_bytes: int | Unknown
    hugetlb_bytes: int | Unknown
    mtu_limit_bytes: int | Unknown | None
    affinity: str | Unknown | None
    ports: tuple[tuple[str, int | Unknown], ...]
    processes: tuple[str, ...]
    offload_paths: tuple[str | Unknown, ...]

    @property
    def known_masters(self) -> tuple[str, ...]:
        return tuple(one for one in self.masters if isinstance(one, str))

    def known_services(self, *kinds: str) -> Iterator[tuple[str, bool]]:
        """Yield (address, own) of the services whose kind begins with one of ``kinds``."""
        for kind, address, own in self.services:
            if isinstance(address, str) and kind.startswith(kinds):
                yield address, own


class NodeFinding(NamedTuple):
    """One that is wanting, or several alike. ignored: the reason of its waiver, None without."""

    check: str
    status: str
    subjects: tuple[str, ...]
    have: str
    need: str
    text: str
    ignored: str | None = None


class NodeReport(NamedTuple):
    """version: of the program that wrote it. node: the name by which the node was asked for, its
    own host name where it was not asked by one. host: what the node calls itself. boot: the
    kernel's boot id, "" where it is not known: two names with one boot id are one machine.
    made_unix_seconds: by the node's own clock; 0 where nothing was read.

    status: pass, warn, fail, unknown; ``error`` where the node gave no verdict, and then ``error``
    says why. exit_code: of that verdict. reason: one sentence. counts: findings by status, before
    folding, and ``ignored``. findings: what did not pass, the worst first, equal ones folded. What
    was skipped is left out. passes: ``[check, subject, have]``, the subject folded (``mlx5_0-7``),
    each cut at 80 characters.

    facts: what like nodes share, flat: name -> text, whole number or boolean (see ``facts``).
    unknown_facts: name -> why it could not be read. A name in neither: the node has no such thing.
    routes: those of the main IPv4 and IPv6 tables that lead out of an interface. launch: None
    without one, or where it could not be read.
    """

    schema: str
    version: str
    node: str
    host: str
    boot: str
    made_unix_seconds: int
    status: str
    exit_code: Any
    reason: str
    counts: Any
    findings: tuple[NodeFinding, ...]
    passes: tuple[tuple[str, str, str], ...]
    facts: dict[str, Any]
    unknown_facts: dict[str, Any]
    rails: tuple[Rail, ...] | Unknown
    routes: tuple[Route, ...] | Unknown
    launch: NodeLaunch | None = None
    error: str = ""


def empty_report(node: str) -> NodeReport:
    """Return the report of a node that was not read."""
    counts = dict.fromkeys(("fail", "unknown", "warn", "pass", "skip", "ignored"), 0)
    empty: Any = ("", "", 0, "", 0, "", counts, (), (), {}, {}, NOT_READ, NOT_READ)
    return NodeReport(SCHEMA, program_version(), node, *empty)
