"""What no node can see alone: versions, masters, services, path MTU, addresses, subnets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fleet.merge_fleets import (
    Change,
    Report,
    Told,
    every,
    fleet_reports,
    launch,
    merged_reports,
    rails,
    told,
)


def with_wheels(nodes: str, odd: Mapping[int, str], **changes: object) -> list[Report]:
    """Mooncake 0.3.14 on all of them, but for those by number."""
    reports = every(launch(**changes), nodes)
    for at, report in enumerate(reports):
        report["facts"]["wheel.mooncake"] = odd.get(at, "mooncake-transfer-engine 0.3.14")
    return reports


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        ("0.3.12", "fail", 2),
        ("0.3.13", "warn", 1),  # a client 0.3.13 worked with a master 0.3.14
        ("0.3.15", "unknown", 3),
    ],
)
def test_a_client_with_another_mooncake_than_most(
    tmp_path: Path, version: str, status: str, code: int
) -> None:
    reports = with_wheels("gpu[1-5]", {2: f"mooncake-transfer-engine {version}"})
    fleet = merged_reports(tmp_path, reports)
    assert told(fleet, "fleet.mooncake-version") == [(status, "gpu3", f"Mooncake {version}")]
    assert fleet.exit_code == code
    assert "wheel.mooncake" not in {one.fact for one in fleet.drift}


def test_the_masters_version_is_right_however_few_have_it(tmp_path: Path) -> None:
    """gpu1 runs the master: the others are the ones that it does not understand."""
    odd = {0: "mooncake-transfer-engine 0.3.12"}
    fleet = merged_reports(tmp_path, with_wheels("gpu[1-4]", odd, masters=["gpu1:50051"]))
    assert told(fleet, "fleet.mooncake-version") == [("fail", "gpu[2-4]", "Mooncake 0.3.14")]


def test_flavours_of_one_version_are_one_version(tmp_path: Path) -> None:
    reports = with_wheels("gpu[1-4]", {1: "mooncake-transfer-engine-cuda13 0.3.14"})
    fleet = merged_reports(tmp_path, reports)
    assert told(fleet, "fleet.mooncake-version") == []
    assert "wheel.mooncake" in {one.fact for one in fleet.drift}


@pytest.mark.parametrize(
    ("masters", "expected"),
    [
        (["10.9.0.1:50051"] * 4, []),
        (["10.9.0.1"] + ["10.9.0.1:50051"] * 3, []),
        (["10.9.0.1:50051"] * 3 + ["10.9.0.1:50052"], [("fail", "gpu4", "10.9.0.1:50052")]),
        (["gpu1:50051"] * 3 + ["gpu2:50051"], [("fail", "gpu4", "gpu2:50051")]),
        (["gpu1:50051"] * 3 + ["10.10.0.1:50051"], []),  # an address of gpu1
        (["10.9.0.1:50051"] * 3 + ["10.9.0.2:50051"], [("unknown", "gpu4", "10.9.0.2:50051")]),
        (["10.9.0.1:50051"] * 3 + ["master:50051"], [("unknown", "gpu4", "master:50051")]),
        (["127.0.0.1:50051"] + ["gpu1:50051"] * 3, []),
        (["127.0.0.1:50051"] + ["gpu2:50051"] * 3, [("fail", "gpu1", "127.0.0.1:50051")]),
        (["localhost:50051"] * 4, [("fail", "gpu[1-4]", "localhost:50051")]),
        (["127.0.0.1:50051"] * 2 + ["gpu3:50051"] * 2, [("fail", "gpu[1-2]", "127.0.0.1:50051")]),
        (["a:1"] * 2 + ["b:2"] * 2, [("fail", "gpu[1-4]", "b:2")]),
    ],
)
def test_one_master_for_all(masters: list[str], expected: Told, tmp_path: Path) -> None:
    """An alias cannot be told from another machine: that is unknown. Two ports are two masters."""
    reports = fleet_reports("gpu[1-4]")
    for report, master in zip(reports, masters, strict=True):
        report["launch"]["masters"] = [master]
    fleet = merged_reports(tmp_path, reports)
    assert told(fleet, "fleet.master") == expected


def test_a_lone_node_may_be_its_own_master(tmp_path: Path) -> None:
    fleet = merged_reports(tmp_path, every(launch(masters=["127.0.0.1:50051"]), "gpu1"))
    assert told(fleet, "fleet.master") == []


@pytest.mark.parametrize(
    ("change", "check", "expected"),
    [
        (
            launch(services=[["advertised", "10.1.1.1", True]]),
            "fleet.advertised",
            [("fail", "gpu[1-4]", "10.1.1.1")],
        ),
        (
            launch(services=[["metadata-http", "localhost:8080", False]]),
            "fleet.metadata",
            [("fail", "gpu[1-4]", "localhost:8080")],
        ),
        (
            lambda report: report.update(boot="one-machine"),
            "fleet.same-machine",
            [("warn", "gpu[1-4]", "boot one-machine")],
        ),
    ],
)
def test_what_every_node_says_alike_and_may_not(
    change: Change, check: str, expected: Told, tmp_path: Path
) -> None:
    assert told(merged_reports(tmp_path, every(change)), check) == expected


@pytest.mark.parametrize(
    ("change", "limit", "expected"),
    [
        (rails(mtu_bytes=1024), 4096, [("fail", "gpu3", "path MTU 1024 B")]),
        (rails(mtu_bytes=1024), None, [("unknown", "gpu3", "path MTU 1024 B")]),
        (rails(mtu_bytes=1024), 1024, []),  # MC_MTU=1024 everywhere: all paths are equal
        (rails(mtu_bytes=1024, used=False), 4096, []),
        (launch(protocol="tcp"), 4096, []),
    ],
)
def test_the_ends_of_a_path_have_one_mtu(
    change: Change, limit: int | None, expected: Told, tmp_path: Path
) -> None:
    reports = fleet_reports("gpu[1-5]", {"gpu3": change})
    for report in reports:
        report["launch"]["mtu_limit_bytes"] = limit
    assert told(merged_reports(tmp_path, reports), "fleet.path-mtu") == expected


def test_a_store_that_speaks_another_protocol_than_most(tmp_path: Path) -> None:
    reports = fleet_reports("gpu[1-5]", {"gpu3": launch(protocol="tcp")})
    assert told(merged_reports(tmp_path, reports), "fleet.protocol") == [("warn", "gpu3", "tcp")]


def test_an_address_that_two_machines_have_fails(tmp_path: Path) -> None:
    """Link-local and loopback addresses are each machine's own; a text is no address."""
    reports = fleet_reports("gpu[1-5]")
    reports[3]["rails"][2] = reports[1]["rails"][2]
    expected = [("fail", "gpu[2,4]", "10.12.0.2 on mlx5_2 of each")]
    assert told(merged_reports(tmp_path, reports), "fleet.address") == expected
    for report in reports:
        report["rails"][0]["addresses"] = ["169.254.0.1/16", "127.0.0.1/8", "fe80::1/64", "x/1"]
    assert told(merged_reports(tmp_path, reports), "fleet.address") == expected
