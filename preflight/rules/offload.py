"""Rules about SSD offload: where it goes, who shares the folder, and which sides have it on."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.base.unknown import Unknown
from preflight.launches.source import Word
from preflight.processes.mooncake_users import place, settings_of, store_clients
from preflight.processes.processes import LaunchProcess, ProcessKind
from preflight.programs.mooncake_flags import flags_of, is_on, read_flags
from preflight.programs.mooncake_variables import (
    OFFLOAD_NUMBERS,
    RATIOS,
    Reader,
    read_number,
    read_ratio,
)
from preflight.programs.store_config import Source
from preflight.programs.store_processes import offload_folder
from preflight.rules.rules import RuleSet, Seen, at

RULES = RuleSet("offload")
_SWITCHES = {
    ProcessKind.SGLANG: "MOONCAKE_ENABLE_SSD_OFFLOAD",
    ProcessKind.STORE_SERVICE: "MOONCAKE_OFFLOAD_ENABLED",
}
_PATH, _QUOTA = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"


@RULES.launch("offload-buffer-misread")
def offload_buffer_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each offload buffer size (bytes) that Mooncake misreads or crashes on."""
    for _, name, word in settings_of(processes, ("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",)):
        size = read_number(Reader.WHOLE, word.text).value
        if size is None or size >= 2**63:
            text = f"{name}={word.text}: 1342177280 bytes are taken"
            yield Seen(f"{text}; up to 0.3.12 the digits at its beginning", word.origin)
        elif size <= 0:
            text = f"{name}={word.text}: the process ends at start with a segmentation fault"
            yield Seen(text, word.origin)


@RULES.process("offload-without-switch")
def offload_without_switch(process: LaunchProcess) -> Iterator[Seen]:
    """Yield a finding if a path for SSD offload is set and offload is off."""
    store = process.server.store if process.server else None
    if store is not None:
        path = store.value("ssd_offload_path")
        if isinstance(path, str) and path and store.value("enable_ssd_offload") is False:
            where = store.settings["ssd_offload_path"].origin
            edit = _switch_on(process)
            if store.source is not Source.ENVIRONMENT:
                edit = f"write enable_ssd_offload as true beside it ({where})"
            yield Seen(f"ssd_offload_path is set ({where})", None, edit)
    elif process.store is not None and process.store.offload is False:
        word, path = process.command.environment.get(_PATH), process.store.offload_path
        if word is not None and word.text:
            text = f"{_PATH}={word.text}: {process.kind.value} does not offload"
            yield Seen(text, word.origin, _switch_on(process))
        elif isinstance(path, str) and path:
            yield Seen(f"ssd_offload_path is {path}, enable_ssd_offload is off")


@RULES.process("offload-switch-misplaced")
def offload_switch_misplaced(process: LaunchProcess) -> Iterator[Seen]:
    """Yield a finding for each SSD offload switch that only another kind of program reads."""
    environment = process.command.environment
    off = store_clients(process) and uses_offload(process) is False
    if not off or _SWITCHES.get(process.kind) in environment:
        return
    for name in _SWITCHES.values():
        word = environment.get(name)
        if word is not None and word.text.strip().lower() in ("1", "true", "yes", "on", "y"):
            text = f"{name}={word.text}: {process.kind.value} does not read it"
            yield Seen(text, word.origin, _switch_on(process))


def _switch_on(process: LaunchProcess) -> str:
    """Return how SSD offload is switched on for a process of its kind."""
    variable = _SWITCHES.get(process.kind)
    how = "give --enable_offload=true" if variable is None else f"export {variable}=1"
    return f"{at(process.command.origin)} {how}"


@RULES.launch("offload-one-sided")
def offload_one_sided(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each process that offloads to SSD, if no master offers offload."""
    masters = [process for process in processes if process.kind is ProcessKind.MASTER]
    if not masters or any(offers_offload(master) is not False for master in masters):
        return
    for process in processes:
        if uses_offload(process) is True:
            yield Seen(f"{process.name} offloads, the master does not", process.command.origin)


@RULES.launch("offload-unused")
def offload_unused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each master that offers SSD offload, if no client uses it."""
    clients = [process for process in processes if store_clients(process)]
    if not clients or any(uses_offload(client) is not False for client in clients):
        return
    for process in processes:
        if process.kind is ProcessKind.MASTER and offers_offload(process) is True:
            yield Seen(f"{process.name} offers offload, no client uses it", process.command.origin)


@RULES.launch("offload-path-refused")
def offload_path_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each SSD offload folder whose path Mooncake refuses."""
    for offload in _offloads(processes):
        wrong = "has '..' in it" if ".." in offload.folder.split("/") else ""
        if not offload.folder.startswith("/"):
            wrong = "is not an absolute path" if offload.folder else "is empty"
        if wrong:
            text = f"{offload.process.name} offloads to {offload.folder!r}, which {wrong}"
            yield Seen(text, offload.process.command.origin)


@RULES.launch("offload-folder-default")
def offload_folder_default(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for offload in _offloads(processes):
        if not offload.named and offload.ranks > 1:
            text = f"{offload.ranks} ranks of {offload.process.name} offload to {offload.folder}"
            yield Seen(text, offload.process.command.origin)


@RULES.launch("offload-folder-common")
def offload_folder_common(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each process that offloads to the same folder as an earlier process."""
    first: dict[tuple[object, ...], _Offload] = {}
    for offload in _offloads(processes):
        where = place(offload.process)
        if where is None:
            continue
        key = (where, offload.folder.rstrip("/"), offload.named)
        other = first.setdefault(key, offload)
        if other is not offload:
            text = f"{other.process.name} and {offload.process.name} offload to {offload.folder}"
            yield Seen(text, offload.process.command.origin)


@RULES.launch("offload-quota-unset")
def offload_quota_unset(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    open_ended = [item for item in _offloads(processes) if not _has_quota(item.process)]
    clients = sum(offload.ranks for offload in open_ended)
    if clients > 1:
        text = f"{clients} clients offload, and {_QUOTA} is not set: each may fill 90% of the disk"
        yield Seen(text, open_ended[0].process.command.origin)


@RULES.launch("offload-watermarks-refused")
def offload_watermarks_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    """Yield a finding for each process whose low SSD watermark is not below the high watermark."""
    for offload in _offloads(processes):
        environment = offload.process.command.environment
        high, low = (_watermark(environment, level) for level in ("HIGH", "LOW"))
        if high is not None and low is not None and low >= high:
            text = f"{offload.process.name}: low watermark {low:g}, high watermark {high:g}"
            yield Seen(text, offload.process.command.origin)


class _Offload(NamedTuple):
    """One process that offloads; named: SGLang makes a folder for each rank below ``folder``."""

    process: LaunchProcess
    folder: str
    ranks: int
    named: bool


def _offloads(processes: tuple[LaunchProcess, ...]) -> Iterator[_Offload]:
    """Yield every process that is known to offload, with its folder."""
    for process in processes:
        if uses_offload(process) is not True:
            continue
        environment, ranks, named = process.command.environment, 1, False
        given: object = process.store.offload_path if process.store else None
        if process.server is not None and process.server.store is not None:
            given = process.server.store.value("ssd_offload_path")
            named = isinstance(given, str)
            tp, pp = process.server.number("tp_size"), process.server.number("pp_size")
            ranks = tp * pp if isinstance(tp, int) and isinstance(pp, int) else 1
        if named:
            folder: str | Unknown = str(given)
        elif given is None or isinstance(given, str):
            folder = offload_folder(given or "", environment)
        else:
            continue
        if isinstance(folder, str) and "$" not in folder:
            yield _Offload(process, folder, ranks, named)


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
    given = [one.name for one in read_flags(process.arguments, flags_of("mooncake_master"))]
    if "config_path" in given and "enable_offload" not in given:
        return None
    return is_on(process.arguments, "mooncake_master", "enable_offload")


def _has_quota(process: LaunchProcess) -> bool:
    """Return whether a positive quota is set; True for another backend, which has its own quota."""
    environment = process.command.environment
    backend = environment.get("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR")
    if backend is not None and backend.text != "bucket_storage_backend":
        return True
    rows = {row.name: row for row in OFFLOAD_NUMBERS}
    for name in (_QUOTA, rows["MOONCAKE_BUCKET_MAX_TOTAL_SIZE"].name):
        word = environment.get(name)
        if word is not None:
            value = read_number(rows[name].reader, word.text).value
            return bool(word.unresolved) or (value is not None and value > 0)
    return False


def _watermark(environment: Mapping[str, Word], level: str) -> float | None:
    """Return the watermark in effect (a part of 1); None if a variable decides it."""
    rows = [row for row in RATIOS if f"_{level}_" in row.name]
    for row in rows:
        word = environment.get(row.name)
        if word is not None and word.text:
            if word.unresolved:
                return None
            read = read_ratio(word.text)
            return row.default if read is None else read
    return rows[0].default
