"""The SGLang servers of a launch, each with everything that its tiers follow from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.engines.sglang.host_pool_records import PoolRequest
from preflight.engines.sglang.launch import server_ranks
from preflight.engines.sglang.model import Models
from preflight.engines.sglang.pool_request import SizedServer, pool_request
from preflight.engines.sglang.pools import ServerMemory
from preflight.engines.sglang.server import SglangServer
from preflight.needs.launch_sizing import LaunchInputs
from preflight.needs.process_shares import gpu_memory, server_hardware
from preflight.processes.processes import LaunchOptions, LaunchProcess

DEFAULT_WRITE_POLICY = "write_through"


class Deployment(NamedTuple):
    """One server of the launch, and how many like it the cluster runs.

    Attributes:
        request: What the server's pools ask for; Unknown if a variable decides it.
        memory: The server's L2 pools.
        model: The model's name.
        instances: Number of such servers.
    """

    process: LaunchProcess
    sized: SizedServer
    request: PoolRequest | Unknown
    memory: ServerMemory
    model: str
    instances: int

    @property
    def server(self) -> SglangServer:
        return self.sized.server

    @property
    def groups(self) -> int:
        """Caches side by side: each holds other tokens, and answers other requests."""
        ranks = self.sized.ranks
        return ranks.replicas * ranks.attention_dp * self.instances

    @property
    def ranks(self) -> int:
        """The number of rank processes of all such servers, over all hosts."""
        ranks = self.sized.ranks
        return ranks.tp * ranks.pp * ranks.replicas * self.instances

    @property
    def write_policy(self) -> str:
        policy = self.server.value("hicache_write_policy")
        return policy if isinstance(policy, str) else DEFAULT_WRITE_POLICY

    @property
    def buffers(self) -> bool:
        """Whether L2 is staging for L3 alone, and keeps nothing (buffer_only)."""
        mode = self.server.value("hicache_host_memory_mode")
        return self.sized.release.buffer_only and mode == "buffer_only"

    @property
    def reuses(self) -> bool:
        """Whether a request can use cached tokens of an earlier one."""
        if self.server.value("disable_radix_cache") is True:
            return False
        kept = self.server.value("disaggregation_decode_enable_radix_cache") is True
        return self.server.mode != "decode" or kept


def parse_part(text: str) -> float | None:
    """Return the number from 0 to 1 that ``text`` is; None for any other text."""
    with suppress(ValueError):
        return part if 0 <= (part := float(text)) <= 1 else None
    return None


class Cluster(NamedTuple):
    """The size of the cluster.

    Attributes:
        hosts: How many run this launch, None if not given.
        other_bytes: Memory that processes outside the launch contribute to the store.
    """

    hosts: int | None = None
    other_bytes: int = 0


def deployments(
    inputs: LaunchInputs, options: LaunchOptions, root: Root, cluster: Cluster
) -> tuple[Deployment, ...]:
    """Return every server of the launch.

    Raises:
        UsageError: If the launch has none, if a flag's number is invalid, or if the cluster's hosts
            are no multiple of a server's hosts.
    """
    models = Models(root, options.model_config)
    elsewhere = options.available_bytes is not None
    gpu = gpu_memory(options.gpu_bytes, root, True, elsewhere)
    here = None if elsewhere else root
    servers = []
    for process in inputs.processes:
        if process.server is None:
            continue
        ranks = server_ranks(process.server)
        if isinstance(ranks, Unknown):
            raise UsageError(f"{process.name}: {ranks.reason}")
        hardware = server_hardware(process.server, models, inputs.sglang, gpu, root=here)
        sized = SizedServer(process.server, ranks, hardware, inputs.sglang)
        pools = inputs.memory.get(process.number) or ServerMemory((), (), "not sized")
        model = models.target(process.server.value("model_path")).name
        alike = instances(cluster, ranks.nnodes, process)
        servers.append(Deployment(process, sized, pool_request(sized), pools, model, alike))
    if not servers:
        raise UsageError(
            "the launch starts no SGLang server: capacity is about the cache of one, so give the "
            "launch of the server, with that of its store"
        )
    return tuple(servers)


def cluster_hosts(inputs: LaunchInputs, cluster: Cluster) -> int:
    """Return the number of hosts of the launch: as given, else those of its largest server."""
    if cluster.hosts is not None:
        return cluster.hosts
    counts = [process.server.number("nnodes") for process in inputs.processes if process.server]
    return max((count for count in counts if isinstance(count, int)), default=1)


def instances(cluster: Cluster, nnodes: int, process: LaunchProcess) -> int:
    """Return how many servers of ``nnodes`` hosts run.

    Raises:
        UsageError: If hosts are left over.
    """
    hosts = nnodes if cluster.hosts is None else cluster.hosts
    if hosts % nnodes:
        raise UsageError(
            f"--nodes-in-cluster {hosts}: {process.name} spans {nnodes} hosts (--nnodes), so give "
            f"a multiple of {nnodes}"
        )
    return hosts // nnodes


class Bounds(NamedTuple):
    """The least and the most of a number; equal if it is known exactly."""

    least: int
    most: int

    def text(self, shown: Callable[[int], str] = "{:,}".format) -> str:
        """Return ``1,024 to 2,048``, or ``1,024`` if both bounds read the same."""
        least, most = shown(self.least), shown(self.most)
        return least if least == most else f"{least} to {most}"

    def times(self, count: int) -> Bounds:
        """Return the bounds of ``count`` equal things together."""
        return Bounds(self.least * count, self.most * count)


class Tier(NamedTuple):
    """One cache tier of a server, over all hosts that it runs on.

    Attributes:
        name: ``L1``, ``L2``, ``L3``, ``SSD``.
        what: In words (``GPU memory``, ``host memory``).
        bytes, tokens: The size before it evicts; Unknown says which input is missing.
        formula: How the size is computed, as ``8 x 4.00 GiB x 0.95 (eviction watermark)``.
        conversations: How many the tier holds, of the length that was asked about; None without a
            length.
        group_tokens: Tokens of one of several caches side by side, for L1 and L2.
        keys: What the master keeps, for L3.
        written, read: Bytes a second; None if no speed was given.
    """

    name: str
    what: str
    bytes: Bounds | Unknown
    tokens: Bounds | Unknown
    formula: str
    conversations: Bounds | Unknown | None = None
    group_tokens: Bounds | Unknown | None = None
    keys: Keys | Unknown | None = None
    written: Bounds | None = None
    read: Bounds | None = None


class Round(NamedTuple):
    """One round of a multi-turn workload, as a replay found it.

    Attributes:
        number: From 1.
        held_tokens: All clients' contexts at its end, which an unlimited cache would hold.
        reusable_tokens: Tokens of the round's prompts that were seen in earlier rounds.
        hits: (tier, least, most), the part of ``reusable_tokens`` (0 to 1) that this tier and all
            nearer ones still serve, with the least and with the most that the tiers may hold.
        evicting: Names of tiers that are full for certain by its end.
        may_evict: Those that are if they hold the least that they may hold.
    """

    number: int
    held_tokens: int
    reusable_tokens: int
    hits: tuple[tuple[str, float, float], ...]
    evicting: tuple[str, ...]
    may_evict: tuple[str, ...] = ()

    @property
    def may_evict_too(self) -> list[str]:
        """Those of ``may_evict`` that are not in ``evicting``."""
        return [name for name in self.may_evict if name not in self.evicting]


class Keys(NamedTuple):
    """The keys of a full pool in its master: their number, and about the memory that they take."""

    number: int
    master_bytes: int


class Capacity(NamedTuple):
    """What one server's tiers hold.

    Attributes:
        tiers: Nearest to the GPU first.
        rounds: Of the workload, () without.
        kept: (least, most), the part (0 to 1) of all that the rounds ask again; None without.
        bytes_per_token: Of one copy of the cache, the shards of all ranks together, as the store
            keeps it.
        keys: None without a store.
        prefetch: How many tokens of L3 one cache may have under prefetch at a time; None without L2
            or L3.
    """

    tiers: tuple[Tier, ...]
    bytes_per_token: int | Unknown
    rounds: tuple[Round, ...]
    keys: Keys | Unknown | None = None
    prefetch: Bounds | Unknown | None = None
    kept: tuple[float, float] | None = None
