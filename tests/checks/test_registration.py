"""The planner: registrations, pinned bytes and table entries, and what a NIC is held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Finding, Status
from checks.framework.needs import ProcessNeeds
from checks.framework.pages import Region
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.memlock.demand import demand
from checks.rdma.capacity_checks import CHECKS
from checks.rdma.device_table import (
    DEVICE_TABLE,
    MEMORY_KEYS,
    RESULT_SCHEMA,
    device_row,
    device_rows,
)
from checks.rdma.facts import read_rdma
from checks.rdma.registration import (
    Registration,
    Split,
    pinned_bytes,
    regions_under,
    registration_of,
)
from checks.rdma.verbs import PROVIDERS
from checks.releases.mooncake import mooncake_release
from checks.run_checks.facts import Facts
from checks.run_checks.runner import judge
from preflight.command_inputs.host_source import open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.synthetic import build_host, erdma_host
from tests.checks.rdma_hosts import GIB, MIB, RXE0, FakeHost, found, launch, process, with_settings
from tests.paths import ROOT
from tests.tables import each_row

FAIL, WARN, PASS, UNKNOWN, SKIP = Status.FAIL, Status.WARN, Status.PASS, Status.UNKNOWN, Status.SKIP
HUGE = 2 * MIB
OLD, NEW, ALIGNED = map(mooncake_release, ("0.3.12.post1", "0.3.13", "0.3.14"))
LAUNCHES = ROOT / "tests/data/launches"


def region(size: int, what: str = "L2 host pool", page: int = 4096) -> Region:
    return Region(what, size, page)


@each_row(
    ("memory", "largest", "release", "plan"),
    [
        (region(2 * GIB), 2 * GIB, OLD, Registration(Split.WHOLE, 1, 2 * GIB, 2 * GIB)),
        (region(3 * GIB), 2 * GIB, OLD, Registration(Split.CUT_OFF, 1, 2 * GIB, 2 * GIB)),
        (region(3 * GIB), 2 * GIB, NEW, Registration(Split.PIECES, 2, 2 * GIB, 3 * GIB)),
        (region(3 * GIB), 2 * GIB, None, Registration(Split.UNTOLD, 2, 2 * GIB, 3 * GIB)),
        (
            region(3 * GIB, "global segment"),
            2 * GIB,
            OLD,
            Registration(Split.PIECES, 2, 2 * GIB, 3 * GIB),
        ),
        # Measured: 80 MiB with MC_MAX_MR_SIZE of 32 MiB makes 3 regions on each NIC.
        (region(80 * MIB), 32 * MIB, NEW, Registration(Split.PIECES, 3, 32 * MIB, 80 * MIB)),
        # Measured with 0.3.14: 33 000 000 becomes 31 457 280, and less than a page is refused.
        (region(80 * MIB, page=HUGE), 33_000_000, ALIGNED,
         Registration(Split.PIECES, 3, 31_457_280, 80 * MIB)),
        (region(80 * MIB, page=HUGE), MIB, ALIGNED, Registration(Split.REFUSED, 0, 0, 0)),
        (region(0), 2 * GIB, NEW, Registration(Split.WHOLE, 1, 0, 0)),
    ],
)  # fmt: skip
def test_a_region_is_whole_in_pieces_or_cut_off(
    memory: Region, largest: int, release: Any, plan: Registration
) -> None:
    assert registration_of(memory, largest, release) == plan


@given(
    size=st.integers(1, 12_000),
    piece=st.integers(1, 9_000),
    page=st.sampled_from([512, 4096]),
    offset=st.integers(0, 8192),
)
def test_pinned_pages_are_those_that_each_piece_touches(
    size: int, piece: int, page: int, offset: int
) -> None:
    """The closed form against counting, page by page, wherever in a page the memory begins."""
    plan = registration_of(region(size), piece, NEW)
    counted = 0
    for start in range(offset, offset + size, piece):
        end = min(start + piece, offset + size)
        counted += (-(-end // page) - start // page) * page
    assert pinned_bytes(plan, page, offset) == counted


def test_what_is_cut_off_is_not_pinned() -> None:
    cut = demand(process(regions=(region(3 * GIB),)), 2, 4096, 2 * GIB, OLD)
    whole = demand(process(regions=(region(3 * GIB),)), 2, 4096, 2 * GIB, NEW)
    assert not isinstance(cut, Unknown)
    assert not isinstance(whole, Unknown)
    assert (cut.bytes, whole.bytes) == (4 * GIB, 6 * GIB)


@given(limit=st.integers(0, 1 << 42), nics=st.integers(1, 8), size=st.integers(1, 1 << 34))
def test_regions_under_a_limit_fit_and_one_more_does_not(limit: int, nics: int, size: int) -> None:
    count = regions_under(limit, nics, size, 4096)
    each = -(-size // 4096) * 4096 * nics
    assert count * each <= limit < (count + 1) * each


def test_every_row_says_where_it_comes_from() -> None:
    """A bound without evidence is a guess; the order of what holds, worked and failed is kept."""
    for row in device_rows():
        assert row.evidence
        assert row.holds_entries <= row.worked_entries
        assert not row.failed_entries or row.worked_entries < row.failed_entries
        assert device_row(row.provider) is row
    assert {row.provider for row in device_rows()} & set(PROVIDERS.values())
    assert device_row("brand new") is None


ERDMA = replace(RXE0, driver="erdma", driver_id=19)
CAPACITY = "rdma.table-capacity"


def capacity(host: FakeHost, *members: ProcessNeeds) -> list[Finding]:
    return found(CAPACITY, host, launch(*members))


def saved(holds: int, met: str = DEVICE_TABLE, page: int = 4096, **changes: Any) -> dict[str, Any]:
    """A result of the probe for ``ERDMA`` as FakeHost shows it."""
    identity = {"hardware": "", "firmware": "", "driver": "erdma", "driver_version": ""}
    result = {"schema": RESULT_SCHEMA, "page_bytes": page, "holds_bytes": holds, "met": met}
    return {**identity, **result, "holds_regions": holds // GIB, "file": "/saved", **changes}


@each_row(
    ("result", "size", "page", "status"),
    [
        # The measurement beats the table both ways.
        (saved(100 * GIB), 90 * GIB, 4096, PASS),
        (saved(100 * GIB), 100 * GIB + 4096, 4096, FAIL),
        (saved(40 * GIB), 50 * GIB, 4096, FAIL),
        # As much as was asked for, or as this user might lock: at least so much.
        (saved(100 * GIB, ""), 90 * GIB, 4096, PASS),
        (saved(40 * GIB, ""), 50 * GIB, 4096, PASS),  # by the table
        (saved(40 * GIB, ""), 70 * GIB, 4096, WARN),
        # Larger pages never take more of a table; smaller ones do.
        (saved(100 * GIB), 90 * GIB, HUGE, PASS),
        (saved(40 * GIB), 500 * GIB, HUGE, PASS),
        (saved(500 * GIB, page=HUGE), 90 * GIB, 4096, WARN),
        (saved(500 * GIB, page=HUGE), 501 * GIB, HUGE, FAIL),
        # Of another firmware, driver, version or device; or no result at all.
        (saved(40 * GIB, firmware="2.0"), 50 * GIB, 4096, PASS),
        (saved(40 * GIB, driver="mlx5_core"), 50 * GIB, 4096, PASS),
        (saved(40 * GIB, driver_version="9"), 50 * GIB, 4096, PASS),
        (saved(40 * GIB, hardware="1ded:5007"), 50 * GIB, 4096, PASS),
        (saved(40 * GIB, schema="another"), 50 * GIB, 4096, PASS),
        (saved(-1), 50 * GIB, 4096, PASS),
        ({"schema": RESULT_SCHEMA}, 50 * GIB, 4096, PASS),
        ("no result", 50 * GIB, 4096, PASS),
    ],
)
def test_a_measured_ceiling_counts_instead_of_the_table(
    result: Any, size: int, page: int, status: Status
) -> None:
    host = FakeHost((ERDMA,), calls={"registration.saved": [result]})
    (one,) = capacity(host, process(regions=(region(size, page=page),)))
    assert one.status is status


def test_a_device_that_nobody_knows_is_known_once_it_was_measured() -> None:
    nic = replace(RXE0, driver="other", driver_id=99, verbs=None)
    member = process(regions=(region(5 * GIB),))
    (one,) = capacity(FakeHost((nic,)), member)
    assert one.status is UNKNOWN
    result = saved(10 * GIB, driver="other")
    host = FakeHost((nic,), calls={"registration.saved": [result]})
    (one,) = capacity(host, member)
    # Its provider is not told, so what its table does with pages is not known either.
    assert one.status is UNKNOWN
    nic = replace(RXE0, driver="qede", driver_id=11)
    host = FakeHost((nic,), calls={"registration.saved": [saved(10 * GIB, driver="qede")]})
    (one,) = capacity(host, member)
    assert one.status is PASS
    assert [evidence.source for evidence in one.evidence] == ["/saved"]


def test_measured_memory_keys_bound_regions() -> None:
    """max_mr is what the device tells; fewer are what it gave."""
    result = saved(GIB, MEMORY_KEYS, holds_regions=1)
    host = FakeHost((ERDMA,), calls={"registration.saved": [result]})
    (one,) = found("rdma.resources", host, launch(process()))
    assert (one.status, "1 regions in all" in one.text) == (FAIL, True)
    # How much memory it holds says nothing of how many regions there may be.
    host = FakeHost((ERDMA,), calls={"registration.saved": [saved(GIB, holds_regions=1)]})
    (one,) = found("rdma.resources", host, launch(process()))
    assert one.status is PASS


def test_what_to_change_is_computed() -> None:
    """Two processes of 40 GiB on two eRDMA NICs: 80 GiB on each, 16 GiB over 64."""
    nics = (ERDMA, replace(ERDMA, name="rxe1", netdev="eth1", address="10.0.1.1"))
    members = [process(name=f"rank {n}", regions=(region(40 * GIB),)) for n in range(2)]
    (one,) = capacity(FakeHost(nics), *members)
    assert one.status is WARN
    assert one.need == f"80.00 GiB, {80 * GIB // 4096} entries"
    assert one.formula == "2 processes: 80.00 GiB / 4 KiB"
    assert f"move the 80.00 GiB of 4 KiB pages to huge pages ({80 * GIB // HUGE}" in one.advice
    assert "register 16.00 GiB less on this NIC" in one.advice
    assert f"name one of the 2 NICs ({40 * GIB // 4096} entries on the fullest)" in one.advice
    assert with_settings({}, one.settings) == {"MC_STORE_USE_HUGEPAGE": "1"}
    # As advised, each way; the third is what is left on one NIC.
    apart = [
        process(nic.name, name=member.name, regions=member.regions)
        for nic, member in zip(nics, members, strict=True)
    ]
    huge, less = (process(regions=(r,)) for r in (region(80 * GIB, page=HUGE), region(64 * GIB)))
    for tried in (apart, [huge], [less]):
        found = capacity(FakeHost(nics), *tried)
        assert {finding.status for finding in found} == {PASS}


def test_what_is_not_known_never_passes_and_what_is_too_much_stays_so() -> None:
    unsized = process(name="rank 1", regions=Unknown("$SIZE is not set"))
    small = process(regions=(region(GIB),))
    large = process(regions=(region(70 * GIB),))
    (one,) = capacity(FakeHost((ERDMA,)), small, unsized)
    assert (one.status, one.text) == (UNKNOWN, "$SIZE is not set")
    (one,) = capacity(FakeHost((ERDMA,)), large, unsized)
    assert one.status is WARN
    assert one.need.endswith("or more")
    # The KV cache on the GPU is registered too, and only a start tells its size.
    decode = small._replace(gpu_registered_bytes=Unknown("the KV cache on the GPU"))
    (one,) = capacity(FakeHost((ERDMA,)), decode)
    assert (one.status, one.need) == (UNKNOWN, f"1.00 GiB, {GIB // 4096} entries or more")
    gpu = small._replace(gpu_registered_bytes=GIB)
    (one,) = capacity(FakeHost((ERDMA,)), gpu)
    assert one.formula == "1 process: 1.00 GiB / 4 KiB + 1.00 GiB / 64 KiB"
    # So does a process whose devices are not known: it may use this one.
    assert small.rdma is not None
    lost = small._replace(name="rank 2", rdma=small.rdma._replace(devices=Unknown("$NICS")))
    found = capacity(FakeHost((ERDMA,)), small, lost)
    assert {(f.subject, f.status) for f in found} == {("rank 2", UNKNOWN), ("rxe0", UNKNOWN)}


# SGLang HiCache with Mooncake benchmark, A10 cluster: three machines of 2 A10 and 2 eRDMA NICs;
# 30 GB of client beside the server, 60 GB on the other two. GB is GiB to mooncake_client.
def client(size: str) -> str:
    return (
        f"mooncake_client --global_segment_size={size} --protocol=rdma "
        "--device_names=erdma_0,erdma_1 --master_server_address=127.0.0.1:50051"
    )


def server() -> str:
    return (LAUNCHES / "a10-l1-l2-mooncake.sh").read_text()


Judged = Callable[[str, Mapping[str, str]], dict[str, Finding]]


@pytest.fixture(scope="module")
def erdma_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_host(tmp_path_factory.mktemp("erdma") / "host", erdma_host()))


@pytest.fixture
def on_erdma(tmp_path: Path, erdma_root: str) -> Judged:

    def judged(text: str, environment: Mapping[str, str]) -> dict[str, Finding]:
        file = tmp_path / "launch.sh"
        names = {"MODEL_PATH": "Qwen/Qwen3-14B", "DEVICE_LIST": "erdma_0,erdma_1", **environment}
        exports = "".join(f"export {name}={value}\n" for name, value in names.items())
        file.write_text(exports + text)
        words = LaunchWords((str(file),), mooncake_version="0.3.13.post1", gpu_bytes=24 * 10**9)
        sized = size_and_needs(words, open_host(erdma_root))
        assert sized is not None
        rdma = read_rdma(Root(erdma_root), sized.needs)
        found = judge(Facts({"rdma": rdma}), sized.needs, CHECKS.problems)
        return {finding.check: finding for finding in found if "erdma" in finding.subject}

    return judged


def test_the_largest_process_takes_a_nic_first() -> None:
    """30, 30 and 60 GiB: one NIC holds the last, the other the first two; in turn none would."""
    nics = (ERDMA, replace(ERDMA, name="rxe1", netdev="eth1", address="10.0.1.1"))
    sizes = enumerate((30, 30, 60))
    members = [process(name=f"rank {n}", regions=(region(size * GIB),)) for n, size in sizes]
    (one,) = capacity(FakeHost(nics), *members)
    assert f"name one of the 2 NICs ({60 * GIB // 4096} entries on the fullest)" in one.advice


@pytest.mark.parametrize(
    ("text", "environment", "status"),
    [
        (client("30GB"), {}, PASS),
        (client("60GB"), {}, PASS),
        (client("64GB"), {}, PASS),
        (client("70GB"), {}, WARN),
        (client("70GB"), {"MC_STORE_USE_HUGEPAGE": "1"}, PASS),
        # Ratio 2 of what is free beside 14 GB of weights on 24 GB is 2.6 GiB for each of two ranks.
        (server(), {}, PASS),
        (f"{client('30GB')} &\n{server()}", {}, PASS),
        (f"{client('60GB')} &\n{server()}", {}, WARN),
        (f"{client('60GB')} &\n{server()}", {"MC_STORE_USE_HUGEPAGE": "1"}, PASS),
    ],
    ids=["30", "60", "64", "70", "70 huge", "ratio 2", "30+2", "60+2", "60+2 huge"],
)
def test_the_a10_benchmark_on_erdma(
    on_erdma: Judged, text: str, environment: Mapping[str, str], status: Status
) -> None:
    finding = on_erdma(text, environment)[CAPACITY]
    assert finding.status is status
    assert finding.subject == "erdma_0-1 (each of 2)"
