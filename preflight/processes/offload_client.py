"""What a client that offloads to SSD does with the Mooncake that it runs on."""

from __future__ import annotations

from checks.base.unknown import Unknown
from checks.releases.mooncake import MooncakeRelease
from preflight.processes.mooncake_users import place
from preflight.processes.processes import LaunchProcess
from preflight.programs.memory_records import StoreClient
from preflight.programs.store_processes import offload_buffer_bytes, offload_folder


def offloading(
    client: StoreClient, process: LaunchProcess, mooncake: MooncakeRelease, own_folder: str = ""
) -> StoreClient:
    """``client`` of ``process`` with the buffer that ``mooncake`` reads, and its folder.

    own_folder: what SGLang puts behind the folder that it is given, so that each rank has its own
    (mooncake_store.py); where it is given none, every rank takes Mooncake's.
    """
    if client.offload_buffer_bytes is None:
        return client
    if process.server is not None and not mooncake.setup_offloads:
        return client._replace(offload_buffer_bytes=None)
    buffer = offload_buffer_bytes(process.command.environment, mooncake)
    folder = _folder(process, own_folder)
    return client._replace(offload_buffer_bytes=buffer, offload_folder=folder)


def _folder(process: LaunchProcess, own_folder: str) -> str:
    where = place(process)
    store = None if process.server is None else process.server.store
    given: object = process.store.offload_path if process.store else None
    if store is not None:
        given = store.value("ssd_offload_path")
    if where is None or isinstance(given, Unknown):
        return ""
    folder = given if isinstance(given, str) else ""
    found = offload_folder(folder, process.command.environment)
    if isinstance(found, Unknown) or "$" in found:
        return ""
    parts = (*("/".join(words) for words in where), found.rstrip("/") or "/")
    return " ".join((*parts, own_folder) if folder and own_folder and store else parts)
