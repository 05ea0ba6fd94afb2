"""Rules about the RDMA devices that a launch names, and the transfer engines that it makes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote
from typing import Any

from checks.base.pages import Default
from checks.base.unknown import known
from checks.releases.sglang import sglang_release
from preflight.processes.processes import LaunchProcess, SglangServer
from preflight.programs.memory_records import Protocol, StoreClient
from preflight.programs.store_config import KEYS, Source, StoreConfig
from preflight.rules.rules import RuleSet, Seen, at

RULES = RuleSet("devices")


# Flags whose blanks and empty items SGLang drops itself, where it looks the devices up
# (_validate_ib_devices, from 0.5.9 on); Mooncake takes those of the store's own list as they are.
_CLEANED = ("--disaggregation-ib-device", "--mooncake-ib-device")


@RULES.process("device-name-syntax")
def device_name_syntax(process: LaunchProcess) -> Iterator[Seen]:
    """Yield a finding for each name in a device list that cannot be the name of a device."""
    server = process.server
    for what, text in _engine_lists(process) if server is None else _device_lists(server):
        names = text.split(",")
        cleans = server is not None and sglang_release(server.arguments.version).looks_up_devices
        if what in _CLEANED and cleans:
            names = [name.strip() for name in names if name.strip()] or names
        for name in names:
            wrong = _wrong_with(name)
            if wrong:
                yield Seen(f"{what}: {name!r} {wrong}")


@RULES.server("device-map-unreadable")
def device_map_unreadable(server: SglangServer) -> Iterator[Seen]:
    text = _store_devices(server)
    if text is not None and isinstance(_device_map(text), str):
        yield Seen(f"device_name {text!r}: {_device_map(text)}")


@RULES.server("device-map-rank-missing")
def device_map_rank_missing(server: SglangServer) -> Iterator[Seen]:
    """Yield a finding if the store's per-rank device map leaves out some ranks."""
    text, ranks = _store_devices(server), known(server.number("tp_size"))
    mapped = None if text is None else _device_map(text)
    if isinstance(mapped, dict) and ranks <= 1024:
        own = max(1, ranks // max(1, known(server.attention_dp)))
        missing = [str(rank) for rank in range(own) if str(rank) not in mapped]
        if missing:
            yield Seen(f"device_name names no device for rank {', '.join(missing)}")


@RULES.server("device-map-repeats")
def device_map_repeats(server: SglangServer) -> Iterator[Seen]:
    """Yield a finding if data-parallel groups use the same entries of a per-rank device map."""
    text, groups = _store_devices(server), known(server.number("dp_size"))
    if text is None or groups <= 1 or not isinstance(_device_map(text), dict):
        return
    size = known(server.number("tp_size"))
    if known(server.attention_dp) > 1:
        first = [str(rank) for rank in range(0, size, max(1, size // groups))]
        text = f"{', '.join(first[:8])}{', ...' * (len(first) > 8)}"
        yield Seen(f'a device map with --dp-size {groups}: ranks {text} all take "0"')
    else:
        yield Seen(f'a device map with --dp-size {groups}: rank 0 of each replica takes "0"')


@RULES.store("two-transfer-engines")
def two_transfer_engines(server: SglangServer, store: StoreConfig) -> Iterator[Seen]:
    """Yield a finding for each reason why the store does not share SGLang's transfer engine."""
    known(store.source)
    if store.error or not _reuses(server) or store.value("standalone_storage") is True:
        return
    given = [server.value(name) for name in ("disaggregation_ib_device", "mooncake_ib_device")]
    engine = known(next((value for value in given if value is not None), None))
    names = ("device_name", "metadata_server", "protocol")
    device, metadata, protocol = (known(store.value(name)) for name in names)
    if protocol != "rdma":
        return
    if metadata != "P2PHANDSHAKE":
        text = f"the store has the metadata server {metadata!r}, SGLang's engine P2PHANDSHAKE"
        edit = f"write P2PHANDSHAKE as its metadata server ({_written(store, 'metadata_server')})"
        yield Seen(text, None, edit)
    transfers = server.mode in ("prefill", "decode")
    flag = "--disaggregation-ib-device" if transfers else "--mooncake-ib-device"
    where, own = at(server.command.origin), _written(store, "device_name")
    if not (device or engine):  # '' here, None there: compared as they are
        text = "the store has no device, nor has SGLang's engine, which is shared only where both "
        edit = f"{where} name the devices for both, written alike: {flag}, and {own}"
        yield Seen(f"{text}are given the same", None, edit)
    elif device != engine:
        edit = f"{where} add {flag} {quote(str(device))}"
        if engine:
            edit = f"give the store {engine!r}, as {flag} has it ({own})"
        both = [f"device {name!r}" if name else "no device" for name in (device, engine)]
        yield Seen(f"the store has {both[0]}, SGLang's engine {both[1]}", None, edit)


@RULES.server("tcp-takes-rdma")
def tcp_takes_rdma(server: SglangServer) -> Iterator[Seen]:
    """Yield a finding if the protocol is tcp, but SGLang's own engine may use RDMA devices."""
    store, word = server.store, server.environment.get("MOONCAKE_PROTOCOL")
    backend = server.value("disaggregation_transfer_backend")
    transfers = server.mode in ("prefill", "decode") and backend == "mooncake"
    # maybe_init_shared_mooncake_transfer_engine starts none for a linker.
    shared = store is not None and not server.links and _reuses(server)
    if "MC_FORCE_TCP" in server.environment or not (transfers or shared):
        return
    if store and store.value("protocol") == "tcp":
        yield Seen(f"protocol is tcp ({store.settings['protocol'].origin})")
    elif word is not None and word.text == "tcp":
        yield Seen("protocol is tcp (MOONCAKE_PROTOCOL)", word.origin)


@RULES.server("custom-mem-pool-unknown")
def custom_mem_pool_unknown(server: SglangServer) -> Iterator[Seen]:
    """Yield a finding if SGLang does not know the value of SGLANG_MOONCAKE_CUSTOM_MEM_POOL."""
    word = server.environment.get("SGLANG_MOONCAKE_CUSTOM_MEM_POOL")
    known = ("NVLINK", "BAREX", "INTRA_NODE_NVLINK")
    if word is None or word.unresolved or word.text.lower() in ("true", "false", "0", ""):
        return
    if word.text not in known:
        yield Seen(f"SGLANG_MOONCAKE_CUSTOM_MEM_POOL={word.text}", word.origin)


def _written(store: StoreConfig, key: str) -> str:
    """Return the place of a store setting; if nobody wrote the setting, the name to write."""
    setting = store.settings[key]
    if not isinstance(setting.origin, Default):
        return str(setting.origin)
    return KEYS[key].variable if store.source is Source.ENVIRONMENT else f"{key} beside its others"


def _reuses(server: SglangServer) -> bool:
    """Return whether SGLang offers its transfer engine to the store."""
    reuse = server.environment.get("SGLANG_HICACHE_MOONCAKE_REUSE_TE")
    return reuse is None or reuse.text.lower() not in ("0", "false", "no", "n")


def _store_devices(server: SglangServer) -> str | None:
    store = server.store
    if store is None or not isinstance(store.source, Source):
        return None
    value = store.value("device_name")
    return value if isinstance(value, str) else None


def _device_lists(server: SglangServer) -> Iterator[tuple[str, str]]:
    """Yield every list of device names of a server, each list of a map too, with its setting."""
    stored = _store_devices(server)
    names = ("disaggregation_ib_device", "mooncake_ib_device")
    flags = [("--" + name.replace("_", "-"), server.value(name)) for name in names]
    for what, text in (("device_name", stored), *flags):
        if not isinstance(text, str) or not text or text in ("auto-discovery", "auto"):
            continue
        if text.endswith(".json") and what.startswith("--"):
            continue
        mapped = _device_map(text)
        if mapped is None:
            yield what, text
        elif isinstance(mapped, dict):
            yield from ((what, item) for item in mapped.values() if isinstance(item, str))


def _engine_lists(process: LaunchProcess) -> Iterator[tuple[str, str]]:
    """Yield every device list of an engine that is not SGLang, with its setting."""
    consumer = process.consumer
    if consumer is None:
        return
    for own in process.stores:
        rdma = isinstance(own.client, StoreClient) and own.client.protocol is Protocol.RDMA
        if rdma and isinstance(own.devices, str) and own.devices:
            yield "device_name", own.devices
    if consumer.transfer is not None and consumer.transfer.value:
        yield consumer.transfer.origin, consumer.transfer.value


def _device_map(text: str) -> dict[str, Any] | str | None:
    """Return a JSON map of devices per rank, or its error as text; None for a list of names."""
    if not text.strip().startswith("{"):
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return parsed if isinstance(parsed, dict) else "not an object"


def _wrong_with(name: str) -> str:
    """Return the error in a device name as the end of a sentence; "" if no error is known."""
    wrong = {
        "is empty": not name.strip(),
        "": "$" in name,
        "has a port, which is NCCL's spelling": ":" in name,
        "has quotes in it": '"' in name or "'" in name,
        "has a blank in it, which Mooncake takes as part of the name": " " in name
        or name != name.strip(),
    }
    return next((text for text, holds in wrong.items() if holds), "")
