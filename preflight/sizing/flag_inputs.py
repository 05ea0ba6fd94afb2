"""The inputs of a sizing that flags describe: the ranks, and where each value came from.

A flag beats the environment, which beats what this host shows, which beats a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from checks.base.needs import ProcessId
from checks.base.root import Root
from checks.base.units import MIB, format_bytes, format_page_size
from checks.base.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from preflight.base.usage_error import UsageError
from preflight.mooncake.placement import (
    RankPlacement,
    binds_ranks,
    place_nics,
    place_ranks,
    unbound,
)
from preflight.programs.memory_records import (
    SGLANG_LOCAL_BUFFER_BYTES,
    Launch,
    Process,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.programs.store_environment import Note, read_store_settings
from preflight.sizing.chosen_versions import choose_mooncake, known_sglang
from preflight.sizing.sizing_records import Input, RuleTerms, SizingInputs

if TYPE_CHECKING:
    from checks.releases.sglang import SglangRelease

# More ranks than any one host has run; a larger number is a slip of the keyboard.
MOST_RANKS = 1024


class Flags(NamedTuple):
    """What the command line says; None where it says nothing. Sizes in bytes."""

    tp_size: int
    hicache_bytes: int
    segment_bytes: int
    arena_bytes: int | None = None
    hugepage_bytes: int | None = None
    available_bytes: int | None = None
    pp_size: int = 1
    dp_size: int = 1
    local_buffer_bytes: int | None = None
    segment_scope: str = "instance"
    protocol: str | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None  # empty: the ranks are bound to no node
    use_hugepage: bool | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None


class _Gathered:
    """The inputs as they are being gathered."""

    def __init__(self, flags: Flags, environment: Mapping[str, str], root: Root) -> None:
        self.flags = flags
        self.environment = environment
        self.root = root
        self.shown: dict[str, Input] = {}
        self.notes: list[Note] = []

    def note(self, id_: str, text: str) -> None:
        self.notes.append(Note(id_, text))


def gather_flags(
    flags: Flags, environment: Mapping[str, str], root: Root, default_page_bytes: int | Unknown
) -> SizingInputs:
    """Return the launch that ``flags`` describe, completed from the environment and the host.

    Raises UsageError on a value that no launch can have.
    """
    gathered = _Gathered(flags, environment, root)
    ranks = _ranks(gathered)
    mooncake = _mooncake(gathered)
    protocol = _protocol(gathered)
    settings = _settings(gathered, mooncake)
    nics = _nic_nodes(gathered, protocol)
    known_nics = () if isinstance(nics, Unknown) else nics
    nodes = _rank_nodes(gathered, ranks, known_nics)
    local_buffer = flags.local_buffer_bytes
    gathered.shown["local_buffer_bytes"] = (
        Input(SGLANG_LOCAL_BUFFER_BYTES, "default of SGLang")
        if local_buffer is None
        else Input(local_buffer, "--local-buffer-size")
    )
    client = StoreClient(
        _segment_per_process(gathered),
        SGLANG_LOCAL_BUFFER_BYTES if local_buffer is None else local_buffer,
        protocol,
    )
    pools = (flags.hicache_bytes,) if flags.hicache_bytes else ()
    processes = tuple(
        Process(f"rank {rank}", settings, pools, (client,), nodes[rank], id=ProcessId(0, rank))
        for rank in range(ranks)
    )
    if isinstance(default_page_bytes, Unknown):
        default_page_bytes = 2 * MIB
    launch = Launch(processes, mooncake, known_nics, default_page_bytes)
    unknown = nics if isinstance(nics, Unknown) else None
    doubt = _halves_may_overlap(gathered, launch)
    notes = tuple(gathered.notes)
    terms = RuleTerms(
        flags.tp_size,
        flags.hicache_bytes,
        flags.segment_bytes,
        flags.arena_bytes,
        flags.pp_size,
        flags.dp_size,
        flags.segment_scope,
    )
    return SizingInputs(
        terms,
        launch,
        unknown,
        gathered.shown,
        notes,
        None,
        doubt,
        flags.available_bytes,
        flags.hugepage_bytes,
        flags.nic_nodes,
    )


def _halves_may_overlap(gathered: _Gathered, launch: Launch) -> Unknown | None:
    """What flags do not tell: whether the model's L2 is registered as K and V, which may end it.

    ``preflight.rules.memory`` judges it where the launch itself is given.
    """
    flags = gathered.flags
    huge = any(process.settings.hugepages for process in launch.processes)
    if flags.segment_scope == "process" or not flags.hicache_bytes or not huge:
        return None
    sglang = _known_sglang(gathered)
    known = sglang is not None and not sglang.registers_halves
    if known or not launch.release.registers_whole_pool:
        return None
    mooncake = gathered.shown["mooncake_version"]
    why = (
        f"SGLang 0.5.21 and newer register K and V of L2 apart (all but MLA models), and Mooncake "
        f"{mooncake.value} refuses V where L2 is on huge pages: such a server ends when its model "
        "is loaded. Take Mooncake 0.3.13.post1, or size the launch itself"
    )
    if sglang is None or mooncake.assumed:
        gathered.note("l2-halves-may-overlap", why)
        return None
    return Unknown(why)


def _known_sglang(gathered: _Gathered) -> SglangRelease | None:
    """Return the SGLang that is named or installed; None where it would have to be assumed."""
    known = known_sglang(gathered.flags.sglang_version)
    if known is None:
        return None
    release, gathered.shown["sglang_version"] = known
    return release


def _ranks(gathered: _Gathered) -> int:
    flags = gathered.flags
    for name in ("tp_size", "pp_size", "dp_size"):
        size = getattr(flags, name)
        if size < 1:
            raise UsageError(f"--{name.replace('_', '-')} {size}: must be 1 or more")
        given = name == "tp_size" or size != 1
        gathered.shown[name] = Input(size, f"--{name.replace('_', '-')}" if given else "default")
    ranks = flags.tp_size * flags.pp_size * flags.dp_size
    if ranks > MOST_RANKS:
        raise UsageError(
            f"tp {flags.tp_size} x pp {flags.pp_size} x dp {flags.dp_size} is {ranks} ranks: give "
            f"the ranks of one host, {MOST_RANKS} at most"
        )
    if flags.hicache_bytes == 0 and flags.segment_scope == "instance":
        raise UsageError(
            "--hicache-size 0: to SGLang 0 means 'not set' (--hicache-ratio decides then); give "
            "the size of a rank's L2 pool, or --segment-scope process for a store without one"
        )
    gathered.shown["hicache_bytes"] = Input(flags.hicache_bytes, "--hicache-size, per rank")
    return ranks


def _segment_per_process(gathered: _Gathered) -> int:
    flags = gathered.flags
    gathered.shown["global_segment_bytes"] = Input(flags.segment_bytes, "--global-segment-size")
    gathered.shown["segment_scope"] = Input(flags.segment_scope, "--segment-scope, or its default")
    if flags.segment_scope == "process":
        return flags.segment_bytes
    # SGLang 0.5.19 and later (mooncake_store.py): // (tp * pp); each data-parallel replica anew.
    return flags.segment_bytes // (flags.tp_size * flags.pp_size)


def _mooncake(gathered: _Gathered) -> MooncakeRelease:
    behaviour, shown, notes = choose_mooncake(gathered.flags.mooncake_version)
    gathered.shown["mooncake_version"] = shown
    gathered.notes.extend(notes)
    return behaviour


def _protocol(gathered: _Gathered) -> Protocol:
    named = gathered.environment.get("MOONCAKE_PROTOCOL")
    if gathered.flags.protocol:
        protocol, origin = Protocol(gathered.flags.protocol), "--protocol"
    elif named in ("rdma", "tcp"):
        protocol, origin = Protocol(named), "environment, MOONCAKE_PROTOCOL"
    else:
        protocol, origin = Protocol.RDMA, "default of SGLang 0.5.13 and later"
        if named:
            text = f"MOONCAKE_PROTOCOL={named}: neither rdma nor tcp; rdma is taken here"
            gathered.note("protocol-unknown", text)
    gathered.shown["protocol"] = Input(protocol.value, origin)
    return protocol


def _settings(gathered: _Gathered, mooncake: MooncakeRelease) -> StoreSettings:
    flags = gathered.flags
    found, notes = read_store_settings(gathered.environment, mooncake)
    gathered.notes.extend(notes)
    if flags.use_hugepage is not None:
        hugepages, origin = flags.use_hugepage, "--use-hugepage or --no-use-hugepage"
    elif found.hugepages:
        hugepages, origin = True, "environment, MC_STORE_USE_HUGEPAGE"
    else:
        hugepages, origin = True, "assumed: MC_STORE_USE_HUGEPAGE is not set here; export it"
    gathered.shown["use_hugepage"] = Input(hugepages, origin)
    return StoreSettings(
        hugepages,
        _hugepage_bytes(gathered, mooncake, found),
        _arena_bytes(gathered, found),
        found.arena_disabled,
        found.hot_cache,
    )


def _hugepage_bytes(gathered: _Gathered, mooncake: MooncakeRelease, found: StoreSettings) -> int:
    size = gathered.flags.hugepage_bytes
    if size is None:
        named = "MC_STORE_HUGEPAGE_SIZE" in gathered.environment
        origin = "environment, MC_STORE_HUGEPAGE_SIZE" if named else "default of Mooncake"
        gathered.shown["hugepage_bytes"] = Input(found.hugepage_bytes, origin)
        return found.hugepage_bytes
    sizes = mooncake.page_sizes_bytes
    if sizes and size not in sizes:
        known = " or ".join(format_page_size(known) for known in sizes)
        raise UsageError(
            f"--hugepage-size {format_bytes(size)}: this Mooncake maps pages of {known}, and 2 MiB "
            "in place of any other: write 2mb, 512mb or 1gb"
        )
    gathered.shown["hugepage_bytes"] = Input(size, "--hugepage-size")
    return size


def _arena_bytes(gathered: _Gathered, found: StoreSettings) -> int | None:
    size = gathered.flags.arena_bytes
    if size is not None:
        gathered.shown["arena_pool_bytes"] = Input(size, "--arena-pool-size, per rank")
        return size or None
    origin = (
        "default: no arena"
        if found.arena_bytes is None
        else "environment, MC_MMAP_ARENA_POOL_SIZE, per rank"
    )
    gathered.shown["arena_pool_bytes"] = Input(found.arena_bytes or 0, origin)
    return found.arena_bytes


def _nic_nodes(gathered: _Gathered, protocol: Protocol) -> tuple[int, ...] | Unknown:
    named = gathered.environment.get("MOONCAKE_DEVICE", "")
    placed = place_nics(protocol, gathered.flags.nic_nodes, named, gathered.root)
    shown = None if isinstance(placed.nodes, Unknown) else list(placed.nodes)
    gathered.shown["nic_numa_nodes"] = Input(shown, placed.origin)
    gathered.notes.extend(placed.notes)
    return placed.nodes


def _rank_nodes(gathered: _Gathered, ranks: int, nics: tuple[int, ...]) -> tuple[int | None, ...]:
    placed = _placed_ranks(gathered, ranks, nics)
    bound = [node for node in placed.nodes if node is not None]
    gathered.shown["rank_numa_nodes"] = Input(bound, placed.origin)
    gathered.notes.extend(placed.notes)
    return placed.nodes


def _placed_ranks(gathered: _Gathered, ranks: int, nics: tuple[int, ...]) -> RankPlacement:
    given = gathered.flags.rank_nodes
    if given is not None:
        return given_ranks(ranks, given)
    if gathered.flags.segment_scope == "process":
        return unbound(ranks, "not ranks of SGLang")
    if not binds_ranks(gathered.environment):
        return unbound(ranks, "environment, SGLANG_AUTO_NUMA_BIND")
    return place_ranks(ranks, nics, gathered.root)


def given_ranks(ranks: int, given: tuple[int, ...]) -> RankPlacement:
    """Return the nodes that --rank-numa-nodes names.

    Raises UsageError if it is not one for each rank.
    """
    if len(given) not in (0, ranks):
        raise UsageError(
            f"--rank-numa-nodes: the number of nodes ({len(given)}) is not that of the ranks "
            f"({ranks}): name one for each, or none"
        )
    return RankPlacement(given or (None,) * ranks, "--rank-numa-nodes")
