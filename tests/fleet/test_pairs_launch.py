"""What a launch decides of a pair: its devices, port, GID, MTU, ports of TCP, and whom it pairs."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.base.needs import LaunchNeeds, ProcessNeeds, RdmaUse
from checks.base.root import Root
from checks.network.routing import RoutingRule, RoutingTables, TableRoute
from checks.run.facts import Facts, read_facts
from preflight.check.rails import rails, rails_in_use, with_exits
from preflight.fleet.base.decode import decoder
from preflight.fleet.pairs.ends import (
    ENGINE,
    engine_span,
    holding,
    launch_here,
    pairs_of,
    wanting,
)
from preflight.fleet.pairs.talk import EndFacts, OpenPort
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


@pytest.mark.parametrize(
    ("environment", "span"),
    [
        ({}, (15000, 17000)),
        ({"MC_MIN_RPC_PORT": "15100", "MC_MAX_RPC_PORT": "15200"}, (15100, 15200)),
        ({"MC_MIN_PRC_PORT": "15100", "MC_MAX_PRC_PORT": "15200"}, (15100, 15200)),
        # Mooncake takes neither where one does not fit: the system's own range, or upside down.
        ({"MC_MIN_RPC_PORT": "40000", "MC_MAX_RPC_PORT": "40100"}, (15000, 17000)),
        ({"MC_MIN_RPC_PORT": "20000"}, (15000, 17000)),
        ({"MC_MIN_RPC_PORT": "x"}, (15000, 17000)),
    ],
)
def test_where_engines_listen(environment: Mapping[str, str], span: tuple[int, int]) -> None:
    assert engine_span(environment) == span


@pytest.mark.parametrize(("protocol", "over"), [("rdma", "rdma"), ("tcp", "tcp")])
def test_what_the_data_goes_over(tmp_path: Path, protocol: str, over: str) -> None:
    path = tmp_path / "launch.sh"
    lines = ["export MOONCAKE_MASTER=10.0.0.1:50051", f"export MOONCAKE_PROTOCOL={protocol}"]
    path.write_text(
        "\n".join([*lines, "export MC_ENABLE_DEST_DEVICE_AFFINITY=1", " ".join(COMMAND)])
    )
    part = launch_here(LaunchWords((f"{path}",)))
    assert part is not None
    assert (part.over, part.affinity) == (over, "same name" if over == "rdma" else "any")
    assert (ENGINE, 15000, 17000) in part.spans


def test_ports_are_held_where_they_are_free() -> None:
    """One that somebody has is left alone: what answers there is not known."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with holding("127.0.0.1", (("a", port, port), ("b", port, port + 50))) as held:
            ((what, number),) = held
            assert (what, port < number <= port + 50) == ("b", True)
            socket.create_connection(("127.0.0.1", number), 30).close()
    with holding("192.0.2.1", (("a", 15000, 15010),)) as held:
        assert held == ()
    assert OpenPort("a", 1)._fields == ("what", "port")


def node(affinity: str, *devices: str) -> EndFacts:
    rows = [
        {
            "device": device,
            "port": 1,
            "used": True,
            "state": "ACTIVE",
            "rate": "400",
            "link_layer": "Ethernet",
            "mtu_bytes": 4096,
            "gid_index": 3,
            "gid_type": "RoCE v2",
            "gid": f"10.{at}.0.1",
            "netdev": "eth0",
            "netdev_mtu_bytes": 9000,
            "addresses": [],
        }
        for at, device in enumerate(devices)
    ]
    said = {"rails": rows, "routes": [], "over": "rdma", "affinity": affinity}
    found: EndFacts = decoder(EndFacts)(said, "")
    return found


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
    one, other = node(affinity, "a", "b"), node(affinity, "a", "b")
    found = pairs_of(one, other, asked)
    assert [here.rail.device + there.rail.device for here, there in found] == pairs
