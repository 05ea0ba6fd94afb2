"""How SGLang's releases differ in what they read of the Mooncake store's configuration: one table.

Read in the wheel of each version, and its configuration class run, see ``tests/real`` and
``tests/test_store_config_releases.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.releases.sglang import parse_version


class StoreReader(NamedTuple):
    """What one release reads; each field holds until a later row changes it.

    absent: keys that it does not know, in JSON and in the environment. config_file: whether
    SGLANG_HICACHE_MOONCAKE_CONFIG_PATH is read. gigabytes: whether ``4gb`` is a segment size.
    local_buffer: whether the extra config's ``local_buffer_size`` counts. hostnames: the variables
    of the local host name, the first one set. hostname_first: they go before the JSON's own.
    protocol_from_environment: MOONCAKE_PROTOCOL stands in for one that the JSON leaves out.
    set_counts: a variable that is empty counts as set. typed: keys of HiCache's own in the extra
    config that are refused where their value is of another type.
    """

    first: tuple[int, int, int, int]
    absent: frozenset[str]
    config_file: bool
    gigabytes: bool
    local_buffer: bool
    protocol: str
    device: str
    hostnames: tuple[str, ...]
    hostname_first: bool
    protocol_from_environment: bool
    set_counts: bool
    typed: frozenset[str]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The keys of which the extra config must name one to be used."""
        both = ("master_server_address", "client_server_address")
        return tuple(key for key in both if key not in self.absent)


_SERVER_CHECK = frozenset(("master_metrics_port", "check_server"))
_STANDALONE = frozenset(("standalone_storage", "client_server_address"))
_OFFLOAD = frozenset(("enable_ssd_offload", "ssd_offload_path"))
_TENANT = frozenset(("tenant_id",))
_PREFETCH = frozenset(
    ("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token")
)
_PREFIX = frozenset(("hicache_storage_pass_prefix_keys",))

_0_5_2 = StoreReader(
    (0, 5, 2, 0),
    absent=_SERVER_CHECK | _STANDALONE | _OFFLOAD | _TENANT,
    config_file=False,
    gigabytes=False,
    local_buffer=True,
    protocol="tcp",
    device="auto",
    hostnames=("LOCAL_HOSTNAME",),
    hostname_first=False,
    protocol_from_environment=False,
    set_counts=False,
    typed=frozenset(),
)
_0_5_3 = _0_5_2._replace(first=(0, 5, 3, 0), config_file=True, typed=_PREFETCH)
_0_5_4 = _0_5_3._replace(
    first=(0, 5, 4, 0), gigabytes=True, device="", absent=_STANDALONE | _OFFLOAD | _TENANT
)
_0_5_6 = _0_5_4._replace(
    first=(0, 5, 6, 0),
    local_buffer=False,
    hostnames=("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME"),
    set_counts=True,
)
_0_5_7 = _0_5_6._replace(first=(0, 5, 7, 0), absent=_OFFLOAD | _TENANT)
_0_5_9 = _0_5_7._replace(first=(0, 5, 9, 0), typed=_PREFETCH | _PREFIX)
_0_5_12 = _0_5_9._replace(
    first=(0, 5, 12, 0), absent=_TENANT, typed=_PREFETCH | _PREFIX | {"prefetch_timeout_max"}
)
_0_5_13 = _0_5_12._replace(first=(0, 5, 13, 0), protocol="rdma")
_0_5_17 = _0_5_13._replace(first=(0, 5, 17, 0), absent=frozenset())
_0_5_21 = _0_5_17._replace(first=(0, 5, 21, 0), hostname_first=True, typed=_PREFETCH | _PREFIX)
_0_5_23 = _0_5_21._replace(first=(0, 5, 23, 0), protocol_from_environment=True)

READERS = (
    _0_5_2,
    _0_5_3,
    _0_5_4,
    _0_5_6,
    _0_5_7,
    _0_5_9,
    _0_5_12,
    _0_5_13,
    _0_5_17,
    _0_5_21,
    _0_5_23,
)


def store_reader(sglang_version: str | None) -> StoreReader:
    """What the version reads, the newest where none is said; the oldest for what is older."""
    if sglang_version is None:
        return READERS[-1]
    version = parse_version(sglang_version)
    return next((row for row in reversed(READERS) if row.first <= version), READERS[0])
