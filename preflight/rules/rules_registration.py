"""Rules about how SGLang hands its host pools over to Mooncake: whole, or K and V apart."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.c_numbers import leading_integer
from checks.base.unknown import Unknown
from preflight.processes.processes import SglangServer
from preflight.rules.rules import RuleSet, Seen, Severity, Versions
from preflight.sglang.launch import own_allocator, plain_environment
from preflight.sglang.model_geometry import AttentionKind

RULES = RuleSet()
_REGISTERS = "SGLang 0.5.21 to 0.5.23 mooncake_store.py register_mem_pool_host, pool_host/mha.py"
_OVERLAP = (
    f"{_REGISTERS}; Mooncake transfer_engine_impl.cpp, which refuses it before any transport; seen "
    "with TCP by running 0.3.14, and 0.3.8 to 0.3.13.post1, which take it"
)
_STANDALONE = f"{_REGISTERS}; Mooncake dummy_client.cpp; seen by running 0.3.8 to 0.3.14"
_REFUSES = "RuntimeError: Failed to register buffer to Mooncake Store, error code: "
_TAKE_ANOTHER = (
    "take Mooncake 0.3.13.post1, or SGLang 0.5.20, or keep L2 on regular pages: leave "
    "MC_STORE_USE_HUGEPAGE out, 0 switches it on too"
)
_EMBED = (
    "switch standalone_storage off, so that each rank has a client of its own, or SGLang 0.5.20"
)
_RELAXED = "MC_IB_PCI_RELAXED_ORDERING"
_NAME = "name what runs with --sglang-version and --mooncake-version, the model with --model-config"


@RULES.memory(
    "l2-halves-overlap",
    Severity.FAIL,
    "L2 on huge pages that SGLang registers as K and V, with a Mooncake that registers all of it",
    "Mooncake 0.3.14 registers the whole pool for K and refuses V: the server ends when the model "
    "is loaded and the memory is allocated, whatever the protocol",
    _TAKE_ANOTHER,
    _OVERLAP,
)
def l2_halves_overlap(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    if _overlap(server, versions) and not _overlap_doubt(versions):
        yield Seen(_overlapping(versions))


@RULES.memory(
    "l2-halves-may-overlap",
    Severity.WARN,
    "L2 on huge pages, where the model or a version that is not known decides whether it registers",
    "SGLang 0.5.21 and newer hand a model's K and V over apart (all but MLA models), and Mooncake "
    "0.3.14 then refuses V: the server ends when the model is loaded",
    f"{_NAME}; where it is so, {_TAKE_ANOTHER}",
    _OVERLAP,
)
def l2_halves_may_overlap(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    doubt = _overlap_doubt(versions)
    if doubt and _overlap(server, versions):
        yield Seen(f"{doubt}: {_overlapping(versions)}")


@RULES.memory(
    "standalone-breaks-mha",
    Severity.FAIL,
    "standalone storage, which registers whole pools only, with K and V registered apart",
    "the client of a rank refuses K with -1, on huge pages and on regular ones: the server ends "
    "when the model is loaded",
    f"{_EMBED}, or an MLA model",
    _STANDALONE,
)
def standalone_breaks_mha(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    if _alone(server, versions) and not _doubt(versions, versions.mooncake_newer):
        yield Seen(_refused(server, versions))


@RULES.memory(
    "standalone-may-break-mha",
    Severity.WARN,
    "standalone storage, where the model or a version that is not known decides whether it works",
    "SGLang 0.5.21 and newer hand a model's K and V over apart (all but MLA models), and a rank's "
    "client then refuses K with -1: the server ends when the model is loaded",
    f"{_NAME}; where it is so, {_EMBED}",
    _STANDALONE,
)
def standalone_may_break_mha(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    doubt = _doubt(versions, versions.mooncake_newer)
    if doubt and _alone(server, versions):
        yield Seen(f"{doubt}: {_refused(server, versions)}")


@RULES.memory(
    "relaxed-ordering-off",
    Severity.NOTE,
    "memory that is registered for RDMA without PCIe relaxed ordering",
    "a NIC's writes then wait for each other on PCIe; Mooncake's authors saw slower transfers and "
    "pause frames (PFC) under load, and switched it on by default in 0.3.13",
    "measure with MC_IB_PCI_RELAXED_ORDERING=1, on all hosts, or take Mooncake 0.3.13",
    "Mooncake config.cpp, rdma_transport.cpp, #3205; the defaults seen by running 0.3.11.post1 to "
    "0.3.13.post1; what is open about it: #4004",
)
def relaxed_ordering_off(server: SglangServer, versions: Versions) -> Iterator[Seen]:
    environment = plain_environment(server.environment)
    if not _uses_rdma(server) or "MC_FORCE_TCP" in server.environment:
        return
    if versions.mooncake_assumed or not versions.mooncake.reads_relaxed_ordering:
        return
    text = environment.get(_RELAXED)
    if text is None:
        if _RELAXED not in server.environment and not versions.mooncake.relaxed_ordering:
            yield Seen(f"{_RELAXED} is not set, and off before Mooncake 0.3.13")
        return
    number = leading_integer(text) or 0  # atoi; what is out of range leaves the default
    if number == 0 or (number not in (1, 2) and not versions.mooncake.relaxed_ordering):
        yield Seen(f"{_RELAXED}={text!r} leaves it off", server.environment[_RELAXED].origin)


def _uses_rdma(server: SglangServer) -> bool:
    """Whether the server's store, or its transfer of prefilled requests, goes over RDMA."""
    transfers = server.mode in ("prefill", "decode")
    if transfers and server.value("disaggregation_transfer_backend") == "mooncake":
        return True
    return server.store is not None and server.store.value("protocol") == "rdma"


def _overlap(server: SglangServer, versions: Versions) -> bool:
    """Whether L2 lies in Mooncake's huge pages and K and V of it are, or may be, handed over."""
    return (
        _in_halves(server, versions)
        and not _is_standalone(server)
        and versions.mooncake.registers_whole_pool
        and own_allocator(server, versions.sglang, versions.mooncake) is None
        and "MC_STORE_USE_HUGEPAGE" in server.environment
    )


def _alone(server: SglangServer, versions: Versions) -> bool:
    return _is_standalone(server) and _in_halves(server, versions)


def _is_standalone(server: SglangServer) -> bool:
    return server.store is not None and server.store.value("standalone_storage") is True


def _in_halves(server: SglangServer, versions: Versions) -> bool:
    """Whether K and V of the prefix cache are registered apart; also where nobody knows."""
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    if server.store is None or not (server.hicache or offloads):
        return False
    return versions.sglang.registers_halves and _has_both(versions) is not False


def _has_both(versions: Versions) -> bool | Unknown:
    """Whether one tensor holds K and V; those of different widths have a tensor each."""
    geometry = versions.geometry
    if isinstance(geometry, Unknown):
        return geometry
    heads = geometry.heads
    return geometry.kind is AttentionKind.MHA and heads.head_dim == heads.v_head_dim


def _doubt(versions: Versions, mooncake: str) -> str:
    """What is not certain, "" where all is; the first of it, which a capture keeps too."""
    both = _has_both(versions)
    model = f"the model is not known ({both.reason})" if isinstance(both, Unknown) else ""
    return versions.sglang_unsure or mooncake or model


def _overlap_doubt(versions: Versions) -> str:
    return _doubt(versions, versions.mooncake_assumed or versions.mooncake_newer)


def _overlapping(versions: Versions) -> str:
    return (
        f"{_model(versions)}: K is registered with the whole pool, V is refused: {_REFUSES}-600 "
        "(Mooncake: Transfer Engine does not support overlapped memory region)"
    )


def _refused(server: SglangServer, versions: Versions) -> str:
    where = "" if server.store is None else server.store.settings["standalone_storage"].origin
    return (
        f"{_model(versions)}, standalone_storage is on ({where}): K is refused: {_REFUSES}-1 "
        "(Mooncake: Invalid buffer address or size for registration)"
    )


def _model(versions: Versions) -> str:
    geometry = versions.geometry
    return "a model that is not MLA" if isinstance(geometry, Unknown) else geometry.name
