"""Every setting that Mooncake's C++ library reads from the environment, as one table of data; and
what the library makes of a text for each.

Huge pages, the arena and the local hot cache's size are ``store_environment``'s. Source of every
row: Mooncake 3b5a594 (2026-08-22), at the file and line that the row names; ``te/`` stands for
``mooncake-transfer-engine/src/``, ``store/`` for ``mooncake-store/src/``. Of the readers:
``mooncake-common/include/integer_parser.h``, ``store/file_storage.cpp``; glibc's atoi and atoll,
C++'s stoi and stoull; confirmed by running 0.3.13.post1 and 0.3.14.
"""

import re
from enum import Enum
from typing import NamedTuple

from checks.base.units import MIB
from preflight.programs.mooncake_grammar import STRTOD_BLANKS


class Reader(Enum):
    """How the code turns a text into a number."""

    ATOI = "leading digits, 32 bits; a text is 0"
    ATOLL = "leading digits, 64 bits; a text is 0"
    STOI = "leading digits, 32 bits; a text keeps the default"
    STOLL = "leading digits and a sign, 64 bits; a text keeps the default"
    STOULL = "leading digits, 64 bits; a text keeps the default"
    WHOLE = "the whole text, blanks around it and a leading + allowed; else the default"
    STRICT = "the whole text, digits and a leading - alone; else the default"


class Number(NamedTuple):
    """A variable that holds a number.

    default: what holds without it, in words. least, most: what is taken as written; None without a
    bound. values: where only these are taken. beyond: what becomes of a number outside, in words;
    empty where the default holds. refused: what ends the process, if that does. nonzero: any number
    but 0. negative_wraps: -1 is taken as 2^64 - 1. unless: the variable that takes precedence.
    """

    name: str
    reader: Reader
    default: str
    least: int | None
    most: int | None
    source: str
    values: tuple[int, ...] = ()
    beyond: str = ""
    refused: str = ""
    nonzero: bool = False
    negative_wraps: bool = False
    unless: str = ""

    def takes(self, value: int) -> bool:
        """Tell whether a number is used as it is."""
        if self.values:
            return value in self.values
        if self.nonzero:
            return value != 0
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    @property
    def range(self) -> str:
        """Return in words which numbers Mooncake takes."""
        if self.values:
            return " or ".join(str(value) for value in self.values)
        if self.nonzero:
            return "any number but 0"
        if self.most is None:
            return f"{self.least} or more"
        return f"{self.least} to {self.most}"


class Switch(NamedTuple):
    """A variable that holds a truth value: which words count, and what any other word does."""

    name: str
    on: tuple[str, ...]
    off: tuple[str, ...]
    otherwise: bool | None  # None: the default holds
    default: str
    source: str
    exact: bool = False  # case and blanks count


class Choice(NamedTuple):
    """A variable that holds one of a few words; any other word is taken for ``otherwise``."""

    name: str
    words: tuple[str, ...]
    default: str
    otherwise: str
    source: str
    any_case: bool = False


class Ratio(NamedTuple):
    """A variable that holds a share in (0, 1]; else the default stays, without a message."""

    name: str
    default: float
    source: str
    unless: str = ""


class PortRange(NamedTuple):
    """Two variables that are one range of ports; if either is wrong, both are reset."""

    least: str
    most: str
    default: tuple[int, int]
    reader: Reader
    source: str


# mooncake-transfer-engine/src/config.cpp ValidatePortRange: the ports that a kernel gives to
# outgoing connections (the usual net.ipv4.ip_local_port_range) are not taken.
PORTS = (1024, 65535)
EPHEMERAL_PORTS = (32768, 60999)

_ATOI, _ATOLL, _STOI, _STOULL = Reader.ATOI, Reader.ATOLL, Reader.STOI, Reader.STOULL
_WHOLE, _STRICT = Reader.WHOLE, Reader.STRICT
_CONFIG = "te/config.cpp"
_TCP = "te/transport/tcp_transport/tcp_transport.cpp"
_NOW = "every one times out at once, and setup ends with -600"

# fmt: off
NUMBERS = (
    Number("MC_NUM_CQ_PER_CTX", _ATOI, "1", 1, 255, f"{_CONFIG}:104"),
    Number("MC_NUM_COMP_CHANNELS_PER_CTX", _ATOI, "1", 1, 255, f"{_CONFIG}:118"),
    Number("MC_IB_PORT", _ATOI, "1", 1, 255, f"{_CONFIG}:128",
           beyond="1 is used; before Mooncake 0.3.13 a 0 stays, and no NIC is left"),
    Number("MC_GID_INDEX", _ATOI, "automatic choice", 0, 255, f"{_CONFIG}:139"),
    Number("NCCL_IB_GID_INDEX", _ATOI, "automatic choice", 0, 255, f"{_CONFIG}:140",
           unless="MC_GID_INDEX"),
    Number("MC_PKEY_INDEX", _STOI, "0", 0, 65535, f"{_CONFIG}:151"),
    Number("MC_MAX_CQE_PER_CTX", _ATOI, "4096", 1, 65535, f"{_CONFIG}:169"),
    Number("MC_MAX_EP_PER_CTX", _ATOI, "65536", 1, 65535, f"{_CONFIG}:179"),
    Number("MC_NUM_QP_PER_EP", _ATOI, "2", 1, 255, f"{_CONFIG}:189"),
    Number("MC_MAX_SGE", _ATOI, "4", 1, 65535, f"{_CONFIG}:199"),
    Number("MC_MAX_WR", _ATOI, "256", 1, 65535, f"{_CONFIG}:208"),
    Number("MC_MAX_INLINE", _ATOI, "64", 0, 65535, f"{_CONFIG}:219"),
    Number("MC_MTU", _ATOI, "4096", None, None, f"{_CONFIG}:229", (512, 1024, 2048, 4096)),
    Number("MC_HANDSHAKE_PORT", _ATOI, "12001", 1, 65535, f"{_CONFIG}:246"),
    Number("MC_WORKERS_PER_CTX", _ATOI, "2", 1, 8, f"{_CONFIG}:256"),
    Number("MC_SLICE_SIZE", _ATOI, "65536", 1, None, f"{_CONFIG}:266", negative_wraps=True),
    Number("MC_MAX_MR_SIZE", _ATOLL, "1 TiB", 1, None, f"{_CONFIG}:287", negative_wraps=True),
    Number("MC_RETRY_CNT", _ATOI, "9", 1, 127, f"{_CONFIG}:298"),
    Number("MC_AUTO_GID_MAX_RETRIES", _ATOI, "2", 0, 16, f"{_CONFIG}:309"),
    Number("MC_TE_METADATA_REFRESH_INTERVAL_SECONDS", _STOI, "0", 0, None, f"{_CONFIG}:326"),
    Number("MC_HANDSHAKE_LISTEN_BACKLOG", _STOI, "128", 1, None, f"{_CONFIG}:347"),
    Number("MC_HANDSHAKE_CONNECT_TIMEOUT", _ATOI, "5 s", 1, 3599, f"{_CONFIG}:365"),
    Number("MC_RDMA_RAIL_PAUSE_SECONDS", _STOI, "30 s", 1, 3599, f"{_CONFIG}:376"),
    Number("MC_SLICE_TIMEOUT", _ATOI, "no timeout", 1, 65535, f"{_CONFIG}:409"),
    Number("MC_CONN_PAUSE_TTL_MS", _STRICT, "0 ms", 0, 600000, f"{_CONFIG}:419"),
    Number("MC_FRAGMENT_RATIO", _ATOI, "4", 1, 65535, f"{_CONFIG}:481"),
    Number("MC_ENABLE_PARALLEL_REG_MR", _ATOI, "automatic choice", -1, 1, f"{_CONFIG}:534"),
    Number("MC_MAX_CONCURRENT_REG_MR", _STRICT, "no limit", 0, None, f"{_CONFIG}:545"),
    Number("MC_IB_TC", _STOI, "the device's own", 0, 255, f"{_CONFIG}:589"),
    Number("MC_IB_SL", _STOI, "0", 0, 15, f"{_CONFIG}:607"),
    Number("MC_IB_PCI_RELAXED_ORDERING", _ATOI, "1 (0 up to 0.3.12)", 0, 2, f"{_CONFIG}:626"),
    Number("MC_HANDSHAKE_MAX_LENGTH", _STRICT, "1 MiB", MIB, 128 * MIB,
           "mooncake-transfer-engine/include/common.h:437"),
    Number("MC_STORE_CLIENT_SETUP_RETRIES", _WHOLE, "20", 1, None, "store/real_client.cpp:818",
           refused="setup ends with -1 before the first attempt"),
    Number("MC_MS_AUTO_DISC", _STOI, "on for RDMA without device names", None, None,
           "store/client_service.cpp:543", (0, 1)),
    Number("MC_TCP_LANES_PER_PEER", _STRICT, "4", 1, 16, f"{_TCP}:262"),
    Number("MC_TCP_MAX_CONNECTIONS_PER_PEER", _STRICT, "4", 1, 16, f"{_TCP}:268",
           unless="MC_TCP_LANES_PER_PEER"),
    Number("MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", _STRICT, "1024", 1, 65535, f"{_TCP}:280"),
    Number("MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", _STRICT, "1024", 1, 65535, f"{_TCP}:284"),
    Number("MC_TCP_ADMISSION_TIMEOUT_MS", _STRICT, "1000 ms", 1, 600000, f"{_TCP}:289"),
    Number("MC_TCP_SLICE_SIZE", _STOULL, "65536", 1, None,
           "te/transport/tcp_transport/tcp_transport_session_impl.h:22"),
    Number("MC_RPC_TIMEOUT_MS", _ATOLL, "30 s", None, None,
           "mooncake-store/include/master_client.h:55", refused=_NOW, nonzero=True),
    Number("MC_RPC_CONNECT_TIMEOUT_MS", _ATOLL, "30 s", None, None,
           "mooncake-store/include/master_client.h:59", refused=_NOW, nonzero=True),
    Number("MC_TRANSFER_TIMEOUT", _ATOI, "30 s", 5, None,
           "mooncake-integration/transfer_engine/transfer_engine_py.cpp:127",
           beyond="5 s are taken"),
    Number("MC_STORE_LOCAL_HOT_BLOCK_SIZE", _STOULL, "16 MiB", 1, None,
           "store/client_service.cpp:5006"),
    Number("MC_STORE_LOCAL_HOT_ADMISSION_THRESHOLD", _STOULL, "2", 1, 255,
           "store/client_service.cpp:5110"),
    Number("MC_STORE_PIN_MEMORY_MAX_BYTES", _WHOLE, "nothing pinned", 0, None,
           "store/registered_pinned_memory.cpp:20"),
    Number("MC_EFA_CQ_THREADS", _WHOLE, "1", None, None, "mooncake-common/src/environ.cpp:202"),
    Number("MC_RPC_CLIENT_IO_THREADS", _WHOLE, "up to 16", 1, None,
           "mooncake-common/src/environ.cpp:11"),
    Number("MC_STORE_RPC_CLIENT_IO_THREADS", _WHOLE, "up to 16", 1, None,
           "mooncake-common/src/environ.cpp:12"),
    Number("MC_TE_RPC_CLIENT_IO_THREADS", _WHOLE, "up to 16", 1, None,
           "mooncake-common/src/environ.cpp:14"),
)

# Of SSD offload; MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES is a rule of its own. What a number out
# of range does is FileStorageConfig::Validate's business: it throws.
REFUSED = "ValueError: Invalid FileStorage configuration, after all memory is taken"
REFUSED_BACKEND = "RuntimeError: Failed to create storage backend, after all memory is taken"
_OFFLOAD = "store/file_storage.cpp"
_BUCKET = "store/storage_backend.cpp"
OFFLOAD_NUMBERS = (
    Number("MC_STORE_PINNED_RESTORE_ARENA_SIZE_BYTES", _WHOLE, "0", 0, None, f"{_OFFLOAD}:116",
           refused=REFUSED),
    Number("MOONCAKE_OFFLOAD_SCANMETA_ITERATOR_KEYS_LIMIT", _WHOLE, "20000", None, None,
           f"{_OFFLOAD}:120"),
    Number("MOONCAKE_OFFLOAD_TOTAL_KEYS_LIMIT", _WHOLE, "10000000", 1, None, f"{_OFFLOAD}:125",
           refused=REFUSED),
    Number("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", _WHOLE, "2 TiB", 1, None, f"{_OFFLOAD}:128",
           refused=REFUSED),
    Number("MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", _WHOLE, "10 s", 1, 2**32 - 1,
           f"{_OFFLOAD}:131", refused=REFUSED),
    Number("MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_INTERVAL_SECONDS", _WHOLE, "1 s", 0, 2**32 - 1,
           f"{_OFFLOAD}:134"),
    Number("MOONCAKE_OFFLOAD_CLIENT_BUFFER_GC_TTL_MS", _WHOLE, "5000 ms", 0, None,
           f"{_OFFLOAD}:138"),
    Number("MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT", _WHOLE, "500", 1, None, f"{_BUCKET}:122",
           refused=REFUSED_BACKEND),
    Number("MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", _WHOLE, "256 MiB", 1, None,
           f"{_BUCKET}:125", refused=REFUSED_BACKEND),
    Number("MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", _WHOLE, "90% of the file system", 1, None,
           f"{_BUCKET}:128"),
    Number("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", _WHOLE, "90% of the file system", 1, None,
           f"{_BUCKET}:129", unless="MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"),
    Number("MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES", _WHOLE, "no limit", 0, None,
           f"{_BUCKET}:133"),
    Number("MOONCAKE_OFFLOAD_BUCKET_DISK_SCAN_CACHE_MS", _WHOLE, "500 ms", None, None,
           f"{_BUCKET}:137"),
)

_ON, _OFF = ("1", "true", "yes", "on", "enable"), ("0", "false", "no", "off", "disable")
_ONE, _ZERO = ("1", "true"), ("0", "false")
SWITCHES = (
    Switch("WITH_NVIDIA_PEERMEM", _ON, _OFF, None, "on", "mooncake-common/src/environ.cpp:201"),
    Switch("MOONCAKE_STORE_CHECKSUM", _ON, _OFF, None, "off",
           "mooncake-common/src/environ.cpp:204"),
    Switch("MC_ENABLE_HCA_PEER_AFFINITY", _ONE, _ZERO, None, "off", f"{_CONFIG}:498"),
    Switch("MC_LOG_RDMA_SLICE_AFFINITY", _ONE, _ZERO, None, "off", f"{_CONFIG}:518"),
    Switch("MC_TRACK_RDMA_POSTED_SLICES", _ONE, _ZERO, None, "off", f"{_CONFIG}:526"),
    Switch("MC_MLX5_QP_LAG_PORT_BALANCE", _ONE, _ZERO, None, "off", f"{_CONFIG}:673"),
    Switch("MC_TCP_ENABLE_CONNECTION_POOL", (), ("0", "false", "no"), True, "on", f"{_TCP}:243"),
    Switch("MC_STORE_MEMCPY", ("1", "true", "yes", "on"), ("0", "false", "no", "off"), True,
           "on where TCP is the only transport", "store/transfer_task.cpp:962"),
    Switch("MC_PATH_ROUNDROBIN", _ONE, (), False, "off", "te/topology.cpp:598"),
    Switch("MC_TE_METRIC", ("1", "true", "yes", "on"), (), False, "off",
           "te/transfer_engine_impl.cpp:998"),
    Switch("MC_STORE_LOCAL_HOT_CACHE_USE_SHM", ("1",), (), False, "off",
           "store/client_service.cpp:5061", exact=True),
    Switch("MOONCAKE_OFFLOAD_USE_URING", _ONE, _ZERO, False, "off", f"{_OFFLOAD}:154"),
    Switch("MOONCAKE_OFFLOAD_ENABLE_DISK_WATERMARK_EVICTION", _ONE, _ZERO, True, "on",
           f"{_OFFLOAD}:142"),
)

# getenv alone: any text turns them on, 0 and the empty one too.
PRESENCE = {
    "MC_FORCE_TCP": "te/transfer_engine_impl.cpp:209",
    "MC_FORCE_HCA": "te/transfer_engine_impl.cpp:354",
    "MC_USE_IPV6": f"{_CONFIG}:477",
    "MC_DISABLE_METACACHE": f"{_CONFIG}:320",
    "MC_ENABLE_DEST_DEVICE_AFFINITY": f"{_CONFIG}:493",
    "MC_LEGACY_RPC_PORT_BINDING": "te/transfer_engine_impl.cpp:120",
    "MC_USE_TENT": "te/transfer_engine.cpp:394",
    "MC_USE_TEV1": "te/transfer_engine.cpp:394",
    "MC_FORCE_MNNVL": "te/transfer_engine_impl.cpp:331",
    "MC_INTRANODE_NVLINK": "te/transfer_engine_impl.cpp:332",
    "MC_USE_NVLINK_IPC": "te/transport/nvlink_transport/nvlink_transport.cpp:570",
    "RDMAV_HUGEPAGES_SAFE": "rdma-core libibverbs/memory.c ibv_fork_init",
}

CHOICES = (
    Choice("MC_LOG_LEVEL", ("TRACE", "INFO", "WARNING", "ERROR"), "INFO", "INFO",
           f"{_CONFIG}:393"),
    Choice("MC_EFA_NIC_SELECTION", ("all", "local"), "all", "all", f"{_CONFIG}:564",
           any_case=True),
    Choice("MC_ENDPOINT_STORE_TYPE", ("FIFO", "SIEVE"), "SIEVE", "SIEVE", f"{_CONFIG}:577"),
    Choice("MC_RPC_PROTOCOL", ("tcp", "rdma"), "tcp", "tcp",
           "mooncake-store/include/master_client.h:67"),
    Choice("MC_YLT_LOG_LEVEL", ("trace", "debug", "info", "warn", "warning", "error", "critical"),
           "warn", "warn", "mooncake-common/include/default_config.h:155", any_case=True),
    Choice("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR",
           ("bucket_storage_backend", "file_per_key_storage_backend",
            "offset_allocator_storage_backend", "distributed_storage_backend",
            "nvme_kv_storage_backend"),
           "bucket_storage_backend", "bucket_storage_backend", f"{_OFFLOAD}:90"),
    Choice("MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY", ("fifo", "lru", "none"), "fifo",
           "none, which never evicts,", f"{_BUCKET}:141"),
)

RATIOS = (
    Ratio("MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO", 0.9, f"{_OFFLOAD}:145"),
    Ratio("MOONCAKE_DISK_EVICTION_HIGH_WATERMARK_RATIO", 0.9, f"{_OFFLOAD}:146",
          unless="MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO"),
    Ratio("MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO", 0.8, f"{_OFFLOAD}:149"),
    Ratio("MOONCAKE_DISK_EVICTION_LOW_WATERMARK_RATIO", 0.8, f"{_OFFLOAD}:150",
          unless="MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO"),
)

PORT_RANGES = (
    PortRange("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT", (15000, 17000), _ATOI, f"{_CONFIG}:464"),
    PortRange("MC_STORE_CLIENT_MIN_PORT", "MC_STORE_CLIENT_MAX_PORT", (12300, 14300), _WHOLE,
              "store/real_client.cpp:820"),
)
# fmt: on


_LEADING = re.compile(rf"[{STRTOD_BLANKS}]*([+-]?\d+)", re.ASCII)
_SIGNED = re.compile(r"-?\d+", re.ASCII)
# Where the code that calls stoull looks for a minus sign itself, as it does for sizes.
_RANGES = {
    Reader.STOI: (-(2**31), 2**31 - 1),
    Reader.STOLL: (-(2**63), 2**63 - 1),
    Reader.STOULL: (0, 2**64 - 1),
}
# Longer than any 64-bit number; keeps int() from a text of a million digits.
_MOST_DIGITS = 40


class NumberRead(NamedTuple):
    """What a text comes to. value: None where the code keeps its default. cut: the text is more
    than a number, or none at all."""

    value: int | None
    cut: bool


def read_number(reader: Reader, text: str) -> NumberRead:
    """Return the number that ``reader`` takes from ``text``, before any range is looked at."""
    if reader in (Reader.WHOLE, Reader.STRICT):
        return NumberRead(_whole(reader, text), not _is_number(text))
    match = _LEADING.match(text)
    value = int(match.group(1)[:_MOST_DIGITS]) if match else None
    cut = not _is_number(text)
    if reader in (Reader.ATOI, Reader.ATOLL):
        return NumberRead(_as_signed(value or 0, reader), cut)
    least, most = _RANGES[reader]
    if value is None or not least <= value <= most:
        return NumberRead(None, cut)  # std::invalid_argument, std::out_of_range
    return NumberRead(value, cut)


def becomes(row: Number, value: int) -> str:
    """Return in words the value that Mooncake uses in place of a number that it does not take."""
    if row.negative_wraps and value < 0:
        return f"read as {value + 2**64}"
    return row.refused or row.beyond or f"{row.default} is used"


def read_switch(row: Switch, text: str) -> bool | None:
    """Return what a word does: on, off, or None where the default holds."""
    word = text if row.exact else text.strip(STRTOD_BLANKS).lower()
    if word in row.on:
        return True
    return False if word in row.off else row.otherwise


def takes_word(row: Choice, text: str) -> bool:
    """Tell whether ``text`` is one of the words."""
    return (text.lower() if row.any_case else text) in row.words


def read_ratio(text: str) -> float | None:
    """Return a share in (0, 1]; None where the code keeps its default."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 1 and "_" not in text and text == text.rstrip() else None


def usable_ports(least: int, most: int) -> bool:
    """Tell whether Mooncake takes a range of ports."""

    def usable(port: int) -> bool:
        ephemeral = EPHEMERAL_PORTS[0] <= port <= EPHEMERAL_PORTS[1]
        return PORTS[0] <= port <= PORTS[1] and not ephemeral

    return usable(least) and usable(most) and least <= most


def _whole(reader: Reader, text: str) -> int | None:
    if reader is Reader.WHOLE:
        text = text.strip(STRTOD_BLANKS)
        text = text[1:] if text.startswith("+") and not text.startswith("+-") else text
    return int(text[:_MOST_DIGITS]) if _SIGNED.fullmatch(text) else None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", text.strip(STRTOD_BLANKS), re.ASCII) is not None


def _as_signed(value: int, reader: Reader) -> int:
    """Return a number as glibc converts it.

    strtol saturates at 64 bits, atoi then keeps the low 32.
    """
    value = max(-(2**63), min(2**63 - 1, value))
    if reader is Reader.ATOI:
        value &= 2**32 - 1
        value -= 2**32 if value >= 2**31 else 0
    return value
