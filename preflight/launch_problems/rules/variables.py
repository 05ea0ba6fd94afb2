"""Rules about environment variables: misspelt, in the way, or read as something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from checks.framework.problem import Match, Problems
from checks.framework.regex import regex
from checks.framework.units import GIB
from checks.releases.sglang import parse_version
from mooncake_preflight import MODE
from preflight.engines.programs.known_variables import known_variables
from preflight.engines.programs.mooncake_variables import (
    CHOICES,
    NUMBERS,
    OFFLOAD_NUMBERS,
    PORT_RANGES,
    PRESENCE,
    RATIOS,
    SWITCHES,
    Number,
    NumberRead,
    Reader,
    effect_of,
    read_number,
    read_ratio,
    read_switch,
    takes_word,
    usable_ports,
)
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Spelling
from preflight.launches.source import Word
from preflight.launches.variables import matching
from preflight.processes.mooncake_users import (
    device_names,
    offloads,
    settings_of,
    store_clients,
    uses_mooncake,
)
from preflight.processes.processes import LaunchProcess, ProcessKind, keep_last

RULES = Problems("variables.md")
# Of a number's row, the text written and what Mooncake reads of it: a sentence, None for no fault.
Says = Callable[[Number, str, NumberRead], str | None]
_PREFIXED = regex(r"(MC|MOONCAKE|SGLANG)_")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_ADDRESS = regex(r"(?:https?|etcd)://[^ =]+")
_BLANKS = " \t\n\v\f\r"
_LEADING = (Reader.ATOI, Reader.ATOLL, Reader.STOI, Reader.STOULL)
_SWITCHES = {row.name: row for row in SWITCHES}
_ROWS = {row.name: row for row in (*NUMBERS, *OFFLOAD_NUMBERS)}
# What people mean by a word, whatever the code makes of it.
_MEANS_ON = ("1", "true", "t", "yes", "y", "on", "enable", "enabled")
_MEANS_OFF = ("0", "false", "f", "no", "n", "off", "disable", "disabled", "")
# 4 GiB in regions of less than this are over a million: that many were seen to hang a start.
_LEAST_REGION_BYTES = 4096


@RULES("local-buffer-ignored")
def local_buffer_ignored(server: SglangServer) -> Iterator[Match]:
    word = server.environment.get("MOONCAKE_LOCAL_BUFFER_SIZE")
    if word and server.store:
        yield Match(f"MOONCAKE_LOCAL_BUFFER_SIZE={word.text} has no effect on SGLang", word.origin)


@RULES("variable-misspelt")
def variable_misspelt(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each variable MC_.., MOONCAKE_.. or SGLANG_.. that no program, or only an
    older SGLang, reads.

    A variable of a program that is not known here is passed over.
    """
    known: Mapping[str, str] = {}
    reported: set[str] = set()
    spelling = Spelling(0.8)
    for process in processes:
        if process.kind is ProcessKind.OTHER:
            continue  # a program of one's own may read what it likes
        for name, word in matching(process.command.environment, _PREFIXED):
            if name in reported:
                continue
            if process.consumer is not None and not name.startswith("MC_"):
                continue  # vLLM, LMCache and others have settings of Mooncake's store of their own
            known = known or {**known_variables(), MODE: ""}
            version = process.server.arguments.version if process.server else ""
            exact, says = bool(process.server and process.server.arguments.exact), ""
            if name not in known:
                prefix = name.partition("_")[0]
                near = spelling.nearest(name, (each for each in known if each.startswith(prefix)))
                hint = f": did you mean {near}?" if near else ""
                says = f"{name}: neither Mooncake nor SGLang reads it{hint}"
            elif known[name] and exact and parse_version(version) > parse_version(known[name]):
                says = f"{name}: SGLang {known[name]} is the last that reads it"
            if says:
                reported.add(name)
                yield Match(says, word.origin)


@RULES("proxy-in-the-way")
def proxy_in_the_way(process: LaunchProcess) -> Iterator[Match]:
    """Yield a finding if a process has an HTTP proxy and no_proxy may leave out a peer."""
    environment = process.command.environment
    proxies = [name for name in _PROXIES if name in environment and environment[name].text]
    peers = _peers(process) if proxies else ()
    named = (environment[name].text for name in ("no_proxy", "NO_PROXY") if name in environment)
    skipped = next(filter(None, named), "")
    reached = None if peers is None else [host for host in peers if not _skips(skipped, host)]
    if reached == [] or _skips(skipped, "*"):
        return
    hosts = f": {', '.join(reached)} is not in it" if reached else ""
    start = f"{process.kind.value} starts with {', '.join(proxies)}"
    yield Match(f"{start}, no_proxy is {skipped!r}{hosts}")


@RULES("force-tcp-is-presence")
def force_tcp_is_presence(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for _, name, word in settings_of(processes, tuple(PRESENCE)):
        if word.text.strip().lower() in _MEANS_OFF:
            yield Match(f"{name}={word.text}: counts as on", word.origin)


def _leading_digits_text(row: Number, text: str, read: NumberRead) -> str | None:
    """Say that Mooncake reads only the digits at the beginning of a number."""
    if row.reader not in _LEADING or not read.cut or read.value is None:
        return None
    beyond = "" if row.takes(read.value) else f", not {row.range}: {effect_of(row, read.value)}"
    return f"{row.name}={text}: Mooncake reads {read.value}{beyond}"


def _range_text(row: Number, text: str, read: NumberRead) -> str | None:
    """Say that a number is out of range, so that Mooncake uses another value or does not start."""
    if read.value is None or row.takes(read.value) or (read.cut and not row.refused):
        return None
    value = f"{read.value}, " if row.refused else ""
    return f"{row.name}={text}: {value}not {row.range}: {row.refused or effect_of(row, read.value)}"


@keep_last
def _numbers_read(processes: tuple[LaunchProcess, ...]) -> list[tuple[Number, Word, NumberRead]]:
    """Return (row, text as written, what Mooncake reads) for each number variable that a launch
    sets.

    A variable that another one replaces is left out, and a blank text without effect.
    """
    numbers = []
    everywhere = settings_of(processes, tuple(row.name for row in NUMBERS))
    offloading = settings_of(processes, tuple(row.name for row in OFFLOAD_NUMBERS), offloads)
    for process, name, word in (*everywhere, *offloading):
        row = _ROWS[name]
        if row.unless and row.unless in process.command.environment:
            continue
        read = read_number(row.reader, word.text)
        counts = read.value is not None and (row.takes(read.value) or row.refused)
        if word.text.strip() or counts:
            numbers.append((row, word, read))
    return numbers


def _number_matches(processes: tuple[LaunchProcess, ...], says: Says) -> Iterator[Match]:
    """Yield a finding for every number variable about which ``says`` returns a text."""
    for row, word, read in _numbers_read(processes):
        text = says(row, word.text, read)
        if text is not None:
            yield Match(text, word.origin)


_OF_ANY: dict[str, Says] = {
    "number-misread": _leading_digits_text,
    "number-out-of-range": lambda row, *read: None if row.refused else _range_text(row, *read),
    "number-refused": lambda row, *read: _range_text(row, *read) if row.refused else None,
}
for _id, _says in _OF_ANY.items():
    RULES(_id)(partial(_number_matches, says=_says))


@RULES("number-defaulted")
def number_defaulted(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each number that Mooncake cannot read, so that it uses the default."""

    def unread(row: Number, text: str, read: NumberRead) -> str | None:
        return None if read.value is not None else f"{row.name}={text}: {row.default} is used"

    yield from _number_matches(processes, unread)
    for _, name, word in settings_of(processes, tuple(row.name for row in RATIOS), offloads):
        row = next(row for row in RATIOS if row.name == name)
        if word.text and read_ratio(word.text) is None:
            text = f"{name}={word.text}: not above 0 and up to 1: {row.default} is used"
            yield Match(text, word.origin)


@RULES("port-range-reset")
def port_range_reset(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each port range for which Mooncake uses its default range instead."""
    for ports in PORT_RANGES:
        reported, (least, most) = set(), ports.default
        for process, _, word in settings_of(processes, (ports.least, ports.most)):
            written = [process.command.environment.get(name) for name in (ports.least, ports.most)]
            if any(each is not None and each.unresolved for each in written):
                continue
            read = [None if w is None else read_number(ports.reader, w.text).value for w in written]
            pairs = zip(read, ports.default, strict=True)
            ends = [default if number is None else number for number, default in pairs]
            if not usable_ports(*ends) and tuple(ends) not in reported:
                reported.add(tuple(ends))
                span = f"{ports.least} and {ports.most}: {ends[0]} to {ends[1]}"
                says = f"is not a range that Mooncake takes: {least} to {most} is used"
                yield Match(f"{span} {says}", word.origin)


@RULES("region-size-hangs")
def region_size_hangs(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for _, name, word in settings_of(processes, ("MC_MAX_MR_SIZE",)):
        size = read_number(_ROWS[name].reader, word.text).value or 0
        if 0 < size < _LEAST_REGION_BYTES:
            each = f"{4 * GIB // size} regions for every 4.00 GiB"
            yield Match(f"{name}={word.text}: regions of {size} bytes: {each}", word.origin)


@RULES("switch-misread")
def switch_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each switch whose value Mooncake does not know, or reads as its opposite.

    Examples are ``yes`` and ``off``.
    """
    for _, name, word in settings_of(processes, tuple(_SWITCHES)):
        row, meant = _SWITCHES[name], word.text.strip(_BLANKS).lower()
        taken = read_switch(row, word.text)
        known = meant in _MEANS_ON or meant in _MEANS_OFF
        if not meant and (taken is None or row.default == ("on" if taken else "off")):
            continue
        if taken is None or not known or taken != (meant in _MEANS_ON):
            becomes = {True: "on", False: "off", None: f"the default is used, {row.default}"}[taken]
            yield Match(f"{name}={word.text}: {becomes}", word.origin)


@RULES("choice-unknown")
def choice_unknown(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each setting whose value is not one of those that Mooncake knows."""
    rows = {row.name: row for row in CHOICES}
    for _, name, word in settings_of(processes, tuple(rows)):
        row = rows[name]
        harmless = not word.text and row.otherwise == row.default
        if not takes_word(row, word.text) and not harmless:
            choices = ", ".join(row.taken)
            text = f"{name}={word.text}: not one of {choices}: {row.otherwise} is used"
            yield Match(text, word.origin)


@RULES("filters-ignored")
def filters_ignored(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for process, name, word in settings_of(processes, ("MC_MS_FILTERS",)):
        devices = device_names(process)
        if word.text.strip(f"{_BLANKS},") and devices and not _discovers(process):
            yield Match(f"{name}={word.text} is not read: devices are {devices}", word.origin)


@RULES("devices-overridden")
def devices_overridden(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for process, name, word in settings_of(processes, ("MC_MS_AUTO_DISC",), store_clients):
        devices = device_names(process)
        if word.text.strip() == "1" and devices not in (None, "", "auto-discovery"):
            yield Match(f"{name}=1 overrides the devices {devices}", word.origin)


@RULES("peer-affinity-conflict")
def peer_affinity_conflict(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding if both affinity variables are set: Mooncake then turns both off."""
    for process, name, word in settings_of(processes, ("MC_ENABLE_HCA_PEER_AFFINITY",)):
        other = process.command.environment.get("MC_ENABLE_DEST_DEVICE_AFFINITY")
        if other is not None and read_switch(_SWITCHES[name], word.text) is True:
            text = f"{name}={word.text} and MC_ENABLE_DEST_DEVICE_AFFINITY={other.text}: both off"
            yield Match(text, word.origin)


@RULES("gpu-memory-by-dma-buf")
def gpu_memory_by_dma_buf(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for _, name, word in settings_of(processes, ("WITH_NVIDIA_PEERMEM",)):
        if read_switch(_SWITCHES[name], word.text) is False:
            yield Match(f"{name}={word.text}", word.origin)


def _peers(process: LaunchProcess) -> tuple[str, ...] | None:
    """Return the hosts that a process's settings name as its peers; None if it may have more."""
    addresses: list[object] = []
    if process.server is not None:
        store = process.server.store
        if store is None or process.server.mode != "null":
            return None  # disaggregation finds its peers at run time
        addresses = [store.value("master_server_address"), store.value("metadata_server")]
    elif process.stores:
        addresses = [each for client in process.stores for each in (client.master, client.metadata)]
    elif process.kind in (ProcessKind.MASTER, ProcessKind.ROUTER):
        texts = [_ADDRESS.search(word.text) for word in process.arguments]
        addresses = [match.group() for match in texts if match]
    named = [address for address in addresses if isinstance(address, str)]
    if len(named) < len([address for address in addresses if address is not None]):
        return None
    hosts = [host for address in named for host in _hosts(address)]
    return tuple(dict.fromkeys(hosts))


def _hosts(address: str) -> Iterator[str]:
    """Yield the hosts of ``a:1``, ``http://a:1/x`` or ``etcd://a:1;b:1``; none of P2PHANDSHAKE."""
    if address == "P2PHANDSHAKE":
        return
    for part in re.split("[;,]", address.partition("://")[2] or address):
        host = part.partition("/")[0]
        host = host.rpartition("]")[0].lstrip("[") if "]" in host else host.partition(":")[0]
        if host:
            yield host


def _skips(no_proxy: str, host: str) -> bool:
    """Return whether ``no_proxy`` exempts ``host``: in full, by its domain, or by a star."""
    entries = (entry.strip().partition(":")[0].lstrip(".") for entry in no_proxy.split(","))
    return any(
        name == "*" or (name and (host == name or host.endswith(f".{name}"))) for name in entries
    )


def _discovers(process: LaunchProcess) -> bool:
    """Return whether a store client looks for RDMA devices by itself."""
    setting = process.command.environment.get("MC_MS_AUTO_DISC")
    if setting is not None and (text := setting.text.strip()) in ("0", "1"):
        return text == "1"
    return uses_mooncake(process) and device_names(process) in ("", "auto-discovery")
