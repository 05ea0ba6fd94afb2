"""Rules about SSD offload, and about launches that start and do not use a tier they ask for."""

from __future__ import annotations

import os.path
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.problem import Match, Problems
from checks.framework.units import MIB, format_bytes
from checks.framework.unknown import Unknown, require
from checks.releases.mooncake import MooncakeRelease
from checks.releases.sglang import sglang_release
from preflight.engines.programs.mooncake_flags import flags_of, is_on, read_flags, value_of
from preflight.engines.programs.mooncake_variables import RATIOS, Reader, read_number, read_ratio
from preflight.engines.programs.store_config import Source, StoreConfig
from preflight.engines.programs.store_processes import offload_folder
from preflight.engines.sglang.host_pool_records import HostPools
from preflight.engines.sglang.host_pools import host_pools
from preflight.engines.sglang.launch import (
    Ranks,
    configured_segment,
    hashes_pairs,
    l2_gigabytes,
    server_ranks,
)
from preflight.engines.sglang.pool_request import Hardware, SizedServer, pool_request
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Versions, at
from preflight.launches.source import Word
from preflight.processes.mooncake_users import place, settings_of, store_clients
from preflight.processes.processes import LaunchProcess, ProcessKind

RULES = Problems("tier_use.md")
RELEASED = Problems("tier_use.md")  # by what the release does
OFFLOAD = Problems("offload.md")
_SWITCHES = {
    ProcessKind.SGLANG: "MOONCAKE_ENABLE_SSD_OFFLOAD",
    ProcessKind.STORE_SERVICE: "MOONCAKE_OFFLOAD_ENABLED",
}
_PATH = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
# storage_backend.h: how much a bucket takes; file_storage.h: how often one is written.
_BUCKET = {
    "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT": 500,
    "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": 256 * MIB,
    "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": 10,
}
_BACKEND = "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR"
_LIMIT = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
_FLUSH = "MOONCAKE_OFFLOAD_FLUSH_PARTIAL_BUCKETS"
QUOTA = "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"
NO_QUOTA = 0, ""
# A lease of less than a second was meant in seconds: the shortest default is 5,000 ms.
_SHORT_LEASE_MS = 1000
_TIMEOUTS = ("prefetch_timeout_base", "prefetch_timeout_per_ki_token", "prefetch_timeout_max")
# What `setup_dummy` is not given (mooncake_store.py); its mooncake_client has its own.
_OF_STANDALONE_CLIENT = ("tenant_id", "enable_ssd_offload", "device_name", "global_segment_size")


class Bucket(NamedTuple):
    """The most objects and bytes of a bucket, and the seconds between two heartbeats."""

    keys: int
    bytes: int
    seconds: int

    @property
    def limits(self) -> str:
        return f"a bucket takes {self.keys} objects or {format_bytes(self.bytes)}"


@RELEASED("ssd-bucket-lost")
def ssd_bucket_lost(
    processes: tuple[LaunchProcess, ...], mooncake: MooncakeRelease
) -> Iterator[Match]:
    """Yield a finding for each process that loses half of its objects, or more, on their way to SSD
    if they come slowly.
    """
    for process in processes:
        if bucket := lossy_bucket(process, mooncake):
            each, text = bucket.seconds, f"{process.name}: of what comes at less than"
            rate = f"{bucket.keys / each:g} objects and {bucket.bytes / each / MIB:.3g} MiB"
            limits = f"{bucket.limits}, a heartbeat {each} s; capacity says it in new tokens"
            yield Match(f"{text} {rate} a second at most half reaches SSD: {limits}")


@RELEASED("ssd-bucket-waits")
def ssd_bucket_waits(
    processes: tuple[LaunchProcess, ...], mooncake: MooncakeRelease
) -> Iterator[Match]:
    """Yield a finding for each process whose objects wait in memory until they fill a bucket."""
    for process in processes if mooncake.flushes_buckets else ():
        bucket = _bucket(process)
        if bucket is not None and _FLUSH not in process.command.environment:
            yield Match(f"{process.name}: {bucket.limits}", process.command.origin)


@RELEASED("ssd-limit-passed")
def ssd_limit_passed(
    processes: tuple[LaunchProcess, ...], mooncake: MooncakeRelease
) -> Iterator[Match]:
    """Yield a finding for each SSD size limit that this Mooncake exceeds, as no quota is set."""
    for process in processes:
        word = process.command.environment.get(_LIMIT)
        unbound = bucket_quota(process, mooncake) == NO_QUOTA
        if word is not None and uses_offload(process) is True and unbound:
            yield Match(f"{_LIMIT}={word.text} without {QUOTA}", word.origin)


def bucket_quota(process: LaunchProcess, mooncake: MooncakeRelease) -> tuple[int, str] | None:
    """Return a process's SSD quota (bytes) and its place, or NO_QUOTA.

    Returns:
        None if no quota is needed: Mooncake keeps the size limit, or the process does not write
        buckets.
    """
    if not mooncake.passes_offload_limit or not _writes_buckets(process):
        return None
    return _quota(process)


def _quota(process: LaunchProcess) -> tuple[int, str]:
    """Return (bytes, variable and where it is set) of a process's SSD quota.

    The bytes are 0 if the variable's value is not known. NO_QUOTA, the pair (0, ""), if no usable
    quota is set.
    """
    for name in (QUOTA, "MOONCAKE_BUCKET_MAX_TOTAL_SIZE"):
        word = process.command.environment.get(name)
        if word is not None:
            size = 0 if word.unresolved else read_number(Reader.WHOLE, word.text).value or 0
            return size, f"{name} at {word.origin}" if size or word.unresolved else ""
    return NO_QUOTA


def _writes_buckets(process: LaunchProcess) -> bool:
    backend = process.command.environment.get(_BACKEND)
    return backend is None or backend.text == "bucket_storage_backend"


def lossy_bucket(process: LaunchProcess, mooncake: MooncakeRelease) -> Bucket | None:
    """Return the bucket of a process that loses objects on their way to SSD; None if it loses
    none.
    """
    return _bucket(process) if mooncake.forgets_carried_objects else None


def _bucket(process: LaunchProcess) -> Bucket | None:
    """Return the bucket that a process fills before it writes to SSD; None if it writes no buckets,
    or each object by itself.
    """
    environment = process.command.environment
    if not _writes_buckets(process) or uses_offload(process) is not True:
        return None
    read = (
        read_number(Reader.WHOLE, environment[name].text).value if name in environment else default
        for name, default in _BUCKET.items()
    )
    bucket = Bucket(*(value or 0 for value in read))
    return bucket if min(bucket) > 0 and bucket.keys > 1 else None


def part_that_reaches_ssd(bucket: float, heartbeat: float) -> float:
    """Return the part (0 to 1) of a steady stream of objects that reaches SSD.

    Args:
        bucket: How many objects fill a bucket.
        heartbeat: How many arrive between two heartbeats. Objects that do not fill a bucket at a
            heartbeat go into the next bucket, and are lost: on average half a bucket each time. If
            no bucket fills within a heartbeat, all objects are lost until a bucket is full.
    """
    return heartbeat / bucket / 2 if heartbeat < bucket else 1 - bucket / heartbeat / 2


@RULES("l3-repeats-l2")
def l3_repeats_l2(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if L3 holds only copies of L2: a segment smaller than a rank's L2, with
    write_through, a master on this host, and no standalone storage.
    """
    size, segment = l2_gigabytes(server), configured_segment(server)
    master = store.value("master_server_address")
    local = isinstance(master, str) and master.partition(":")[0] in ("127.0.0.1", "localhost")
    through = server.value("hicache_write_policy") == "write_through"
    standalone = store.value("standalone_storage") is not False
    # The rank of latent attention keeps what the others keep: one of them counts.
    if local and through and not standalone and segment and segment < size * 10**9:
        origin = store.settings["global_segment_size"].origin
        segment_text = f"L3 has a segment of {segment / 1e9:.1f} GB ({origin})"
        yield Match(f"{segment_text} behind {size} GB of L2 a rank")


@RULES("write-back-stores-nothing")
def write_back_stores_nothing(server: SglangServer, versions: Versions) -> Iterator[Match]:
    wrote_back = server.value("hicache_write_policy") == "write_back"
    certain = not versions.sglang.write_back_stores and not versions.sglang_unsure
    if _has_storage_backend(server) and wrote_back and certain:
        yield Match("--hicache-write-policy write_back with a storage backend")


@RULES("l3-gets-less")
def l3_gets_less(server: SglangServer, versions: Versions) -> Iterator[Match]:
    policy = server.value("hicache_write_policy")
    late = policy == "write_back" and versions.sglang.write_back_stores
    if _has_storage_backend(server) and (late or policy == "write_through_selective"):
        yield Match(f"--hicache-write-policy {policy} with a storage backend")


@RULES("l2-below-l1")
def l2_below_l1(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if --hicache-ratio makes L2 smaller than L1, with write_through.

    Nothing for a release that refuses to start with it.
    """
    ratio, size = server.value("hicache_ratio"), server.value("hicache_size")
    small = isinstance(ratio, float) and ratio < 1 and server.arguments.given("hicache_ratio")
    through = server.value("hicache_write_policy") == "write_through"
    starts = not versions.sglang.must_exceed_device
    if server.hicache and small and size == 0 and through and starts:
        yield Match(f"--hicache-ratio {ratio:g} with write_through")


@RULES("soft-pin-unused")
def soft_pin_unused(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each soft pin lifetime of a master, if SGLang servers use the store and
    the launch has no other engine.

    SGLang never pins.
    """
    clients = [process for process in processes if store_clients(process)]
    others = any(process.consumer for process in processes)
    if others or not any(process.server for process in clients):
        return
    for process in processes:
        word = value_of(process.arguments, "default_kv_soft_pin_ttl")
        if process.kind is ProcessKind.MASTER and word is not None:
            yield Match(f"--default_kv_soft_pin_ttl={word.text}", word.origin)


@RULES("ssd-evicts-nothing")
def ssd_evicts_nothing(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each segment owner without offload, if a master offloads what it evicts
    (--offload_on_evict) and never evicts otherwise (no --offload_force_evict).
    """
    for master in processes:
        if master.kind is not ProcessKind.MASTER or offers_offload(master) is not True:
            continue
        forced = is_on(master.arguments, "mooncake_master", "offload_force_evict")
        evicts = is_on(master.arguments, "mooncake_master", "offload_on_evict")
        if evicts is not True or forced is not False:
            continue
        for owner in _segment_owners(processes):
            if uses_offload(owner) is False:
                text = f"{owner.name} gives a segment and does not offload; {master.name} has "
                yield Match(f"{text}--offload_on_evict", owner.command.origin)


@RULES("ssd-beside-segment")
def ssd_beside_segment(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each server that offloads without a segment, if the launch has segment
    owners and surely no owner offloads.
    """
    owners = list(_segment_owners(processes))
    if not owners or any(uses_offload(owner) is not False for owner in owners):
        return
    for process in processes:
        server = process.server
        if server is not None and uses_offload(process) and configured_segment(server) == 0:
            text = f"{process.name} offloads and has no segment; {owners[0].name} has one and does "
            yield Match(f"{text}not offload", process.command.origin)


@RULES("decode-offload-hashes-differ")
def decode_offload_hashes_differ(server: SglangServer, versions: Versions) -> Iterator[Match]:
    algorithm = server.value("speculative_algorithm")
    pairs = hashes_pairs(server, versions.sglang, versions.geometry) is True
    if _offloads_decode(server) and pairs and versions.sglang.asks_for_pairs:
        yield Match(f"decode offload with --speculative-algorithm {algorithm}")


@RULES("eagle-l3-unread")
def eagle_l3_unread(server: SglangServer, versions: Versions) -> Iterator[Match]:
    algorithm = server.value("speculative_algorithm")
    pairs = hashes_pairs(server, versions.sglang, versions.geometry) is True
    certain = not versions.sglang.asks_for_pairs and not versions.sglang_unsure
    if _has_storage_backend(server) and pairs and certain:
        yield Match(f"--speculative-algorithm {algorithm} with a storage backend")


@RULES("decode-offload-unread")
def decode_offload_unread(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each prefill server that cannot read all that decode servers offload: it
    has no storage backend, or a write policy other than write_through.
    """
    servers = [process.server for process in processes if process.server is not None]
    decoding = [server for server in servers if _offloads_decode(server)]
    for server in servers if decoding else ():
        if server.mode != "prefill":
            continue
        policy, backend = map(server.value, ("hicache_write_policy", "hicache_storage_backend"))
        if not server.hicache or backend is None:
            yield Match("the prefill server has no storage backend", server.command.origin)
        elif isinstance(policy, str) and policy != "write_through":
            yield Match(f"the prefill server has {policy}", server.command.origin)


@RULES("standalone-settings-ignored")
def standalone_settings_ignored(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    """Yield a finding if store settings are given that standalone storage ignores."""
    if require(store.value("standalone_storage")) is not True:
        return
    pairs = [(key, s) for key, s in store.settings.items() if key in _OF_STANDALONE_CLIENT]
    ignored = [f"{key} ({s.origin})" for key, s in pairs if s.written_as and s.value]
    if ignored:
        yield Match(f"standalone storage, and {', '.join(ignored)}")


@RULES("l2-ratio-ignored")
def l2_ratio_ignored(server: SglangServer) -> Iterator[Match]:
    size, ratio = l2_gigabytes(server), server.value("hicache_ratio")
    written = server.arguments.given("hicache_ratio") and isinstance(ratio, float)
    if server.hicache and written and size:
        yield Match(f"--hicache-ratio {ratio:g} beside --hicache-size {size}")


@RULES("ssd-promotes-slowly")
def ssd_promotes_slowly(process: LaunchProcess) -> Iterator[Match]:
    if process.kind is not ProcessKind.MASTER:
        return
    promotes = is_on(process.arguments, "mooncake_master", "promotion_on_hit")
    if promotes is True and value_of(process.arguments, "promotion_max_per_heartbeat") is None:
        yield Match("--promotion_on_hit without --promotion_max_per_heartbeat")


@RULES("device-map-stages")
def device_map_stages(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    devices, stages = store.value("device_name"), require(server.number("pp_size"))
    if stages > 1 and isinstance(devices, str) and devices.lstrip().startswith("{"):
        tp = require(server.number("tp_size"))
        yield Match(f"{stages} pipeline stages: ranks {tp} and up take the devices of 0 and up")


@RULES("lease-in-milliseconds")
def lease_in_milliseconds(process: LaunchProcess) -> Iterator[Match]:
    if process.kind is ProcessKind.MASTER:
        word = value_of(process.arguments, "default_kv_lease_ttl")
        if word is not None and word.text.isdecimal() and 0 < int(word.text) < _SHORT_LEASE_MS:
            yield Match(f"--default_kv_lease_ttl={word.text} is {word.text} ms", word.origin)


@RULES("prefetch-timeout-unread")
def prefetch_timeout_unread(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    policy = server.value("hicache_storage_prefetch_policy")
    timeouts = [name for name in _TIMEOUTS if name in store.extra]
    if timeouts and isinstance(policy, str) and policy != "timeout":
        yield Match(f"{', '.join(timeouts)} with the prefetch policy {policy}")


@RULES("prefetch-budget-small")
def prefetch_budget_small(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if --hicache-ratio leaves prefetches less than a quarter of L1's tokens."""
    ratio = server.value("hicache_ratio")
    of_ratio = isinstance(ratio, float) and not l2_gigabytes(server)
    certain = versions.sglang.budget_of_difference and not versions.sglang_unsure
    if _has_storage_backend(server) and of_ratio and certain:
        share = versions.sglang.prefetch_budget(device=1000, host=int(1000 * ratio)) / 1000
        if 0 < share < 0.25:
            text = f"--hicache-ratio {ratio:g}: prefetches of at most {share:.0%} of L1's tokens"
            yield Match(f"{text} at a time")


@RULES("prefetch-within-l2")
def prefetch_within_l2(server: SglangServer, versions: Versions) -> Iterator[Match]:
    """Yield a finding if an L2 of --hicache-size is too small for two of the longest prompts."""
    context, release = server.value("context_length"), versions.sglang
    certain = release.partial_prefetch and not versions.sglang_unsure
    if not _has_storage_backend(server) or not isinstance(context, int) or not certain:
        return
    hardware = Hardware(versions.geometry, Unknown("not asked"), None)
    request = pool_request(SizedServer(server, require(server_ranks(server)), hardware, release))
    pools = host_pools(require(request)) if require(request).size_gb else None
    if isinstance(pools, HostPools) and context >= pools.pools[0].tokens // 2:
        text = f"--context-length {context}: two prompts of that length do not fit into L2's "
        yield Match(f"{text}{pools.pools[0].tokens:,} tokens")


@RULES("adapter-keys-change")
def adapter_keys_change(server: SglangServer, versions: Versions) -> Iterator[Match]:
    loads = server.value("enable_lora") is True and not server.arguments.given("lora_paths")
    certain = versions.sglang.keys_have_adapter and not versions.sglang_unsure
    if _has_storage_backend(server) and loads and certain:
        yield Match("--enable-lora without --lora-paths, with a storage backend")


def _segment_owners(processes: tuple[LaunchProcess, ...]) -> Iterator[LaunchProcess]:
    """Yield the store clients that are known to give a segment to the store."""
    for process in processes:
        if process.server is not None:
            standalone = process.server.store and process.server.store.value("standalone_storage")
            if configured_segment(process.server) and standalone is False:
                yield process
        elif process.store is not None:
            client = process.store.client
            if not isinstance(client, Unknown) and client.segment_bytes:
                yield process


def _has_storage_backend(server: SglangServer) -> bool:
    return server.hicache and server.value("hicache_storage_backend") is not None


def _offloads_decode(server: SglangServer) -> bool:
    """Return whether a decode server stores what it generates (decode offload)."""
    asks = server.value("disaggregation_decode_enable_offload_kvcache") is True
    return asks and server.mode == "decode" and server.value("hicache_storage_backend") is not None


@OFFLOAD("offload-buffer-misread")
def offload_buffer_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each offload buffer size (bytes) that Mooncake misreads or crashes on."""
    for _, name, word in settings_of(processes, ("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",)):
        size = read_number(Reader.WHOLE, word.text).value
        if size is None or size >= 2**63:
            text = f"{name}={word.text}: 1342177280 bytes are taken"
            yield Match(f"{text}; up to 0.3.12 the digits at its beginning", word.origin)
        elif size <= 0:
            text = f"{name}={word.text}: the process ends at start with a segmentation fault"
            yield Match(text, word.origin)


@OFFLOAD("offload-without-switch")
def offload_without_switch(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding if a process has a path for SSD offload although its offload is off."""
    store = process.server.store if process.server else None
    if store is not None:
        path = store.value("ssd_offload_path")
        if isinstance(path, str) and path and store.value("enable_ssd_offload") is False:
            where = store.settings["ssd_offload_path"].origin
            edit = _switch_on(process)
            if store.source is not Source.ENVIRONMENT:
                edit = f"write enable_ssd_offload as true beside it ({where})"
            yield Match(f"ssd_offload_path is set ({where})", None, edit)
    elif process.store is not None and process.store.offload is False:
        word, path = process.command.environment.get(_PATH), process.store.offload_path
        if word is not None and word.text:
            text = f"{_PATH}={word.text}: {process.kind.value} does not offload"
            yield Match(text, word.origin, _switch_on(process))
        elif isinstance(path, str) and path:
            yield Match(f"ssd_offload_path is {path}, enable_ssd_offload is off")


@OFFLOAD("offload-switch-misplaced")
def offload_switch_misplaced(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding for each SSD offload switch that is on for a store client without offload,
    and that only another program reads.
    """
    environment = process.command.environment
    off = store_clients(process) and uses_offload(process) is False
    if not off or _SWITCHES.get(process.kind) in environment:
        return
    for name in _SWITCHES.values():
        word = environment.get(name)
        if word is not None and word.text.strip().lower() in ("1", "true", "yes", "on", "y"):
            text = f"{name}={word.text}: {process.kind.value} does not read it"
            yield Match(text, word.origin, _switch_on(process))


def _switch_on(process: LaunchProcess) -> str:
    """Return the edit, as a sentence, that switches SSD offload on for a process."""
    variable = _SWITCHES.get(process.kind)
    if process.consumer is not None:  # its embedded client has no switch
        return "run mooncake_client --enable_offload=true beside it, with the segment and this path"
    how = "give --enable_offload=true" if variable is None else f"export {variable}=1"
    return f"{at(process.command.origin)} {how}"


@OFFLOAD("offload-one-sided")
def offload_one_sided(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each process that offloads to SSD, if the launch has masters and surely
    no master offers offload.
    """
    masters = [process for process in processes if process.kind is ProcessKind.MASTER]
    if not masters or any(offers_offload(master) is not False for master in masters):
        return
    for process in processes:
        if uses_offload(process) is True:
            yield Match(f"{process.name} offloads, the master does not", process.command.origin)


@OFFLOAD("offload-unused")
def offload_unused(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each master that offers SSD offload, if the launch has clients and surely
    no client uses it.
    """
    clients = [process for process in processes if store_clients(process)]
    if not clients or any(uses_offload(client) is not False for client in clients):
        return
    for process in processes:
        if process.kind is ProcessKind.MASTER and offers_offload(process) is True:
            yield Match(f"{process.name} offers offload, no client uses it", process.command.origin)


@OFFLOAD("offload-path-refused")
def offload_path_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each SSD offload folder whose path Mooncake refuses."""
    for offload in _offloads(processes):
        wrong = "has '..' in it" if ".." in offload.folder.split("/") else ""
        if not offload.folder.startswith("/"):
            wrong = "is not an absolute path" if offload.folder else "is empty"
        if wrong:
            text = f"{offload.process.name} offloads to {offload.folder!r}, which {wrong}"
            yield Match(text, offload.process.command.origin)


@OFFLOAD("offload-folder-default")
def offload_folder_default(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for offload in _offloads(processes):
        if not offload.named and len(offload.folders) > 1:
            ranks = f"{len(offload.folders)} ranks of {offload.process.name}"
            yield Match(f"{ranks} offload to {offload.folder}", offload.process.command.origin)


@OFFLOAD("offload-folder-common")
def offload_folder_common(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each process that offloads to the same folder as an earlier process that
    may run beside it.

    A process that runs at an unknown place is left out.
    """
    first: dict[tuple[object, ...], LaunchProcess] = {}
    for process, folder, folders, _ in _offloads(processes):
        where, turn = place(process), process.command.turn
        others = [first.setdefault((where, turn, each), process) for each in folders]
        other = next((each for each in others if each is not process), process)
        # Two that are not decided may be the two ways of one condition.
        apart = other.command.waited or (other.command.doubts and process.command.doubts)
        if where is not None and other is not process and not apart:
            text = f"{other.name} and {process.name} offload to {folder}"
            yield Match(text, process.command.origin)


@OFFLOAD("offload-quota-unset")
def offload_quota_unset(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding if several clients offload in buckets without a positive quota."""
    in_buckets = (item for item in _offloads(processes) if _writes_buckets(item.process))
    quotas = ((item, *_quota(item.process)) for item in in_buckets)
    open_ended = [item for item, size, where in quotas if size < 0 or not where]
    clients = sum(len(offload.folders) for offload in open_ended)
    if clients > 1:
        text = f"{clients} clients offload, and {QUOTA} is not set: each may fill 90% of the disk"
        yield Match(text, open_ended[0].process.command.origin)


@OFFLOAD("offload-watermarks-refused")
def offload_watermarks_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each process whose low SSD watermark is not below the high watermark."""
    for offload in _offloads(processes):
        environment = offload.process.command.environment
        high, low = (_watermark(environment, level) for level in ("HIGH", "LOW"))
        if high is not None and low is not None and low >= high:
            text = f"{offload.process.name}: low watermark {low:g}, high watermark {high:g}"
            yield Match(text, offload.process.command.origin)


class _Offload(NamedTuple):
    """One process that offloads to ``folder``.

    Attributes:
        folders: Of each client here, at or below that.
        named: SGLang is given the folder.
    """

    process: LaunchProcess
    folder: str
    folders: tuple[str, ...]
    named: bool


def _offloads(processes: tuple[LaunchProcess, ...]) -> Iterator[_Offload]:
    """Yield every process that is known to offload, with its folder, if the folder is known too."""
    for process in processes:
        if uses_offload(process) is not True:
            continue
        path: object = process.store.offload_path if process.store else None
        server, named, below, parts = process.server, False, False, ["rank_0_0_0"]
        if server is not None and server.store is not None:
            path, ranks = server.store.value("ssd_offload_path"), server_ranks(server)
            named = isinstance(path, str)
            below = named and sglang_release(server.arguments.version).rank_offload_folders
            if isinstance(ranks, Ranks):
                parts = [ranks.offload_folder(rank, server.links) for rank in range(ranks.here)]
        if not isinstance(path, str | None):
            continue
        folder = path if named else offload_folder(path or "", process.command.environment)
        if isinstance(folder, str) and "$" not in folder:
            folders = [os.path.normpath(f"{folder}/{part}" if below else folder) for part in parts]
            yield _Offload(process, folder, tuple(folders), named)


def uses_offload(process: LaunchProcess) -> bool | None:
    """Return whether a store client offloads; None if unknown, or if it is no client."""
    if process.server is not None:
        store = process.server.store
        value = None if store is None else store.value("enable_ssd_offload")
        return None if value is None or isinstance(value, Unknown) else bool(value)
    offload = None if process.store is None else process.store.offload
    return None if isinstance(offload, Unknown) else offload


def offers_offload(process: LaunchProcess) -> bool | None:
    """Return whether a master starts with offload; None if a file or a variable decides that."""
    names = [flag.name for flag in read_flags(process.arguments, flags_of("mooncake_master"))]
    if "config_path" in names and "enable_offload" not in names:
        return None
    return is_on(process.arguments, "mooncake_master", "enable_offload")


def _watermark(environment: Mapping[str, Word], level: str) -> float | None:
    """Return the SSD watermark in effect (0 to 1); None if it is not known.

    Args:
        level: HIGH, LOW.
    """
    rows = [row for row in RATIOS if f"_{level}_" in row.name]
    for row in rows:
        word = environment.get(row.name)
        if word is not None and word.text:
            if word.unresolved:
                return None
            read = read_ratio(word.text)
            return row.default if read is None else read
    return rows[0].default
