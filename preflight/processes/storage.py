"""The files and folders of a launch: where SSD offload writes, the models, the configurations.

Source: Mooncake ``mooncake-store/src/file_storage.cpp`` (``FileStorageConfig``), SGLang 0.5.23
``mooncake_store.py`` (one folder per rank since 0.5.21).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.framework.needs import Storage
from checks.framework.pages import Default
from checks.framework.units import TIB
from checks.framework.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from preflight.engines.programs.memory_records import StoreClient
from preflight.engines.programs.mooncake_flags import value_of
from preflight.engines.programs.sglang_arguments import SettingValue, word_value
from preflight.engines.programs.store_processes import (
    OFFLOAD_PATH,
    offload_buffer_bytes,
    offload_folder,
)
from preflight.launches.source import Word
from preflight.launches.variables import may_be_absent
from preflight.processes.containers import host_path
from preflight.processes.mooncake_users import place
from preflight.processes.processes import LaunchProcess, ProcessKind

# storage_backend.h: what offload may fill without MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES.
DEFAULT_LIMIT_BYTES = 2 * TIB
LIMIT = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"
_FOLDER = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
_CONFIG_VARIABLES = ("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "MOONCAKE_CONFIG_PATH")


class Offload(NamedTuple):
    """One process's SSD offload: its folder, its limit, and whether it uses io_uring."""

    folder: SettingValue
    limit_bytes: int
    limit_origin: str
    uring: bool | Unknown


def offload_of(process: LaunchProcess) -> Offload | None:
    """Return how ``process`` offloads to SSD (each of its ranks); None if it does not, or that is
    not known.
    """
    environment = process.command.environment
    store = process.server.store if process.server else None
    folder: SettingValue | None = None
    if store is not None:
        if store.value("enable_ssd_offload") is not True:
            return None
        named = store.settings["ssd_offload_path"]
        folder = named if named.value not in (None, "") else None
    else:
        client = process.store.client if process.store else None
        if not isinstance(client, StoreClient) or client.offload_buffer_bytes is None:
            return None
    limit, origin = _limit(environment)
    return Offload(folder or _folder(environment), limit, origin, uses_uring(environment))


def uses_uring(environment: Mapping[str, Word]) -> bool | Unknown:
    """Return whether io_uring is on: only ``true`` and ``1`` are (TryParseBool, kTrueFalse).

    Of the two variables, the first that is not empty is read; Unknown if its value is not known.
    """
    for name in ("MOONCAKE_OFFLOAD_USE_URING", "MOONCAKE_USE_URING"):
        word = environment.get(name)
        if word is None or word.text == "":
            continue
        value = word_value(word)
        return value if isinstance(value, Unknown) else value.lower() in ("true", "1")
    return False


_GIVE_SHAPE = "give the model's config.json with --model-config"


def storage(process: LaunchProcess, ranks: int, own_folders: bool) -> Iterator[Storage]:
    """Yield the paths that a process uses on disk: its offload folder, model, draft model and
    configuration files.

    Args:
        ranks: The number of its ranks, each of which may fill the offload limit.
        own_folders: Each rank makes a folder below the offload folder (SGLang 0.5.21).
    """
    offload = offload_of(process)
    if offload is not None:
        folder, limit_bytes = offload.folder, offload.limit_bytes * ranks
        item = Storage("offload", _path(folder), process.name, folder.origin, limit_bytes)
        item = item._replace(direct_io=offload.uring is True, users=ranks)
        created = process.server is not None and own_folders
        yield item._replace(shared=ranks > 1 and not own_folders, created=created)
    server = process.server
    if server is not None:
        for path_kind, name in (("model", "model_path"), ("draft", "speculative_draft_model_path")):
            setting = server.arguments.settings.get(name)
            if setting is not None and setting.value is not None:
                path = _path(setting)
                there = _on_host(process, path)
                if path_kind == "model" and isinstance(there, Unknown) and there is not path:
                    advice = f"{_GIVE_SHAPE}, or {there.advice}"
                    there = Unknown(there.reason, cause=there.cause, advice=advice)
                yield Storage(path_kind, there, process.name, setting.origin)
    for path, origin in _configurations(process):
        if path not in process.command.files:
            yield Storage("config", _on_host(process, path), process.name, origin)


def _configurations(process: LaunchProcess) -> Iterator[tuple[str | Unknown, str]]:
    """Yield (path, origin) of each configuration file without which the process ends at once."""
    for variable in _CONFIG_VARIABLES:
        word = process.command.environment.get(variable)
        if word is not None and not may_be_absent(word, variable):
            yield word_value(word), f"{variable} at {word.origin}"
    if process.kind is ProcessKind.MASTER:
        word = value_of(process.arguments, "config_path")
        if word is not None and word.text:
            yield word_value(word), str(word.origin)
    server = process.server
    if server is not None and server.value("hicache_storage_backend") is not None:
        extra = server.arguments.settings["hicache_storage_backend_extra_config"]
        if isinstance(extra.value, str) and extra.value.startswith("@"):
            yield extra.value[1:], extra.origin


def _on_host(process: LaunchProcess, path: str | Unknown) -> str | Unknown:
    """Return a file's path on the host; a model's name on a hub stays as it is."""
    if isinstance(path, Unknown) or not path.startswith("/"):
        return path
    return host_path(process.command, path)


def _limit(environment: Mapping[str, Word]) -> tuple[int, str]:
    word = environment.get(LIMIT)
    text = word.text.strip() if word is not None and not word.unresolved else ""
    if word is not None and text.isdecimal() and len(text) < 20:
        return int(text), f"{LIMIT} at {word.origin}"
    return DEFAULT_LIMIT_BYTES, Default("default of Mooncake")


def _folder(environment: Mapping[str, Word]) -> SettingValue:
    word = environment.get(_FOLDER)
    if word is None:
        return SettingValue(OFFLOAD_PATH, Default("default of Mooncake"))
    value = word_value(word)
    return SettingValue(value, f"{_FOLDER} at {word.origin}")


def _path(setting: SettingValue) -> str | Unknown:
    return setting.value if isinstance(setting.value, str | Unknown) else str(setting.value)


def with_offload(
    client: StoreClient, process: LaunchProcess, mooncake: MooncakeRelease, rank_folder: str = ""
) -> StoreClient:
    """Return ``client`` with the size of the offload buffer as ``mooncake`` reads it, and with a
    key of its offload folder.

    The size is None if the client is SGLang's, and its Mooncake cannot offload.

    Clients with equal keys offload to one folder; "" if the folder is not known.

    Args:
        rank_folder: The part that SGLang puts behind a configured folder, so that no two ranks
            share one (mooncake_store.py). Without a configured folder, every rank takes Mooncake's
            default.
    """
    if client.offload_buffer_bytes is None:
        return client
    if process.server is not None and not mooncake.setup_offloads:
        return client._replace(offload_buffer_bytes=None)
    buffer = offload_buffer_bytes(process.command.environment, mooncake)
    client = client._replace(offload_buffer_bytes=buffer)
    where, store = place(process), None if process.server is None else process.server.store
    configured: object = process.store.offload_path if process.store else None
    configured = configured if store is None else store.value("ssd_offload_path")
    if where is None or isinstance(configured, Unknown):
        return client
    folder = configured if isinstance(configured, str) else ""
    used = offload_folder(folder, process.command.environment)
    if isinstance(used, Unknown) or "$" in used:
        return client
    parts = [*("/".join(wrapper) for wrapper in where), used.rstrip("/") or "/"]
    parts += [rank_folder] if folder and rank_folder and store else []
    return client._replace(offload_folder=" ".join(parts))
