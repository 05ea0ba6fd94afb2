"""What a launch decides of a pair: its devices, port, GID, MTU, ports of TCP, and whom it pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.base.root import Root
from checks.network.routing import RoutingRule, RoutingTables, TableRoute
from checks.run.facts import Facts, read_facts
from preflight.check.machine import affinity_of
from preflight.check.rails import rails, rails_in_use, with_exits
from preflight.fleet.pairs.end import EndFacts, UsedPort, launch_needs_here, pairs_of, wanting
from preflight.inputs.launch_words import LaunchWords
from tests.builders.synthetic import build_host, gpu_host

COMMAND = (
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 1 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"
).split()


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    root = Root(f"{build_host(tmp_path_factory.mktemp('host') / 'root', gpu_host())}")
    return read_facts(root, None, 600.0, ("rdma",))


def process(name: str, *devices: str, **environment: str) -> ProcessNeeds:
    return ProcessNeeds(name, "sglang", environment, rdma=RdmaUse(devices, "test"))


def taken(facts: Facts, *processes: ProcessNeeds) -> list[tuple[str, int, object, str]]:
    needs = LaunchNeeds("launch.sh", processes, ())
    return [
        (rail.device, rail.port, rail.gid_index, use.environment.get("MC_MTU", ""))
        for rail, use in rails_in_use(facts.rdma, needs)
    ]


def test_the_devices_and_the_gid_are_the_launchs(facts: Facts) -> None:
    """Those it names, with the index it gives; without one, Mooncake's own choice."""
    ranks = [process(f"rank {rank}", "mlx5_1", "mlx5_2", MC_GID_INDEX="1") for rank in range(2)]
    assert taken(facts, *ranks) == [("mlx5_1", 1, 1, ""), ("mlx5_2", 1, 1, "")]
    assert taken(facts, process("rank 0", "mlx5_0")) == [("mlx5_0", 1, 3, "")]


def test_processes_that_differ_are_tried_each(facts: Facts) -> None:
    """A store of its own may speak from another GID, and with another MTU, than the server."""
    store = process("store", "mlx5_0", NCCL_IB_GID_INDEX="1", MC_MTU="1024")
    found = taken(facts, process("rank 0", "mlx5_0"), store)
    assert found == [("mlx5_0", 1, 3, ""), ("mlx5_0", 1, 1, "1024")]


def test_the_port_is_that_of_mc_ib_port(facts: Facts) -> None:
    """Port 2 is no port of these devices: none is in use, in a report either."""
    other = process("rank 0", "mlx5_0", MC_IB_PORT="2")
    assert taken(facts, other) == []
    needs = LaunchNeeds("launch.sh", (other,), ())
    found = rails(facts, needs)
    assert isinstance(found, tuple)
    assert [rail.used for rail in found] == [False] * 8
    assert "rank 0 gets no RDMA device" in wanting(facts.rdma, needs)


def test_what_is_behind_an_interface_is_in_the_report(facts: Facts) -> None:
    """By the rules for that GID's address; of a capture without any, why it is not known."""
    found = rails(facts, None)
    assert isinstance(found, tuple)
    rail = found[0]
    assert "not read" in str(rail.exits)
    source = f"{rail.gid}/32"
    rule = RoutingRule(4, 100, 1, 101, False, source, "", "", "", None, None, None, ())
    route = TableRoute(4, 101, 1, "10.0.0.0/8", "10.0.0.254", str(rail.netdev))
    assert with_exits(rail, RoutingTables((rule,), (route,))).exits == ("10.0.0.0/8",)
    assert with_exits(found[1], RoutingTables((rule,), (route,))).exits == ()


@pytest.mark.parametrize(("protocol", "over"), [("rdma", "rdma"), ("tcp", "tcp")])
def test_what_the_data_goes_over(tmp_path: Path, protocol: str, over: str) -> None:
    path = tmp_path / "launch.sh"
    lines = ["export MOONCAKE_MASTER=10.0.0.1:50051", f"export MOONCAKE_PROTOCOL={protocol}"]
    path.write_text(
        "\n".join([*lines, "export MC_ENABLE_DEST_DEVICE_AFFINITY=1", " ".join(COMMAND)])
    )
    needs = launch_needs_here(LaunchWords((f"{path}",)))
    assert needs is not None
    assert bool(needs.rdma_processes) is (over == "rdma")
    assert affinity_of(needs) == ("same name" if over == "rdma" else None)


@pytest.mark.parametrize(
    ("affinity", "asked", "pairs"),
    [
        ("any", "", ["aa", "bb", "ab", "ba"]),
        ("same name", "", ["aa", "bb"]),
        ("any", "same", ["aa", "bb"]),
        ("same name", "any", ["aa", "bb", "ab", "ba"]),
    ],
)
def test_whom_is_tried_with_whom(affinity: str, asked: str, pairs: list[str]) -> None:
    """As the launch has it, or as was asked; equal names first, should the time run out."""
    ports = tuple(UsedPort(device, 1, 3, "10.0.0.1") for device in "ab")
    one = EndFacts(ports, "rdma", affinity)
    assert [here.device + there.device for here, there in pairs_of(one, one, asked)] == pairs


def test_a_name_that_the_other_side_lacks_is_tried_with_any() -> None:
    """By either side's own choice: Mooncake falls back to any NIC for it."""
    one, other = (
        EndFacts(tuple(UsedPort(device, 1, 3, "10.0.0.1") for device in devices), "rdma", affinity)
        for devices, affinity in (("ac", "same name"), ("ab", "same name"))
    )
    found = [here.device + there.device for here, there in pairs_of(one, other, "")]
    assert sorted(found) == ["aa", "ab", "ca", "cb"]
