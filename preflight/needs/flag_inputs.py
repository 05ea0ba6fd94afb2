"""The inputs of a sizing that flags describe: the ranks, and where each value came from.

A flag beats the environment, which beats what this host shows, which beats a default.
"""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.pages import Default, ProcessId
from checks.framework.root import Root
from checks.framework.units import GIB, MIB, format_bytes, format_page_size
from checks.framework.unknown import Unknown
from checks.releases.mooncake import NEWEST_KNOWN, MooncakeRelease
from preflight.base.usage_error import UsageError
from preflight.engines.programs.memory_records import (
    SGLANG_LOCAL_BUFFER_BYTES,
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.engines.programs.store_environment import (
    DEFAULT_HUGEPAGE_BYTES,
    Note,
    read_store_settings,
)
from preflight.needs.chosen_releases import choose_mooncake, known_sglang
from preflight.needs.placement import (
    RankPlacement,
    binds_ranks,
    given_ranks,
    place_nics,
    place_ranks,
    unbound,
)
from preflight.needs.sizing_inputs import MOST_RANKS, Input, RuleTerms, SizingInputs


class Flags(NamedTuple):
    """What the command line says; None if it says nothing.

    Sizes in bytes.

    Attributes:
        documented: The documented rule is asked for, so that inputs which that rule accepts are not
            refused.
    """

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
    documented: bool = False


# What is shown of each value, by its name.
Shown = dict[str, Input]
Notes = list[Note]


def gather_flags(
    flags: Flags, environment: Mapping[str, str], root: Root, default_page_bytes: int | Unknown
) -> SizingInputs:
    """Return the launch that ``flags`` describe, completed from the environment and the host.

    Args:
        default_page_bytes: 2 MiB if Unknown.

    Raises:
        UsageError: On a value that no launch can have.
    """
    shown: Shown = {}
    ranks = _ranks(flags, shown)
    release, shown["mooncake_version"], noted = choose_mooncake(flags.mooncake_version)
    notes = list(noted)
    protocol = _protocol(flags, environment, shown, notes)
    settings = _settings(flags, environment, release, shown, notes)
    nics = place_nics(protocol, flags.nic_nodes, environment.get("MOONCAKE_DEVICE", ""), root)
    nic_nodes = () if isinstance(nics.nodes, Unknown) else nics.nodes
    placed = _placed_ranks(flags, environment, ranks, nic_nodes, root)
    bound = [numa_node for numa_node in placed.nodes if numa_node is not None]
    shown["nic_numa_nodes"] = Input(nics.listed, nics.origin)
    shown["rank_numa_nodes"] = Input(bound, placed.origin)
    notes += (*nics.notes, *placed.notes)
    buffer, origin = flags.local_buffer_bytes, "--local-buffer-size"
    if buffer is None:
        buffer, origin = SGLANG_LOCAL_BUFFER_BYTES, Default("default of SGLang")
    shown["local_buffer_bytes"] = Input(buffer, origin)
    shown["global_segment_bytes"] = Input(flags.segment_bytes, "--global-segment-size")
    shown["segment_scope"] = Input(flags.segment_scope, "--segment-scope, or its default")
    # SGLang 0.5.19 and later (mooncake_store.py): // (tp * pp); each replica anew.
    sharers = 1 if flags.segment_scope == "process" else flags.tp_size * flags.pp_size
    client = StoreClient(flags.segment_bytes // sharers, buffer, protocol)
    pools = (flags.hicache_bytes,) if flags.hicache_bytes else ()
    processes = tuple(
        MappedProcess(f"rank {rank}", settings, pools, (client,), numa_node, id=ProcessId(0, rank))
        for rank, numa_node in enumerate(placed.nodes)
    )
    page = 2 * MIB if isinstance(default_page_bytes, Unknown) else default_page_bytes
    doubt = _halves_may_overlap(flags, release, settings, shown, notes)
    terms = RuleTerms(*(getattr(flags, name) for name in RuleTerms._fields))
    stated = flags.available_bytes, flags.hugepage_bytes, flags.nic_nodes
    unread = nics.nodes if isinstance(nics.nodes, Unknown) else None
    launch = Launch(processes, release, nic_nodes, page)
    return SizingInputs(terms, launch, unread, shown, tuple(notes), None, doubt, *stated)


def _halves_may_overlap(
    flags: Flags, release: MooncakeRelease, settings: StoreSettings, shown: Shown, notes: list[Note]
) -> Unknown | None:
    """Return Unknown if SGLang registers K and V of L2 separately and Mooncake refuses V, which
    ends the server; else None.

    If a release is not known, add a note and return None.

    SGLang's version is added to ``shown``. Models with MLA are not affected, but flags name no
    model: ``preflight.launch_problems.rules.memory`` judges a launch whose model is known.
    """
    if flags.segment_scope == "process" or not flags.hicache_bytes or not settings.hugepages:
        return None
    known, mooncake = known_sglang(flags.sglang_version), shown["mooncake_version"]
    if known is not None:
        shown["sglang_version"] = known[1]
    registers_halves = known is None or known[0].registers_halves
    if not registers_halves or not (release.registers_whole_pool or mooncake.assumed):
        return None
    refuses = NEWEST_KNOWN if mooncake.assumed else mooncake.value
    why = (
        f"SGLang 0.5.21 and newer register K and V of L2 apart (all but MLA models), and Mooncake "
        f"{refuses} refuses V where L2 is on huge pages: such a server ends when its model "
        "is loaded. Take Mooncake 0.3.13.post1, or size the launch itself"
    )
    if known is None or mooncake.assumed:
        notes.append(Note("l2-halves-may-overlap", why))
        return None
    return Unknown(why)


def _ranks(flags: Flags, shown: Shown) -> int:
    """Return the number of ranks of one host, and add the sizes to ``shown``.

    Raises:
        UsageError: If a size is out of range, or if the L2 pool is left out.
    """
    for name in ("tp_size", "pp_size", "dp_size"):
        size, flag = getattr(flags, name), f"--{name.replace('_', '-')}"
        if size < 1:
            raise UsageError(f"{flag} {size}: must be 1 or more")
        written = name == "tp_size" or size != 1
        shown[name] = Input(size, flag if written else Default("default"))
    ranks = flags.tp_size * flags.pp_size * flags.dp_size
    if ranks > MOST_RANKS:
        text = f"tp x pp x dp is {ranks} ranks: give the ranks of one host, {MOST_RANKS} at most"
        raise UsageError(text)
    unset = flags.hicache_bytes == 0 and flags.segment_scope == "instance"
    if unset and not flags.documented:
        raise UsageError(
            "--hicache-size 0: to SGLang 0 means 'not set' (--hicache-ratio decides then); give "
            "the size of a rank's L2 pool, or --segment-scope process for a store without one"
        )
    shown["hicache_bytes"] = Input(flags.hicache_bytes, "--hicache-size, per rank")
    return ranks


def _protocol(
    flags: Flags, environment: Mapping[str, str], shown: Shown, notes: list[Note]
) -> Protocol:
    """Return the transport of the flag, of MOONCAKE_PROTOCOL, or SGLang's default, and add it to
    ``shown``.

    A variable that names no transport adds a note.
    """
    named = environment.get("MOONCAKE_PROTOCOL")
    if flags.protocol:
        protocol, origin = Protocol(flags.protocol), "--protocol"
    elif named in ("rdma", "tcp"):
        protocol, origin = Protocol(named), "environment, MOONCAKE_PROTOCOL"
    else:
        protocol, origin = Protocol.RDMA, Default("default of SGLang 0.5.13 and later")
        if named:
            text = f"MOONCAKE_PROTOCOL={named}: neither rdma nor tcp; rdma is taken here"
            notes.append(Note("protocol-unknown", text))
    shown["protocol"] = Input(protocol.value, origin)
    return protocol


def _settings(
    flags: Flags, variables: Mapping[str, str], release: MooncakeRelease, shown: Shown, notes: Notes
) -> StoreSettings:
    """Return Mooncake's settings by the flags, else the environment, else the defaults; add them to
    ``shown``.

    Huge pages are on unless a flag says no.

    Raises:
        UsageError: For a page size.
    """
    of_environment, noted = read_store_settings(variables, release)
    notes += noted
    origin = "assumed: MC_STORE_USE_HUGEPAGE is not set here; export it"
    if flags.use_hugepage is not None:
        origin = "--use-hugepage or --no-use-hugepage"
    elif of_environment.hugepages:
        origin = "environment, MC_STORE_USE_HUGEPAGE"
    shown["use_hugepage"] = Input(flags.use_hugepage is not False, origin)
    size = flags.hugepage_bytes
    if size is not None:
        shown["hugepage_bytes"] = Input(size, "--hugepage-size")
        if not (flags.documented and size in HELPER_PAGE_SIZES):
            _refuse_page_size(size, release)
        elif size not in release.page_sizes_bytes:
            size = DEFAULT_HUGEPAGE_BYTES
    else:
        size, origin = of_environment.hugepage_bytes, "environment, MC_STORE_HUGEPAGE_SIZE"
        if "MC_STORE_HUGEPAGE_SIZE" not in variables:
            origin = Default("default of Mooncake")
        shown["hugepage_bytes"] = Input(size, origin)
    arena, origin = of_environment.arena_bytes, "environment, MC_MMAP_ARENA_POOL_SIZE, per rank"
    if flags.arena_bytes is not None:
        arena, origin = flags.arena_bytes or None, "--arena-pool-size, per rank"
    elif arena is None:
        origin = Default("default: no arena")
    shown["arena_pool_bytes"] = Input(arena or 0, origin)
    more = of_environment.arena_disabled, of_environment.hot_cache
    return StoreSettings(flags.use_hugepage is not False, size, arena, *more)


# The page sizes that the documented helper takes, whatever the Mooncake.
HELPER_PAGE_SIZES = (2 * MIB, 512 * MIB, GIB)


def _refuse_page_size(size: int, release: MooncakeRelease) -> None:
    """Raise UsageError for a page size that this Mooncake does not map."""
    sizes = release.page_sizes_bytes
    if sizes and size not in sizes:
        known = " or ".join(format_page_size(known) for known in sizes)
        raise UsageError(
            f"--hugepage-size {format_bytes(size)}: this Mooncake maps pages of {known}, and 2 MiB "
            "in place of any other: write 2mb, 512mb or 1gb"
        )


def _placed_ranks(
    flags: Flags, environment: Mapping[str, str], ranks: int, nic_nodes: tuple[int, ...], root: Root
) -> RankPlacement:
    """Return the NUMA node of each of ``ranks``: as the flag names it, else as SGLang binds it."""
    if flags.rank_nodes is not None:
        return given_ranks(ranks, flags.rank_nodes)
    if flags.segment_scope == "process":
        return unbound(ranks, "not ranks of SGLang")
    if not binds_ranks(environment):
        return unbound(ranks, "environment, SGLANG_AUTO_NUMA_BIND")
    return place_ranks(ranks, nic_nodes, root)
