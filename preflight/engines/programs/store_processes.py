"""Store clients that are processes of their own: the store service and ``mooncake_client``.

Each comes to a ``StoreClient``, or to findings in its consumer's own words. Sources: Mooncake
``mooncake-wheel/mooncake/mooncake_store_service.py`` (see ``store_service_config``) and
``mooncake-store/src/real_client_main.cpp``.
"""

from collections.abc import Mapping
from typing import NamedTuple

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown, or_unknown, require
from checks.releases.mooncake import MooncakeRelease
from preflight.engines.programs.memory_records import (
    DEFAULT_ARENA_BYTES,
    NO_ARENA_FLAGS,
    ArenaFlags,
    Protocol,
    StoreClient,
)
from preflight.engines.programs.mooncake_flags import (
    as_integer,
    flags_of,
    is_on,
    read_flags,
    value_of,
)
from preflight.engines.programs.mooncake_variables import Reader, read_number
from preflight.engines.programs.sglang_arguments import why_unresolved, word_value
from preflight.engines.programs.store_environment import byte_size
from preflight.engines.programs.store_service_config import PROTOCOLS, read_service_config
from preflight.launches.source import ReadFile, Word

# real_client_main.cpp: --global_segment_size "4 GB", --local_buffer_size "0".
CLIENT_SEGMENT_BYTES = 4 * GIB
# storage_backend.h FileStorageConfig: without MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES and
# MOONCAKE_OFFLOAD_FILE_STORAGE_PATH.
OFFLOAD_BUFFER_BYTES = 1280 * MIB
OFFLOAD_PATH = "/data/file_storage"
# Of real_client_main.cpp DEFINE_bool: those that decide memory.
_CLIENT_SWITCHES = ("enable_offload", "start_offload_rpc_server", "use_mmap_arena_allocator")


class StoreProcess(NamedTuple):
    """One store process; ``client`` is Unknown if it depends on a variable that is not set.

    Attributes:
        offload: To SSD.
        offload_path: The folder for that, empty if the process names none.
        port: Of the store service's HTTP server.
        file: The JSON file with the settings, or "".
        hostname: The name under which the process registers, "" for the default.
        protocol: As written, or "" if only ``client`` has it.
    """

    client: StoreClient | Unknown
    refused: tuple[str, ...] = ()  # the program's own errors: it will not start
    misread: tuple[str, ...] = ()  # accepted, and not what was written
    devices: str | Unknown = ""
    master: str | Unknown = ""
    offload: bool | Unknown = False
    offload_path: str | Unknown = ""
    unknown_keys: tuple[tuple[str, str], ...] = ()
    port: int | Unknown | None = None
    metadata: str | Unknown = ""
    arena: ArenaFlags = NO_ARENA_FLAGS
    file: str = ""
    refused_by_older: tuple[str, ...] = ()  # by releases without service_reads_units
    hostname: str | Unknown = ""
    protocol: str | Unknown = ""


def read_store_service(
    arguments: tuple[Word, ...], environment: Mapping[str, Word], read_file: ReadFile
) -> StoreProcess:
    """Return a store service, set up by its arguments and its file, or without a file by its
    environment.

    If the file cannot be read here, everything that depends on it is Unknown.
    """
    config = read_service_config(arguments, environment, read_file)
    if isinstance(config, Unknown):
        unread = StoreProcess(config, (), (), config, config, config, config, metadata=config)
        return unread._replace(hostname=config)
    values = config.values
    offload = values["enable_ssd_offload"]
    sizes = (values["global_segment_size"], values["local_buffer_size"], values["protocol"])
    client = _client(*sizes, offload, environment)
    return StoreProcess(
        client,
        config.refused,
        config.misread,
        values["device_name"],
        values["master_server_address"],
        offload,
        values["ssd_offload_path"],
        config.unknown_keys,
        config.port,
        values["metadata_server"],
        file=config.file,
        refused_by_older=config.refused_by_older,
        hostname=values["local_hostname"],
        protocol=values["protocol"],
    )


def read_mooncake_client(
    arguments: tuple[Word, ...], environment: Mapping[str, Word]
) -> StoreProcess:
    """Return a mooncake_client by its flags.

    ``environment`` gives only the size of the buffer for SSD offload.
    """
    misread: list[str] = []
    flags = read_flags(arguments, flags_of("mooncake_client"))
    refused = [flag.problem for flag in flags if flag.name in _CLIENT_SWITCHES and flag.problem]

    def text(name: str, default: str) -> str | Unknown:
        word = value_of(arguments, name)
        return default if word is None else word_value(word)

    def size(name: str, default: int) -> int | Unknown:
        """Return the bytes of a flag; a text that is no size is 0 to mooncake_client."""
        word = value_of(arguments, name)
        if word is None or word.unresolved:
            return default if word is None else why_unresolved(word)
        parsed = byte_size(word.text)
        if parsed is None:
            misread.append(f"--{name}={word.text}: not a size to mooncake_client, which takes 0")
        return parsed or 0

    def switch(name: str) -> bool | Unknown:
        on, word = is_on(arguments, "mooncake_client", name), value_of(arguments, name)
        return why_unresolved(word) if on is None and word is not None else bool(on)

    @or_unknown
    def arena() -> ArenaFlags:
        on = require(switch("use_mmap_arena_allocator"))
        pool_bytes = as_integer("uint64", require(text("mmap_arena_pool_size", "-")))
        # What is no such number ends the program, as the check of its flags says.
        return ArenaFlags(on, DEFAULT_ARENA_BYTES if pool_bytes is None else pool_bytes)

    protocol, offload, flags_of_arena = text("protocol", "tcp"), switch("enable_offload"), arena()
    sizes = size("global_segment_size", CLIENT_SEGMENT_BYTES), size("local_buffer_size", 0)
    if isinstance(protocol, str) and protocol not in PROTOCOLS:
        refused.append(f"--protocol={protocol}: unsupported_protocol: write tcp or rdma")
    client = _client(*sizes, protocol, offload, environment)
    if isinstance(flags_of_arena, Unknown):
        client, flags_of_arena = flags_of_arena, NO_ARENA_FLAGS
    return StoreProcess(
        client,
        tuple(refused),
        tuple(misread),
        text("device_names", ""),
        text("master_server_address", "127.0.0.1:50051"),
        offload,
        metadata=text("metadata_server", "http://127.0.0.1:8080/metadata"),
        arena=flags_of_arena,
        hostname=text("host", ""),
        protocol=protocol,
    )


def offload_buffer_bytes(
    environment: Mapping[str, Word], mooncake: MooncakeRelease | None = None
) -> int:
    """Return the bytes of MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES; the default if that is not set,
    not known or no number.

    A result of 0 or less ends setup.

    Args:
        mooncake: The release, None for the newest. Before 0.3.13, 20GB was 20 bytes.
    """
    word = environment.get("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES")
    if word is None or word.unresolved:
        return OFFLOAD_BUFFER_BYTES
    whole = mooncake is None or mooncake.common_reader
    value = read_number(Reader.WHOLE if whole else Reader.STOLL, word.text).value
    return OFFLOAD_BUFFER_BYTES if value is None or not -(2**63) <= value < 2**63 else value


def offload_folder(folder: str, environment: Mapping[str, Word]) -> str | Unknown:
    """Return the folder that Mooncake offloads to: ``folder``, the argument of ``setup``, else the
    variable, else the default.

    Returns:
        Unknown if the variable's value is not known.
    """
    word = environment.get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")
    if folder or word is None:
        return folder or OFFLOAD_PATH
    return word_value(word)


@or_unknown
def _client(
    segment: int | Unknown,
    local: int | Unknown,
    protocol: str | Unknown,
    offload: bool | Unknown,
    environment: Mapping[str, Word],
) -> StoreClient | Unknown:
    """Return the memory of a store client; Unknown if ``segment`` or ``local`` (the bytes of the
    segment and the local buffer) is Unknown.

    Any protocol but tcp is treated as RDMA.
    """
    segment, local = require(segment), require(local)
    # So does any protocol but tcp: RDMA registers the most.
    transport = Protocol.TCP if protocol == "tcp" else Protocol.RDMA
    buffer = offload_buffer_bytes(environment) if offload is True else None
    return StoreClient(segment, local, transport, buffer)
