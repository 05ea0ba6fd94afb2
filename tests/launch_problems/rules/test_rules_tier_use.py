"""Rules about tiers that are asked for and not used, and about SSD offload."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from checks.framework.root import Root
from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import sglang_release
from preflight.engines.sglang.model import well_known_model
from preflight.launch_problems.rules.launch_rules import findings
from preflight.launch_problems.rules.rules import Versions
from preflight.launch_problems.rules.tier_use import RULES, _watermark, part_that_reaches_ssd
from preflight.launches.launch_files import read_source
from preflight.launches.source import Origin, Word
from preflight.needs.launch_sizing import size_launch
from preflight.processes.processes import LaunchOptions
from tests.builders.launch_text import HICACHE, MASTER, SERVER, SERVICE, STORE, service, understood
from tests.builders.rule_examples import GOOD, Example, Line, env
from tests.paths import ROOT
from tests.tables import each_row

SILENT_LAUNCHES = ROOT / "tests" / "data" / "silent"
LOCAL, SEGMENT = "127.0.0.1:50051", "MOONCAKE_GLOBAL_SEGMENT_SIZE"
DECODE = (
    f"{SERVER} --disaggregation-mode decode --hicache-storage-backend mooncake "
    "--disaggregation-decode-enable-offload-kvcache"
)
PREFILL = f"{SERVER} --disaggregation-mode prefill --enable-hierarchical-cache"
L3 = "--hicache-storage-backend mooncake --hicache-write-policy"
SSD = {"MOONCAKE_ENABLE_SSD_OFFLOAD": "1", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/ssd"}
MAPPED = {**MASTER, "MOONCAKE_DEVICE": '{"0": "mlx5_0"}'}
THROUGH = f"{STORE} --hicache-write-policy write_through --hicache-size 40"


def ids(
    *lines: Line, sglang: str = "0.5.23", mooncake: str = "0.3.14", model: str = ""
) -> set[str]:
    """Return the rules of this topic that hold in a launch, with its releases."""
    return {rule for rule, _ in said(*lines, sglang=sglang, mooncake=mooncake, model=model)}


def said(
    *lines: Line, sglang: str = "0.5.23", mooncake: str = "0.3.14", model: str = ""
) -> list[tuple[str, str]]:
    """Return each finding of this topic: its rule and its text."""
    processes = understood(*lines)
    known = well_known_model(model or "Qwen/Qwen3-32B")
    assert not isinstance(known, Unknown)
    release = mooncake_release(mooncake)
    versions = Versions(known.geometry, sglang_release(sglang), release)
    servers = [(process.server, versions) for process in processes if process.server]
    return [
        (finding.rule.id, finding.text)
        for finding in findings(processes, servers, release)
        if finding.rule.id in RULES.page
    ]


# Those that hold up to a release: the test below has the launches.
BY_RELEASE = {
    *("write-back-stores-nothing", "prefetch-budget-small", "eagle-l3-unread"),
    *("prefetch-within-l2", "adapter-keys-change"),
}


@pytest.mark.parametrize(
    ("words", "fires", "silent", "rule"),
    [
        (f"{L3} write_back", "0.5.8", "0.5.9", "write-back-stores-nothing"),
        (
            f"{L3} write_through --speculative-algorithm EAGLE",
            "0.5.9",
            "0.5.10.post1",
            "eagle-l3-unread",
        ),
        (f"{L3} write_through --hicache-ratio 1.2", "0.5.14", "0.5.15", "prefetch-budget-small"),
        # From a release on.
        (f"{L3} write_back", "0.5.9", "0.5.8", "l3-gets-less"),
        (f"{L3} write_through --hicache-ratio 0.5", "0.5.15", "0.5.14", "l2-below-l1"),
        (
            f"{L3} write_through --hicache-size 4 --context-length 131072",
            "0.5.11",
            "0.5.10.post1",
            "prefetch-within-l2",
        ),
        (f"{L3} write_through --enable-lora", "0.5.20", "0.5.19", "adapter-keys-change"),
    ],
)
def test_it_holds_up_to_a_release_or_from_one_on(
    words: str, fires: str, silent: str, rule: str
) -> None:
    launch = (f"{HICACHE} {words}", MASTER)
    assert rule in ids(launch, sglang=fires)
    assert rule not in ids(launch, sglang=silent)


@each_row(("ratio", "small"), [("1.0", False), ("1.312", True), ("1.313", False)])
def test_a_quarter_of_l1_may_be_under_prefetch(ratio: str, small: bool) -> None:
    """0.8 of what L2 has more than L1: nothing for an equal one, a quarter at 1.3125."""
    launch = (f"{HICACHE} {L3} write_through --hicache-ratio {ratio}", MASTER)
    assert ("prefetch-budget-small" in ids(launch, sglang="0.5.14")) is small


@each_row(("ratio", "below"), [("0.99", True), ("1.0", False)])
def test_an_l2_as_large_as_l1_is_not_below_it(ratio: str, below: bool) -> None:
    launch = (f"{HICACHE} {L3} write_through --hicache-ratio {ratio}", MASTER)
    assert ("l2-below-l1" in ids(launch, sglang="0.5.15")) is below


# Small launches that start and leave a tier unused, each with what is to be said of it.
SILENT = {
    "dec1.sh": {"decode-offload-unread"},
    "dec2.sh": {"decode-offload-hashes-differ"},
    "dec3.sh": {"decode-offload-unread", "l3-gets-less"},
    "l3s.sh": {"l3-repeats-l2", "l2-ratio-ignored"},
    "ooe.sh": {"soft-pin-unused", "ssd-evicts-nothing", "ssd-promotes-slowly"},
    "pol.sh": {"l3-repeats-l2", "prefetch-timeout-unread"},
    "ppm.sh": {"device-map-stages"},
    "ssd1.sh": {"ssd-beside-segment", "ssd-bucket-lost"},
    "std2.sh": {"standalone-settings-ignored"},
}


@each_row("name", SILENT)
def test_a_launch_that_leaves_a_tier_unused(name: str) -> None:
    path = SILENT_LAUNCHES / name
    source = read_source(str(path), {})
    options = LaunchOptions(gpu_bytes=80 * GIB)
    root = Root("/nowhere")
    sizing = size_launch(source, name, options, root, root.text)
    every = {finding.rule.id for finding in sizing.inputs.findings}
    assert every & RULES.page.keys() == SILENT[name]


def test_the_page_of_symptoms_has_every_rule() -> None:
    text = (ROOT / "docs/is-it-used.md").read_text()
    names = set(re.findall(r"`([a-z0-9-]+)`", text))
    assert RULES.page.keys() <= names


def written_of(counts: Iterable[int], bucket: int) -> int:
    """The objects on SSD, of those that each heartbeat had: as GroupOffloadingKeysByBucket. What is
    carried takes its place in a bucket, and is not written."""
    carried = written = 0
    for count in counts:
        full, left = divmod(carried + count, bucket)
        written += full * bucket - carried if full else 0
        carried = left
    return written


@pytest.mark.parametrize(("bucket", "rate"), [(20, 7), (20, 17), (20, 47), (500, 61), (500, 999)])
def test_the_part_that_reaches_ssd_is_that_of_bucket_by_bucket(bucket: int, rate: int) -> None:
    """Over many heartbeats, with half an object more for those that are whole."""
    counts = [rate] * 20 * bucket
    whole = 0.5 / max(bucket, rate)
    computed = part_that_reaches_ssd(bucket, rate) + whole
    assert written_of(counts, bucket) / sum(counts) == pytest.approx(computed, rel=0.02)


CLIENT = "mooncake_client --enable_offload"
FOLDER = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
OFFLOADS = env(MOONCAKE_ENABLE_SSD_OFFLOAD="1", **{FOLDER: "/ssd"})
ON = service(enable_ssd_offload=True, ssd_offload_path="/ssd")


def test_the_ssd_loses_what_fills_no_bucket_from_0_3_12_on() -> None:
    """Ten keys a bucket were seen to be written; another storage backend has no buckets."""
    launch = env(**SSD)
    assert "ssd-bucket-lost" in ids(launch, mooncake="0.3.12")
    assert "ssd-bucket-lost" not in ids(launch, mooncake="0.3.11.post1")
    assert "ssd-bucket-lost" not in ids(env(**SSD, MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT="10"))
    heartbeat = {"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "4"}
    ((_, text),) = said(env(**SSD, **heartbeat))
    assert "less than 125 objects and 64 MiB a second" in text
    other = "offset_allocator_storage_backend"
    launch = env(**SSD, MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=other)
    assert "ssd-bucket-lost" not in ids(launch)


def _one_gigabyte_of_l2(segment: int) -> tuple[Line]:
    return ((f"{THROUGH} --hicache-size 1", {"MOONCAKE_MASTER": LOCAL, SEGMENT: str(segment)}),)


EXAMPLES = [
    Example("lease-in-milliseconds", "--default_kv_lease_ttl=999 is 999 ms").of(
        ("mooncake_master --default_kv_lease_ttl=999",),
        ("mooncake_master --default_kv_lease_ttl=1000",),
    ),
    Example("lease-in-milliseconds", "--default_kv_lease_ttl=1 is 1 ms").of(
        ("mooncake_master --default_kv_lease_ttl=1",),
        ("mooncake_master --default_kv_lease_ttl=0",),
    ),
    Example("l3-repeats-l2", "a segment of 4.3 GB").of(
        ((THROUGH, {"MOONCAKE_MASTER": LOCAL}),),
        ((THROUGH, {"MOONCAKE_MASTER": "10.0.0.1:50051"}),),
    ),
    Example("l3-repeats-l2", "a segment of 1.0 GB").of(  # it is smaller than L2, or as large
        _one_gigabyte_of_l2(10**9 - 1), _one_gigabyte_of_l2(10**9)
    ),
    Example("ssd-evicts-nothing", "gives a segment and does not offload").of(
        ("mooncake_master --enable_offload=true --offload_on_evict=true", (STORE, MASTER)),
        ("mooncake_master --enable_offload=true --offload_on_evict=true", (STORE, MASTER | SSD)),
    ),
    Example("ssd-beside-segment", "offloads and has no segment").of(
        ("mooncake_client", env(**SSD, MOONCAKE_GLOBAL_SEGMENT_SIZE="0")),
        ("mooncake_client --enable_offload", env(**SSD, MOONCAKE_GLOBAL_SEGMENT_SIZE="0")),
    ),
    Example("decode-offload-unread", "write_through_selective").of(
        ((f"{PREFILL} {L3} write_through_selective", MASTER), (DECODE, MASTER)),
        ((f"{PREFILL} {L3} $POLICY", MASTER), (DECODE, MASTER)),
    ),
    Example(
        "soft-pin-unused",
        "",
        ("mooncake_master --default_kv_soft_pin_ttl=1800000", (STORE, MASTER)),
        ("mooncake_master --default_kv_soft_pin_ttl=1800000",),  # its clients are not known
    ),
    Example("device-map-repeats", 'the first rank of each attention group takes "0"').of(
        ((f"{STORE} --tp 8 --dp 2 --enable-dp-attention", MAPPED),), ((STORE, MAPPED),)
    ),
    Example("device-map-rank-missing", "for rank 1").of(
        ((f"{STORE} --tp 8 --dp 4 --enable-dp-attention", MAPPED),),
        ((f"{STORE} --tp 8 --dp 8 --enable-dp-attention", MAPPED),),
    ),
    Example("offload-buffer-misread", "ends at start with a segmentation fault").of(
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": "0"}),),
        (("mooncake_client", {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": " +1048576 "}),),
    ),
    Example("offload-without-switch", "ssd_offload_path is /ssd, enable_ssd_offload is off").of(
        (f"{SERVICE} --config=off.json",),
        (f"{SERVICE} --config=on.json",),
        {"off.json": service(ssd_offload_path="/ssd"), "on.json": ON},
    ),
    Example(
        "offload-one-sided", "Mooncake store service (launch.sh:2) offloads, the master does not"
    ).of(
        ("mooncake_master", f"{SERVICE} --config=on.json"),
        ("mooncake_master --config_path=master.yaml", f"{SERVICE} --config=on.json"),
        {"on.json": ON},
    ),
    Example("offload-unused", "mooncake_master (launch.sh:1) offers offload, no client uses it").of(
        ("mooncake_master --enable_offload=true", GOOD),
        ("mooncake_master --enable_offload=true", env(MOONCAKE_ENABLE_SSD_OFFLOAD="$ON")),
    ),
    Example("offload-path-refused", "which has '..' in it").of(
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/a/../b",),
        (f"{SERVICE} --config=on.json -Dssd_offload_path=/b",),
        {"on.json": ON},
    ),
    Example("offload-path-refused", "which is empty").of(
        ((CLIENT, {FOLDER: ""}),), ((CLIENT, {FOLDER: "$DIR"}),)
    ),
    Example("offload-quota-unset", "each may fill 90% of the disk").of(
        ((OFFLOADS[0], {**OFFLOADS[1], "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "1TB"}),),
        (CLIENT,),
    ),
]


@pytest.mark.parametrize(
    ("line", "switch"),
    [
        (("mooncake_client", {FOLDER: "/ssd"}), "give --enable_offload=true"),
        ((SERVICE, {**MASTER, FOLDER: "/ssd"}), "export MOONCAKE_OFFLOAD_ENABLED=1"),
        (env(**{FOLDER: "/ssd"}), "export MOONCAKE_ENABLE_SSD_OFFLOAD=1"),
        (env(MOONCAKE_OFFLOAD_ENABLED="1"), "export MOONCAKE_ENABLE_SSD_OFFLOAD=1"),
        (
            (SERVICE, {**MASTER, "MOONCAKE_ENABLE_SSD_OFFLOAD": "1"}),
            "export MOONCAKE_OFFLOAD_ENABLED=1",
        ),
    ],
)
def test_the_switch_of_this_program_alone_is_named(line: Line, switch: str) -> None:
    ids = ("offload-without-switch", "offload-switch-misplaced")
    (found,) = (one for one in findings(understood(line)) if one.rule.id in ids)
    assert found.remedy == f"in launch.sh:1 {switch}"


@each_row(
    ("environment", "high", "low"),
    [
        ({}, 0.9, 0.8),
        ({"MOONCAKE_DISK_EVICTION_HIGH_WATERMARK_RATIO": "0.7"}, 0.7, 0.8),
        ({"MOONCAKE_DISK_EVICTION_LOW_WATERMARK_RATIO": "0.7"}, 0.9, 0.7),
        ({"MOONCAKE_DISK_EVICTION_LOW_WATERMARK_RATIO": ""}, 0.9, 0.8),
        ({"MOONCAKE_OFFLOAD_DISK_EVICTION_LOW_WATERMARK_RATIO": "7"}, 0.9, 0.8),
        ({"MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO": "$R"}, None, 0.8),
    ],
)
def test_watermarks_of_an_ssd(
    environment: dict[str, str], high: float | None, low: float | None
) -> None:
    """What is no share is the default; one that nothing sets is not known."""
    here = Origin("launch.sh", 1)
    given = {
        name: Word(text, here, ("R",) if text == "$R" else ()) for name, text in environment.items()
    }
    assert (_watermark(given, "HIGH"), _watermark(given, "LOW")) == (high, low)
