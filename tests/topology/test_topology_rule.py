"""Mooncake's rule for the NICs of each node and GPU, and the check that holds it against PCI.

That the rule is the library's own is proven in tests/real/test_topology_real.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Finding, Status
from checks.base.needs import RdmaUse
from checks.base.unknown import Unknown
from checks.placement.mooncake_topology import (
    ANY_PROCESS,
    View,
    differences,
    parse_locations,
    pci_steps,
    predicted,
)
from checks.placement.node_checks import CHECKS
from checks.releases.mooncake import mooncake_release
from checks.run.facts import Facts
from tests.builders.synthetic import (
    SyntheticHost,
    erdma_host,
    gpu_host,
    limited_container,
    read_host,
)
from tests.builders.topology_hosts import (
    integrated_beside_switches,
    no_nodes_named,
    one_nic_without_node,
    random_host,
    shallow_on_the_other_socket,
)
from tests.checks.judged import judged
from tests.checks.ranks import GIB, launch, rank
from tests.tables import each_row

TOPICS = ("gpus", "numa", "pci", "rdma")
OLD = mooncake_release("0.3.7.post2")
CHECK = next(pair for pair in CHECKS.checks if pair[0].id == "topology.mooncake-view")


def read(folder: Path, host: SyntheticHost) -> Facts:
    return read_host(folder / "root", host, topics=TOPICS)


def view_of(facts: Facts, release: Any = None, **changes: Any) -> dict[str, tuple[Any, Any]]:
    view = predicted(
        facts.numa, facts.pci, facts.gpus, facts.rdma, ANY_PROCESS._replace(**changes), release
    )
    assert isinstance(view, View)
    return {place.name: (place.preferred, place.others) for place in view.locations}


def test_a_node_prefers_the_nics_that_name_it_and_a_gpu_those_of_its_switch(tmp_path: Path) -> None:
    view = view_of(read(tmp_path, gpu_host()))
    every = tuple(f"mlx5_{number}" for number in range(8))
    assert view["cpu:1"] == (every[4:], every[:4])
    assert view["cuda:5"] == (every[4:6], (*every[:4], *every[6:]))
    assert len(view) == 2 + 8


def test_without_a_node_named_nothing_is_preferred_for_the_host(tmp_path: Path) -> None:
    """GPUs go by the number of steps alone then."""
    view = view_of(read(tmp_path, no_nodes_named()))
    assert view["cpu:0"][0] == view["cpu:1"][0] == ()
    assert view["cuda:7"][0] == ("mlx5_6", "mlx5_7")


def test_the_rule_before_nodes_were_looked_at(tmp_path: Path) -> None:
    """A root port of the other socket was nearer than a NIC of the GPU's own node."""
    facts = read(tmp_path, shallow_on_the_other_socket())
    assert view_of(facts, OLD)["cuda:0"][0] == ("mlx5_1",)
    assert view_of(facts, mooncake_release("0.3.8"))["cuda:0"][0] == ("mlx5_0",)


def test_a_nic_without_node_comes_last_where_others_name_theirs(tmp_path: Path) -> None:
    """Although it shares a switch with the GPU."""
    view = view_of(read(tmp_path, one_nic_without_node()))
    assert view["cuda:7"][0] == ("mlx5_6",)
    assert not any("mlx5_7" in preferred for preferred, _ in view.values())


def test_devices_by_name_and_gpus_by_number_are_the_process_own(tmp_path: Path) -> None:
    facts = read(tmp_path, gpu_host())
    named = RdmaUse(("mlx5_6", "mlx5_1"), "--device")
    view = view_of(facts, rdma=named, environment={"CUDA_VISIBLE_DEVICES": "7,0"})
    assert view["cuda:0"] == (("mlx5_6",), ("mlx5_1",))
    assert view["cuda:1"] == (("mlx5_1",), ("mlx5_6",))
    assert "cuda:2" not in view


def test_a_build_without_cuda_has_no_location_of_a_gpu(tmp_path: Path) -> None:
    facts = read(tmp_path, gpu_host())
    view = predicted(
        facts.numa, facts.pci, facts.gpus, facts.rdma, ANY_PROCESS, None, knows_gpus=False
    )
    assert isinstance(view, View)
    assert [place.name for place in view.locations] == ["cpu:0", "cpu:1"]


def test_a_topology_of_the_users_own_is_taken_as_it_is(tmp_path: Path) -> None:
    facts = read(tmp_path, gpu_host())
    rows = {"cpu:0": [["mlx5_3"], ["mlx5_0"]], "cuda:10": [[], []], "cuda:9": [["mlx5_9"], []]}
    path = "/etc/topology.json"
    rdma = facts.rdma._replace(topologies={path: json.dumps(rows)})
    custom = Facts({name: facts.topic(name) for name in TOPICS} | {"rdma": rdma})
    view = view_of(custom, environment={"MC_CUSTOM_TOPO_JSON": path})
    # mlx5_9 is not there, and is taken out of every location.
    assert list(view.items()) == [
        ("cpu:0", (("mlx5_3",), ("mlx5_0",))),
        ("cuda:9", ((), ())),
        ("cuda:10", ((), ())),
    ]


def test_what_is_not_known_is_no_choice(tmp_path: Path) -> None:
    """A NIC whose node cannot be read may be of any; a GPU whose bridges cannot, anywhere."""
    host = gpu_host()
    folder = "/".join(("/sys/devices", *host.gpus[0].parents, host.gpus[0].address))
    damaged = replace(host, files={f"{folder}/numa_node": "?"})
    view = view_of(read(tmp_path, damaged))
    assert isinstance(view["cuda:0"][0], Unknown)
    assert view["cuda:1"][0] == ("mlx5_0", "mlx5_1")


@pytest.mark.parametrize(
    ("one", "other", "steps"),
    [
        ("/a/pci0000:10/0000:10:01.0", "/a/pci0000:10/0000:10:02.0", 0),
        ("/a/pci0000:10/0000:10:01.0", "/a/pci0000:20/0000:20:01.0", 2),
        ("/a/pci0000:10/0000:10:01.0", "/a/pci0000:10/0000:10:01.0/0000:11:00.0", 1),
        ("/a", "/a", 0),
    ],
)
def test_steps_are_slashes_behind_what_is_common(one: str, other: str, steps: int) -> None:
    assert pci_steps(one, other) == pci_steps(other, one) == steps


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_every_location_names_every_device_once(tmp_path_factory: Any, seed: int) -> None:
    """Whatever the host: nothing is lost, nothing is there twice."""
    host = random_host(seed)
    facts = read(tmp_path_factory.mktemp("host"), host)
    for release in (None, OLD):
        view = view_of(facts, release)
        assert len(view) == host.nodes + len(host.gpus)
        for preferred, others in view.values():
            assert sorted((*preferred, *others)) == sorted(nic.name for nic in host.nics)


@each_row(
    "rows", [[], "x", None, {"cpu:0": []}, {"cpu:0": [[], [1]]}, {"cpu:0": {"a": 1}}, {"nics": []}]
)
def test_what_is_no_topology_is_said_so(rows: object) -> None:
    assert isinstance(parse_locations(rows), Unknown)


def test_the_order_of_names_is_no_difference() -> None:
    one, other, third = (
        parse_locations({"cpu:0": [names, []]}) for names in (["a", "b"], ["b", "a"], ["a"])
    )
    assert isinstance(one, tuple)
    assert isinstance(other, tuple)
    assert isinstance(third, tuple)
    assert differences(one, other) == ()
    assert differences(one, third) == (("cpu:0", "a, b; then none", "a; then none"),)
    assert differences(one, ()) == (("cpu:0", "a, b; then none", "no such location"),)


# The check ----------------------------------------------------------------------------------------


def found(folder: Path, host: SyntheticHost, needs: Any = None) -> list[Finding]:
    return judged(CHECK, read(folder, host), needs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "statuses"),
    [
        (gpu_host, [Status.PASS] * 4),  # two GPUs of a switch are one row
        (erdma_host, [Status.PASS]),
        (shallow_on_the_other_socket, [Status.PASS]),
        (integrated_beside_switches, [Status.WARN]),
        (one_nic_without_node, [Status.PASS] * 4),
        (no_nodes_named, [Status.PASS] * 4),
        (limited_container, [Status.SKIP]),
    ],
)
def test_a_host_is_judged_gpu_by_gpu(
    make: Callable[[], SyntheticHost], statuses: list[Status], tmp_path: Path
) -> None:
    assert [finding.status for finding in found(tmp_path, make())] == statuses


def test_a_nearer_nic_in_use_is_named(tmp_path: Path) -> None:
    """Through one bridge less and the CPU, rather than through their common switch."""
    (finding,) = found(tmp_path, integrated_beside_switches())
    assert finding.have == "mlx5_1 PHB preferred"
    assert "mlx5_1 PHB" in finding.text
    assert "mlx5_0 PXB is in use" in finding.text
    assert finding.advice.startswith("name mlx5_0 for it")


def test_an_older_release_is_judged_by_its_own_rule(tmp_path: Path) -> None:
    needs = launch(rank(0, gpu_registered_bytes=GIB), mooncake="0.3.7.post2")
    (finding,) = found(tmp_path, shallow_on_the_other_socket(), needs)
    assert finding.status is Status.WARN
    assert "mlx5_1 SYS" in finding.text
    assert "0.3.8 and later" in finding.advice
    newer = launch(rank(0, gpu_registered_bytes=GIB), mooncake="0.3.8")
    assert found(tmp_path / "new", shallow_on_the_other_socket(), newer)[0].status is Status.PASS


def test_only_devices_in_use_count(tmp_path: Path) -> None:
    """That a nearer one is left out is numa.gpu-nic-distance's to say."""
    use = RdmaUse(("mlx5_4",), "--device")
    needs = launch(rank(0, gpu_registered_bytes=GIB, rdma=use))
    (finding,) = found(tmp_path, gpu_host(), needs)
    assert (finding.status, finding.have) == (Status.PASS, "mlx5_4 alone")


def test_host_memory_goes_by_its_node(tmp_path: Path) -> None:
    """A launch that registers no memory of GPUs has nothing to judge here."""
    (finding,) = found(tmp_path, integrated_beside_switches(), launch(rank(0)))
    assert finding.status is Status.SKIP


def test_a_gpu_without_location_may_take_any(tmp_path: Path) -> None:
    """As where a file of the user's own leaves it out: a far one among them is a warning."""
    facts = read(tmp_path, gpu_host())
    path = "/etc/topology.json"
    every = [f"mlx5_{number}" for number in range(8)]
    content = json.dumps({"cpu:0": [every, []]})
    rdma = facts.rdma._replace(topologies={path: content})
    custom = Facts({name: facts.topic(name) for name in TOPICS} | {"rdma": rdma})
    process = rank(0, gpu_registered_bytes=GIB, environment={"MC_CUSTOM_TOPO_JSON": path})
    (finding,) = judged(CHECK, custom, launch(process))
    assert finding.status is Status.WARN
    assert "mlx5_0 PIX, mlx5_1 PIX is in use" in finding.text


def test_a_path_that_is_not_known_is_no_pass(tmp_path: Path) -> None:
    """Two NICs without a node on another host bridge may be nearer than the one preferred."""
    host = shallow_on_the_other_socket()
    unnamed = replace(host, nics=[host.nics[0], host.nics[1]._replace(node=None)])
    (finding,) = found(tmp_path, unnamed)
    assert finding.status is Status.UNKNOWN
    assert "its NUMA node is not known" in finding.text
