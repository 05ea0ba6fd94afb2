"""Rules about mooncake_master, mooncake_client and the store service: flags, ports, segments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

from checks.framework.problem import Match, Problems
from checks.framework.units import GIB, MIB, format_bytes, round_up
from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release, parse_version
from preflight.engines.programs.mooncake_flags import (
    TRUE,
    Flag,
    FlagRead,
    as_double,
    flag_table,
    flags_of,
    read_flags,
)
from preflight.engines.programs.store_environment import byte_size
from preflight.engines.programs.store_service_config import KEYS
from preflight.engines.sglang.launch import configured_segment
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Spelling, is_misspelt, replaced
from preflight.launches.source import Origin
from preflight.processes.processes import GFLAGS_PROGRAMS, LaunchProcess, ProcessKind

RULES = Problems("programs.md")
REFUSED = Problems("programs.md")  # by a release that is known: told before all others
# store-service-refused reports the switches of mooncake_client.
_SEEN_ELSEWHERE = frozenset(("enable_offload", "protocol", "start_offload_rpc_server"))
# In most of the releases in use: that one of these is newer than the oldest is no news.
_COMMON_SINCE = frozenset(("0.3.8", "0.3.8.post1", "0.3.9", "0.3.10", "0.3.10.post2", "0.3.11"))
_FRACTIONS = (
    "eviction_ratio",
    "eviction_high_watermark_ratio",
    "nof_eviction_ratio",
    "nof_eviction_high_watermark_ratio",
    "offload_cap_ratio",
)
# A lifetime as master.cpp ValidateDurationFlag reads it.
_LIFETIMES = ("default_kv_lease_ttl", "default_kv_soft_pin_ttl", "max_kv_soft_pin_ttl")
_MOST_QUEUED = 100_000_000  # master.cpp, offloading_queue_limit
# master.cpp: seconds after which a put that was only started is discarded, and released.
_DISCARD_S, _RELEASE_S = 30, 600
SLAB_BYTES = 16 * MIB  # cachelib_memory_allocator Slab.h, Slab::kSize
# Mooncake #3791, its maintainers: an NPU takes 20 to 32 GB, and 32 GiB was seen to work.
CERTAIN_BYTES = 20 * GIB


@RULES("store-service-refused")
def store_service_refused(process: LaunchProcess) -> Iterator[Match]:
    for message in process.store.refused if process.store else ():
        yield Match(f"{process.kind.value}: {message}")


def _misread(process_kind: ProcessKind, process: LaunchProcess) -> Iterator[Match]:
    if process.kind is process_kind and process.store:
        yield from map(Match, process.store.misread)


RULES("service-setting-misread")(partial(_misread, ProcessKind.STORE_SERVICE))
RULES("client-size-misread")(partial(_misread, ProcessKind.CLIENT))


@RULES("service-key-unknown")
def service_key_unknown(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each setting of a store service that Mooncake does not know."""
    spelling = Spelling()
    for key, where in process.store.unknown_keys if process.store else ():
        near = spelling.nearest(key, KEYS)
        hint = f": did you mean {near}?" if near else ""
        yield Match(f"{key!r}{where} is not a setting of the store service{hint}")


@RULES("mooncake-flags-refused")
def mooncake_flags_refused(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each flag or value that a master or mooncake_client surely refuses."""
    flags = _flags(process)[1]
    for each in flags:
        elsewhere = process.kind is ProcessKind.CLIENT and each.name in _SEEN_ELSEWHERE
        if each.problem and each.flag is not None and not elsewhere:
            yield _flag_match(process, each.problem, each)
    for each, near in _unknown_flags(process):
        if near and is_misspelt(each.name, near):
            yield _unknown_flag_match(process, each, near)
    if process.kind is ProcessKind.MASTER:
        values = {each.name: each for each in flags if not each.problem}
        refused = [*_master_refuses(values)]
        # What is not known may give the flag that is missing beside another.
        if process.unread is None and next(process.open_words, None) is None:
            refused += _refused_together(values)
        for name, text in refused:
            yield _flag_match(process, text, values[name])


@RULES("mooncake-flag-unknown")
def mooncake_flag_unknown(process: LaunchProcess) -> Iterator[Match]:
    for each, near in _unknown_flags(process):
        if not (near and is_misspelt(each.name, near)):
            yield _unknown_flag_match(process, each, near)


def _unknown_flags(process: LaunchProcess) -> Iterator[tuple[FlagRead, str | None]]:
    """Yield each flag that no known release has, with the nearest name; None if no name is near.

    Nothing with --undefok.
    """
    known, flags = _flags(process)
    forgiven = any(each.name == "undefok" for each in flags)
    spelling = Spelling()
    for each in flags if not forgiven else ():
        if each.flag is None and each.problem:
            yield each, spelling.nearest(each.name, known)


def _unknown_flag_match(process: LaunchProcess, each: FlagRead, near: str | None) -> Match:
    """Return the finding about a flag of no known release.

    Args:
        near: The nearest name, or None.
    """
    oldest, *_, newest = flag_table().releases
    meant = f": did you mean --{near}?" if near else ""
    text = f"--{each.name}: no release from {oldest} to {newest} has it{meant}"
    match = _flag_match(process, text, each)
    written = each.word.text.partition("=")[0]
    sure = near is not None and is_misspelt(each.name, near)
    remedy = replaced(each.word.origin, written, f"--{near}") if sure else ""
    return match._replace(remedy=remedy)


@REFUSED("mooncake-flags-refused")
def flags_of_other_releases(process: LaunchProcess, mooncake_version: str) -> Iterator[Match]:
    """Yield a finding for each flag that this Mooncake does not have; nothing with --undefok.

    The process ends (0.3.8.post1 to 0.3.11.post1).
    """
    release, flags = parse_version(mooncake_version), _flags(process)[1]
    if any(each.name == "undefok" for each in flags):
        return
    for each in flags:
        since, until = (each.flag.since, each.flag.until) if each.flag else ("", "")
        early = since and release < parse_version(since)
        if early or (until and release > parse_version(until)):
            there = f"is there from {since} on" if early else f"was there up to {until}"
            text = f"--{each.name} {there}, and Mooncake is {mooncake_version}"
            yield _flag_match(process, text, each)


@REFUSED("store-service-refused")
def sizes_of_other_releases(process: LaunchProcess, mooncake_version: str) -> Iterator[Match]:
    """Yield a finding for each size that the store service of this Mooncake cannot read."""
    store = process.store
    if store is not None and not mooncake_release(mooncake_version).service_reads_units:
        for message in store.refused_by_older:
            yield Match(f"{process.kind.value}: {message}, and Mooncake is {mooncake_version}")


@RULES("mooncake-switch-is-on")
def mooncake_switch_is_on(process: LaunchProcess) -> Iterator[Match]:
    for each in _flags(process)[1]:
        if each.passed_over and each.passed_over.lower() not in TRUE:
            text = f"--{each.name} {each.passed_over} is read as --{each.name}=true"
            yield _flag_match(process, text, each)


@RULES("flag-without-dashes")
def flag_without_dashes(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each ``flag=value`` argument without dashes in front."""
    known = _flags(process)[0]
    for word in process.arguments if known else ():
        name, equals, _ = word.text.partition("=")
        if equals and name.replace("-", "_") in known:
            edit = replaced(word.origin, word.text, f"--{word.text}")
            yield Match(f"{process.kind.value}: {word.text} has no dashes", word.origin, edit)


@RULES("mooncake-flag-of-some-releases")
def mooncake_flag_of_some_releases(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each flag that only some of the releases of Mooncake in use have."""
    for each in _flags(process)[1]:
        flag = each.flag
        if flag is None or not (flag.until or flag.since):
            continue
        if flag.until or flag.since not in _COMMON_SINCE:
            until = f"to {flag.until}" if flag.until else "on"
            yield _flag_match(process, f"--{each.name} is there from {flag.since} {until}", each)


@RULES("segment-not-slabs")
def segment_not_slabs(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each client segment that is no multiple of cachelib's slab (16 MiB).

    Nothing if no master of the launch takes cachelib.
    """
    if not _takes_slabs(processes):
        return
    for process in processes:
        size, origin = segment_of(process)
        page = _page_bytes(process)
        mounted = round_up(size, page) if page and size else size
        if page is not None and mounted and mounted % SLAB_BYTES:
            text = f"a client mounts {mounted} bytes ({format_bytes(mounted)})"
            yield Match(f"{process.kind.value}: {text}, not a multiple of {SLAB_BYTES}", origin)


@RULES("segment-base-unaligned")
def segment_base_unaligned(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each segment on 2 MiB pages, if a master of the launch takes cachelib,
    which needs an alignment of 16 MiB.
    """
    if not _takes_slabs(processes):
        return
    for process in processes:
        size, origin = segment_of(process)
        if size and _page_bytes(process) == 2 * MIB:
            text = f"{process.kind.value}: {format_bytes(size)} a client on pages of 2 MiB"
            yield Match(text, origin)


@RULES("ascend-host-memory")
def ascend_host_memory(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding if a segment on an NPU is larger than 20 GiB, the most that surely works."""
    store = process.server.store if process.server is not None else None
    speaks = process.kind is ProcessKind.CLIENT and _flag_value(process, "protocol") == "ascend"
    size, origin = segment_of(process)
    ascend = store.value("protocol") == "ascend" if store is not None else speaks
    if ascend and size is not None and size > CERTAIN_BYTES:
        text = f"{process.kind.value}: {format_bytes(size)} a client, above 20 GiB an NPU"
        yield Match(text, origin)


def _flags(process: LaunchProcess) -> tuple[Mapping[str, Flag], list[FlagRead]]:
    """Return the gflags of a process's program ({} if none), and those of its command line."""
    program = GFLAGS_PROGRAMS.get(process.kind)
    if program is None:
        return {}, []
    known = flags_of(program)
    return known, list(read_flags(process.arguments, known))


def _flag_match(process: LaunchProcess, text: str, flag: FlagRead) -> Match:
    """Return a finding about a flag, at the place of that flag."""
    return Match(f"{process.kind.value}: {text}", flag.word.origin)


def _master_refuses(values: Mapping[str, FlagRead]) -> Iterator[tuple[str, str]]:
    """Yield (flag, reason) for each flag whose value the master refuses."""

    def text(name: str) -> str | None:
        return values[name].value if name in values else None

    for name in _FRACTIONS:
        number = as_double(text(name) or "")
        if number is not None and not 0 <= number <= 1 and number == number:
            yield name, f"--{name}={text(name)}: it must be between 0.0 and 1.0"
    for name in _LIFETIMES:
        lifetime = text(name)
        if lifetime is not None and not re.fullmatch(r"\d+(?:ms|s|m|h)?", lifetime):
            yield name, f"--{name}={lifetime}: a whole number, and ms, s, m or h behind it"
    queued = _whole_number(text("offloading_queue_limit"))
    if queued is not None and not 0 < queued <= _MOST_QUEUED:
        yield "offloading_queue_limit", f"--offloading_queue_limit={queued}: 1 to {_MOST_QUEUED}"
    allocator = text("memory_allocator")
    if allocator is not None and allocator not in ("cachelib", "offset"):
        yield "memory_allocator", f"--memory_allocator={allocator}: must be cachelib or offset"
    path = text("config_path")
    if path and not path.endswith((".json", ".yaml", ".yml")):
        yield "config_path", f"--config_path={path}: Unsupported config file format: json or yaml"


def _refused_together(values: Mapping[str, FlagRead]) -> Iterator[tuple[str, str]]:
    """Yield (flag, reason) for each flag that the master refuses because another flag is given, or
    is missing.

    Nothing if a file may add flags.
    """
    if "config_path" in values or "flagfile" in values:
        return

    def is_on(name: str) -> bool:
        return name in values and (values[name].value or "").lower() in TRUE

    endpoints = [values[name].value for name in ("ha_backend_connstring",) if name in values]
    backend = values["ha_backend_type"].value if "ha_backend_type" in values else "etcd"
    if backend == "etcd" and "etcd_endpoints" in values:
        endpoints.append(values["etcd_endpoints"].value)
    # None is a variable that may name one.
    if is_on("enable_ha") and all(value == "" for value in endpoints):
        text = "--enable_ha without --etcd_endpoints or --ha_backend_connstring: it must be set"
        yield "enable_ha", text
    if is_on("enable_oplog") and not ("enable_ha" in values and values["enable_ha"].value is None):
        if not is_on("enable_ha"):
            yield "enable_oplog", "enable_oplog requires enable_ha=true"
        elif backend not in ("etcd", None):
            yield "enable_oplog", f"enable_oplog requires ha_backend_type=etcd, not {backend}"
    names = "put_start_release_timeout_sec", "put_start_discard_timeout_sec"
    release, discard = (
        _whole_number(values[name].value) if name in values else default
        for name, default in zip(names, (_RELEASE_S, _DISCARD_S), strict=True)
    )
    if release is not None and discard is not None and release <= discard:
        name = names[0] if names[0] in values else names[1]
        yield name, f"{names[0]} ({release} s) must be larger than {names[1]} ({discard} s)"


def _whole_number(text: str | None) -> int | None:
    """Return a whole number that gflags took; None if ``text`` is None."""
    if text is None:
        return None
    return int(text, 16) if "x" in text.lower() else int(text.strip() or "0")


def _takes_slabs(processes: tuple[LaunchProcess, ...]) -> bool:
    """Return whether the launch's own master is told to take cachelib."""
    masters = [process for process in processes if process.kind is ProcessKind.MASTER]
    return any(_flag_value(master, "memory_allocator") == "cachelib" for master in masters)


def _flag_value(process: LaunchProcess, name: str) -> str | None:
    """Return the last value of a flag; None without the flag, or if that value is not known."""
    values = [each.value for each in _flags(process)[1] if each.name == name]
    return values[-1] if values else None


def _page_bytes(process: LaunchProcess) -> int | None:
    """Return the page size in bytes of a client's segment, 0 for regular pages, None if unknown."""
    environment = process.command.environment
    if "MC_STORE_USE_HUGEPAGE" not in environment:
        return 0
    word = environment.get("MC_STORE_HUGEPAGE_SIZE")
    if word is None:
        return 2 * MIB
    # Every other size is another release's business: 2 MiB where it is not known.
    if word.unresolved:
        return None
    return GIB if byte_size(word.text) == GIB else 2 * MIB


def segment_of(process: LaunchProcess) -> tuple[int | None, Origin]:
    """Return (bytes that a client of ``process`` mounts, their place); None bytes if not
    certain.
    """
    origin = process.command.origin
    if process.server is not None:
        word = process.server.environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE")
        return _rank_segment_bytes(process.server), origin if word is None else word.origin
    client = process.store.client if process.store else None
    if client is None or isinstance(client, Unknown):
        return None, origin
    return client.segment_bytes, origin


def _rank_segment_bytes(server: SglangServer) -> int | None:
    """Return the bytes that one rank's client mounts.

    Returns:
        None with standalone storage, and if the bytes are unknown or differ by release.
    """
    size = configured_segment(server)
    if size is None or server.store is None or server.store.value("standalone_storage") is True:
        return None
    tp, pp, groups = server.number("tp_size"), server.number("pp_size"), server.attention_dp
    if isinstance(tp, Unknown) or isinstance(pp, Unknown) or isinstance(groups, Unknown):
        return None
    # Releases differ in what divides it: certain only where they agree.
    parts = {max(1, tp // max(1, groups) * (pp if by_pp else 1)) for by_pp in (True, False)}
    sizes = {size // part for part in parts}
    return sizes.pop() if len(sizes) == 1 else None
