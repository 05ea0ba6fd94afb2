"""Rules about the variables that Mooncake's C++ library reads: what it makes of each value.

The findings come from the table in ``mooncake_variables``; each says what the value becomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from checks.base.units import GIB
from preflight.launches.source import Word
from preflight.processes.mooncake_users import offloads, settings_of, store_devices, uses_mooncake
from preflight.processes.processes import LaunchProcess
from preflight.programs.mooncake_reading import (
    NumberRead,
    becomes,
    read_number,
    read_ratio,
    read_switch,
    takes_word,
    usable_ports,
)
from preflight.programs.mooncake_variables import (
    CHOICES,
    NUMBERS,
    OFFLOAD_NUMBERS,
    PORT_RANGES,
    PRESENCE,
    RATIOS,
    SWITCHES,
    Number,
    Reader,
)
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_CONFIG = "Mooncake config.cpp"
_BLANKS = " \t\n\v\f\r"
_LEADING = (Reader.ATOI, Reader.ATOLL, Reader.STOI, Reader.STOULL)
_ROWS = {row.name: row for row in (*NUMBERS, *OFFLOAD_NUMBERS)}
# What people mean by a word, whatever the code makes of it.
_MEANS_ON = ("1", "true", "t", "yes", "y", "on", "enable", "enabled")
_MEANS_OFF = ("0", "false", "f", "no", "n", "off", "disable", "disabled", "")
# 4 GiB in regions of less than this are over a million: that many were seen to hang a start.
_LEAST_REGION_BYTES = 4096


@RULES.launch(
    "force-tcp-is-presence",
    Severity.WARN,
    "a switch that counts as on whatever its value",
    "0 and the empty text turn it on too",
    "unset it to turn it off",
    "Mooncake transfer_engine_impl.cpp, config.cpp: getenv alone; seen by running it",
)
def force_tcp_is_presence(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for _, name, word in settings_of(processes, tuple(PRESENCE)):
        if word.text.strip().lower() in _MEANS_OFF:
            yield Seen(f"{name}={word.text}: counts as on", word.origin)


@RULES.launch(
    "number-misread",
    Severity.WARN,
    "a Mooncake number with a unit or a text",
    "leading digits are read and the rest is dropped; a text is 0",
    "write a plain number",
    "Mooncake config.cpp: atoi, atoll; MC_MAX_MR_SIZE=16MB was seen to register 16-byte regions",
)
def number_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    def said(row: Number, text: str, read: NumberRead) -> str | None:
        if row.reader not in _LEADING or not read.cut or read.value is None:
            return None
        beyond = "" if row.takes(read.value) else f", not {row.range}: {becomes(row, read.value)}"
        return f"{row.name}={text}: Mooncake reads {read.value}{beyond}"

    yield from _numbers(processes, said)


@RULES.launch(
    "number-defaulted",
    Severity.WARN,
    "a Mooncake number that it cannot read",
    "a line in the log at most, and the default holds",
    "write a plain whole number, without a unit",
    "Mooncake environ.cpp, config.cpp, tcp_transport.cpp; the log lines were seen by running it",
)
def number_defaulted(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    def said(row: Number, text: str, read: NumberRead) -> str | None:
        return None if read.value is not None else f"{row.name}={text}: {row.default} holds"

    yield from _numbers(processes, said)
    for _, name, word in settings_of(processes, tuple(row.name for row in RATIOS), offloads):
        row = next(row for row in RATIOS if row.name == name)
        if word.text and read_ratio(word.text) is None:
            text = f"{name}={word.text}: not above 0 and up to 1, {row.default} holds"
            yield Seen(text, word.origin)


@RULES.launch(
    "number-out-of-range",
    Severity.WARN,
    "a Mooncake number outside what it takes",
    "a warning in the log, and the default or another value holds",
    "stay within what the message names",
    f"{_CONFIG}, master_client.h, tcp_transport.cpp; the warnings were seen by running it",
)
def number_out_of_range(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    def said(row: Number, text: str, read: NumberRead) -> str | None:
        if read.cut or read.value is None or row.refused or row.takes(read.value):
            return None
        return f"{row.name}={text}: not {row.range}: {becomes(row, read.value)}"

    yield from _numbers(processes, said)


@RULES.launch(
    "number-refused",
    Severity.FAIL,
    "a Mooncake number with which no store client starts",
    "setup fails",
    "unset it, or stay within what the message names",
    "Mooncake master_client.h, real_client.cpp, file_storage.cpp; the timeouts and the retries "
    "were seen by running it",
)
def number_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    def said(row: Number, text: str, read: NumberRead) -> str | None:
        if not row.refused or read.value is None or row.takes(read.value):
            return None
        return f"{row.name}={text}: {read.value}, not {row.range}: {row.refused}"

    yield from _numbers(processes, said)


@RULES.launch(
    "port-range-reset",
    Severity.WARN,
    "a range of ports that Mooncake does not take",
    "both ends go back to the default, with a warning in the log: a firewall opened for the range "
    "stays shut for what is used",
    "stay within 1024 to 65535 and outside 32768 to 60999, the lower end first",
    f"{_CONFIG} ValidatePortRange; the warning was seen by running it",
)
def port_range_reset(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for ports in PORT_RANGES:
        told = set()
        for process, _, word in settings_of(processes, (ports.least, ports.most)):
            environment = process.command.environment
            ends: list[int] = []
            for name, default in zip((ports.least, ports.most), ports.default, strict=True):
                given = environment.get(name)
                if given is not None and given.unresolved:
                    break
                read = None if given is None else read_number(ports.reader, given.text).value
                ends.append(default if read is None else read)
            if len(ends) == 2 and not usable_ports(*ends) and tuple(ends) not in told:
                told.add(tuple(ends))
                least, most = ports.default
                yield Seen(
                    f"{ports.least} and {ports.most}: {ends[0]} to {ends[1]} is no range that "
                    f"Mooncake takes: {least} to {most} holds",
                    word.origin,
                )


@RULES.launch(
    "region-size-hangs",
    Severity.FAIL,
    "an MC_MAX_MR_SIZE that cuts memory into millions of regions",
    "registration does not come to an end; from 0.3.14 setup may end with -600 instead",
    "write plain bytes, or unset it: the device's own limit counts anyway",
    f"{_CONFIG}: atoll; a hang was seen with MC_MAX_MR_SIZE=16MB",
)
def region_size_hangs(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for _, name, word in settings_of(processes, ("MC_MAX_MR_SIZE",)):
        size = read_number(_ROWS[name].reader, word.text).value or 0
        if 0 < size < _LEAST_REGION_BYTES:
            each = f"{4 * GIB // size} regions for every 4.00 GiB"
            yield Seen(f"{name}={word.text}: regions of {size} bytes: {each}", word.origin)


@RULES.launch(
    "switch-misread",
    Severity.WARN,
    "a Mooncake switch that does not do what its word says",
    "each switch knows words of its own; another word is passed over, or even counts as on",
    "write 1 or 0",
    "Mooncake config.cpp, environ.cpp, tcp_transport.cpp, transfer_task.cpp, file_storage.cpp",
)
def switch_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    rows = {row.name: row for row in SWITCHES}
    for _, name, word in settings_of(processes, tuple(rows)):
        row, meant = rows[name], word.text.strip(_BLANKS).lower()
        taken = read_switch(row, word.text)
        known = meant in _MEANS_ON or meant in _MEANS_OFF
        if not meant and (taken is None or row.default == ("on" if taken else "off")):
            continue
        if taken is None or not known or taken != (meant in _MEANS_ON):
            becomes = {True: "on", False: "off", None: f"the default holds, {row.default}"}[taken]
            yield Seen(f"{name}={word.text}: {becomes}", word.origin)


@RULES.launch(
    "choice-unknown",
    Severity.WARN,
    "a Mooncake setting with a word that it does not know",
    "a line in the log at most, and another value holds",
    "write one of the words that the message names; case counts",
    "Mooncake config.cpp, master_client.h, file_storage.cpp, storage_backend.cpp",
)
def choice_unknown(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    rows = {row.name: row for row in CHOICES}
    for _, name, word in settings_of(processes, tuple(rows)):
        row = rows[name]
        harmless = not word.text and row.otherwise == row.default
        if not takes_word(row, word.text) and not harmless:
            words = ", ".join(row.words)
            text = f"{name}={word.text}: not one of {words}: {row.otherwise} holds"
            yield Seen(text, word.origin)


@RULES.launch(
    "no-device-left",
    Severity.WARN,
    "an MC_MS_FILTERS that names no device",
    "it is a list of what may be used: none is left, and Mooncake uses TCP without a word",
    "unset it, or name the devices: MC_MS_FILTERS=mlx5_0,mlx5_1",
    "Mooncake client_service.cpp get_auto_discover_filters; seen by running it",
)
def no_device_left(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process, name, word in settings_of(processes, ("MC_MS_FILTERS",)):
        if not word.text.strip(f"{_BLANKS},") and _discovers(process):
            yield Seen(f"{name}={word.text!r}: no device of the host is used", word.origin)


@RULES.launch(
    "filters-ignored",
    Severity.WARN,
    "MC_MS_FILTERS beside device names",
    "it counts for automatic discovery alone: a warning in the log, and the named devices are used",
    "drop MC_MS_FILTERS, or the names where it is to choose",
    "Mooncake client_service.cpp InitTransferEngine",
)
def filters_ignored(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process, name, word in settings_of(processes, ("MC_MS_FILTERS",)):
        devices = store_devices(process)
        if word.text.strip(f"{_BLANKS},") and devices and not _discovers(process):
            yield Seen(f"{name}={word.text} is not read: devices are {devices}", word.origin)


@RULES.launch(
    "peer-affinity-conflict",
    Severity.WARN,
    "MC_ENABLE_HCA_PEER_AFFINITY with MC_ENABLE_DEST_DEVICE_AFFINITY",
    "an error in the log, and both are off",
    "set one of the two; MC_ENABLE_DEST_DEVICE_AFFINITY is on whatever its value",
    f"{_CONFIG}; seen by running it",
)
def peer_affinity_conflict(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    row = next(row for row in SWITCHES if row.name == "MC_ENABLE_HCA_PEER_AFFINITY")
    for process, name, word in settings_of(processes, (row.name,)):
        other = process.command.environment.get("MC_ENABLE_DEST_DEVICE_AFFINITY")
        if other is not None and read_switch(row, word.text) is True:
            text = f"{name}={word.text} and MC_ENABLE_DEST_DEVICE_AFFINITY={other.text}: both off"
            yield Seen(text, word.origin)


@RULES.launch(
    "gpu-memory-by-dma-buf",
    Severity.NOTE,
    "WITH_NVIDIA_PEERMEM turned off",
    "GPU memory is then registered through dma-buf, which takes NVIDIA's open kernel modules and "
    "Linux 5.12; host memory is not touched by it",
    "leave it unset where nvidia_peermem is loaded",
    "Mooncake environ.cpp, rdma_context.cpp, rdma_transport.cpp",
)
def gpu_memory_by_dma_buf(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    row = next(row for row in SWITCHES if row.name == "WITH_NVIDIA_PEERMEM")
    for _, name, word in settings_of(processes, (row.name,)):
        if read_switch(row, word.text) is False:
            yield Seen(f"{name}={word.text}", word.origin)


def _numbers(
    processes: tuple[LaunchProcess, ...], said: Callable[[Number, str, NumberRead], str | None]
) -> Iterator[Seen]:
    """What ``said`` says of every number that counts; an empty one does where it is taken for 0."""
    everywhere = settings_of(processes, tuple(row.name for row in NUMBERS))
    offloading = settings_of(processes, tuple(row.name for row in OFFLOAD_NUMBERS), offloads)
    for process, name, word in (*everywhere, *offloading):
        row = _ROWS[name]
        if _overruled(row, process):
            continue
        read = read_number(row.reader, word.text)
        counts = read.value is not None and (row.takes(read.value) or row.refused)
        if not word.text.strip() and not counts:
            continue
        text = said(row, word.text, read)
        if text is not None:
            yield Seen(text, word.origin)


def _overruled(row: Number, process: LaunchProcess) -> bool:
    return bool(row.unless) and row.unless in process.command.environment


def _discovers(process: LaunchProcess) -> bool:
    """Whether a store client looks for RDMA devices by itself."""
    setting: Word | None = process.command.environment.get("MC_MS_AUTO_DISC")
    if setting is not None and setting.text.strip() in ("0", "1"):
        return setting.text.strip() == "1"
    return uses_mooncake(process) and store_devices(process) in ("", "auto-discovery")
