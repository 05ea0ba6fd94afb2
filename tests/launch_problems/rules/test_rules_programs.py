"""Rules about Mooncake's own programs: their flags, segments, ports and the one about NPUs."""

from __future__ import annotations

import pytest
import write_mooncake_flags as table

from preflight.engines.programs.mooncake_flags import (
    Flag,
    as_double,
    as_integer,
    flags_of,
    is_on,
    value_of,
)
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.programs import refused_by_release
from preflight.launches.source import Origin, Word
from tests.builders.launch_text import MASTER, SERVICE, STORE, understood
from tests.builders.rule_examples import Example, Line
from tests.tables import each_row

SIZED = f"{SERVICE} MOONCAKE_GLOBAL_SEGMENT_SIZE="
CACHELIB = "mooncake_master --memory_allocator=cachelib"
SIZE, BASE = "segment-not-slabs", "segment-base-unaligned"
NPU = {"MOONCAKE_PROTOCOL": "ascend"}
REFUSED, UNKNOWN = "mooncake-flags-refused", "mooncake-flag-unknown"
FLAG_EXAMPLES = [
    Example(
        REFUSED, "--rcp_port: no release from 0.3.4 to 0.3.14 has it: did you mean --rpc_port?"
    ).of(
        ("mooncake_master --rcp_port=50051",),
        ("mooncake_master --rpc-port=50051 -metrics_port 9003 --logtostderr",),
    ),
    Example(UNKNOWN, "--local_buffer: no release").of(
        ("mooncake_client --local_buffer=1GB",),
        ("mooncake_client --local_buffer_size=1GB --enable_offload",),
    ),
    Example(REFUSED, "ERROR: illegal value 'http' specified for int32 flag 'rpc_port'").of(
        ("mooncake_master --rpc_port=http",),
        ("mooncake_master --rpc_port=$PORT --metrics_port 0x2330",),
    ),
    Example(REFUSED, "specified for uint64 flag").of(
        ("mooncake_master --put_start_release_timeout_sec=-1",),
        ("mooncake_master --put_start_release_timeout_sec=31",),
    ),
    Example(REFUSED, "--eviction_ratio=2: it must be between 0.0 and 1.0").of(
        ("mooncake_master --eviction_ratio=2",),
        ("mooncake_master --eviction_ratio=0x1p-1 --offload_cap_ratio=.5",),
    ),
    Example(REFUSED, "--default_kv_lease_ttl=1.5s: a whole number").of(
        ("mooncake_master --default_kv_lease_ttl=1.5s",),
        ("mooncake_master --default_kv_lease_ttl=5s",),
    ),
    Example(REFUSED, "--offloading_queue_limit=0: 1 to 100000000").of(
        ("mooncake_master --offloading_queue_limit=0",),
        ("mooncake_master --offloading_queue_limit=100000000",),
    ),
    Example(REFUSED, "--memory_allocator=buddy: must be cachelib or offset").of(
        ("mooncake_master --memory_allocator=buddy",),
        ("mooncake_master --memory_allocator=offset",),
    ),
    Example(REFUSED, "Unsupported config file format").of(
        ("mooncake_master --config_path=/etc/master.conf",),
        ("mooncake_master --config_path=/etc/master.yaml --enable_ha",),
    ),
    Example(REFUSED, "--enable_ha without --etcd_endpoints").of(
        ("mooncake_master --enable_ha",), ("mooncake_master --enable_ha --etcd_endpoints=$ETCD",)
    ),
    Example(REFUSED, "enable_oplog requires enable_ha=true").of(
        ("mooncake_master --enable_oplog",),
        ("mooncake_master --enable_oplog --enable_ha --etcd_endpoints=a:1",),
    ),
    Example(
        REFUSED,
        "put_start_release_timeout_sec (30 s) must be larger than put_start_discard_timeout_sec",
    ).of(
        ("mooncake_master --put_start_release_timeout_sec=30",),
        ("mooncake_master --put_start_release_timeout_sec=30 --put_start_discard_timeout_sec=9",),
    ),
]


def divided(size: str, **more: str) -> Line:
    """Eight ranks, which divide it."""
    return (STORE, {**MASTER, "MOONCAKE_GLOBAL_SEGMENT_SIZE": size, **more})


EXAMPLES = [
    *FLAG_EXAMPLES,
    Example("store-service-refused", "error: unrecognized arguments: --porf").of(
        (f"{SERVICE} --porf 1",), ((f"{SERVICE} --por 8081 --max-wait-time 5", MASTER),)
    ),
    Example(
        "ascend-host-memory",
        "32.00 GiB a client",
        (divided("256gb", **NPU),),
        (divided("160gb", **NPU), divided("256gb", MOONCAKE_PROTOCOL="rdma")),
    ),
    Example(SIZE, "a client mounts 2149580800 bytes (2.00 GiB)").of(
        (CACHELIB, divided("17179869192", MC_STORE_USE_HUGEPAGE="1")),
        (CACHELIB, divided("16gb", MC_STORE_USE_HUGEPAGE="1", MC_STORE_HUGEPAGE_SIZE="1GB")),
    ),
]


@pytest.mark.parametrize(
    ("text", "number"),
    [(".5", 0.5), ("1e3", 1000.0), ("0x10", 16.0), ("", None), ("1_0", None), ("1 ", None)],
)
def test_a_number_is_read_as_strtod_does(text: str, number: float | None) -> None:
    """Underscores and blanks behind it are Python's alone."""
    assert as_double(text) == number


def test_the_tables_are_read_with_their_releases() -> None:
    """Type, since and until; a flag of all releases has neither."""
    master = flags_of("mooncake_master")
    assert master["port"] == Flag("int32")
    assert master["rpc_port"] == Flag("int32", "0.3.4.post1")
    assert master["enable_snapshot"] == Flag("bool", "0.3.10", "0.3.13.post1")
    assert "global_segment_size" not in master
    assert flags_of("mooncake_client")["local_buffer_size"] == Flag("string", "0.3.12")


@each_row(
    ("words", "on"),
    [
        ("", False),
        ("--enable_offload", True),
        ("-enable-offload=yes", True),
        ("--enable_offload false", True),  # no value is taken from the next word
        ("--enable_offload=false", False),
        ("--enable_offload --noenable_offload", False),
        ("--enable_offload=0 --enable_offload=1", True),
        ("--port --enable_offload", False),  # the value of --port, which then refuses it
    ],
)
def test_a_switch_is_on_as_gflags_has_it(words: str, on: bool) -> None:
    arguments = tuple(Word(word, Origin("line", 1)) for word in words.split())
    assert is_on(arguments, "mooncake_master", "enable_offload") is on


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", None),
        ("--rpc_port=1 -rpc-port 2", "2"),  # the last one counts
        ("--rpc_port --enable_ha", ""),
        ("rpc_port=1", None),
    ],
)
def test_the_value_of_a_flag(words: str, text: str | None) -> None:
    """One reading for the ports, the metadata server and the watermark of the pool."""
    found = value_of(tuple(Word(word, Origin("line", 1)) for word in words.split()), "rpc_port")
    assert (None if found is None else found.text) == text


@each_row(
    ("kind", "text", "number"),
    [
        *(("int32", text, int(text)) for text in ("2147483647", "-2147483648", "+7", "0")),
        *(("int32", text, None) for text in ("2147483648", "-2147483649", "", "7s", "1_0")),
        *(("uint32", text, int(text)) for text in ("0", "4294967295")),
        *(("uint32", text, None) for text in ("-1", "-0", "4294967296")),
        ("uint32", " ", 0),
        ("int32", " ", None),
        ("uint64", "0xFFFFFFFFFFFFFFFF", 2**64 - 1),
        ("uint64", "0x10000000000000000", None),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("int64", "9223372036854775808", None),
    ],
)
def test_integers_as_gflags_reads_them(kind: str, text: str, number: int | None) -> None:
    assert as_integer(kind, text) == number


def test_the_table_is_what_its_generator_writes() -> None:
    """So that a release that is added changes its own lines alone."""
    text = table.TABLE.read_text()
    assert table.written(table.read(text)) == text


@each_row(
    ("line", "said"),
    [
        # Whole words, names and values may come from the environment.
        ("mooncake_master $ARGS --$NAME=1 --rpc_port $PORT --enable_ha=$HA --enable_oplog", []),
        # --undefok names flags that may be missing; values are judged all the same.
        ("mooncake_master --undefok=a --a=1 --port=x", ["flag 'port'"]),
        ("python3 x.py --rcp_port=1", []),  # another program's
    ],
)
def test_what_is_another_s_to_decide_is_not_refused(line: str, said: list[str]) -> None:
    found = [f.text for f in findings(understood(line)) if f.rule.id in (REFUSED, UNKNOWN)]
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))


@each_row(
    ("line", "release", "said"),
    [
        ("mooncake_client --local_buffer_size=0", "0.3.11.post1", "is there from 0.3.12 on, and"),
        ("mooncake_client --local_buffer_size=0", "0.3.12", ""),
        ("mooncake_client --local_buffer_size=0 --undefok=local_buffer_size", "0.3.11", ""),
        ("mooncake_master --use_mmap_arena_allocator", "0.3.14", "was there up to 0.3.13.post1"),
        ("mooncake_master --use_mmap_arena_allocator", "0.3.13.post1", ""),
        (f"{SIZED}96mb", "0.3.11.post1", "invalid literal for int() with base 10: '96mb'"),
        (f"{SIZED}96mb", "0.3.12", ""),
        (f"{SIZED}1gb", "0.3.8", ""),
    ],
)
def test_what_another_release_takes_ends_the_program(line: str, release: str, said: str) -> None:
    program, _, size = line.partition(" MOONCAKE_GLOBAL_SEGMENT_SIZE=")
    variables = {"MOONCAKE_GLOBAL_SEGMENT_SIZE": size, "MOONCAKE_MASTER": "a"} if size else {}
    found = list(refused_by_release(understood((program, variables)), release))
    id_ = "store-service-refused" if "service" in line else REFUSED
    assert [one.rule.id for one in found] == [id_] * bool(said)
    assert all(said in one.text and release in one.text for one in found)


@pytest.mark.parametrize(
    ("flag", "rule", "remedy"),
    [
        ("--rcp_port=1", REFUSED, "write --rpc_port instead of --rcp_port"),
        ("-enable_offlaod", REFUSED, "write --enable_offload instead of -enable_offlaod"),
        ("--rpcport 1", REFUSED, "write --rpc_port instead of --rpcport"),
        ("--listen_port 1", UNKNOWN, ""),
        ("--quite_other", UNKNOWN, ""),
    ],
)
def test_a_misspelt_flag_ends_all_and_says_the_edit(flag: str, rule: str, remedy: str) -> None:
    (found,) = findings(understood(f"mooncake_master {flag}"))
    assert found.rule.id == rule
    assert found.remedy.endswith(remedy)
    assert bool(found.remedy) is bool(remedy)
