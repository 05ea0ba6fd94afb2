"""Mooncake's rule for the NICs of each node and GPU, the check that holds it against PCI, and what
an installed Mooncake answers whatever it does.

That the rule is the library's own is proven in tests/real/test_topology_real.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checks.placement.mooncake_topology as calls
from checks.framework.finding import Finding, Status
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.placement.mooncake_topology import (
    ANY_PROCESS,
    View,
    differences,
    parse_locations,
    pci_steps,
    predict_view,
)
from checks.placement.node_checks import CHECKS
from checks.releases.mooncake import mooncake_release
from checks.run_checks.facts import Facts
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

Patch = pytest.MonkeyPatch
TOPICS = ("gpus", "numa", "pci", "rdma")
OLD = mooncake_release("0.3.7.post2")
CHECK = next(check for check in CHECKS.problems if check.id == "topology.mooncake-view")


def read(folder: Path, host: SyntheticHost) -> Facts:
    return read_host(folder / "root", host, topics=TOPICS)


def view_of(facts: Facts, release: Any = None, **changes: Any) -> dict[str, tuple[Any, Any]]:
    view = predict_view(
        facts.numa, facts.pci, facts.gpus, facts.rdma, ANY_PROCESS._replace(**changes), release
    )
    assert isinstance(view, View)
    return {place.name: (place.preferred, place.others) for place in view.locations}


def of_users(folder: Path, rows: object) -> tuple[Facts, dict[str, str]]:
    """The GPU host with a topology of the user's own, and the environment that names its file."""
    facts, path = read(folder, gpu_host()), "/etc/topology.json"
    rdma = facts.rdma._replace(topologies={path: json.dumps(rows)})
    topics = {name: facts.topic(name) for name in TOPICS} | {"rdma": rdma}
    return Facts(topics), {"MC_CUSTOM_TOPO_JSON": path}


EIGHT = tuple(f"mlx5_{number}" for number in range(8))


@pytest.mark.parametrize(
    ("make", "release", "preferred"),
    [
        # A node prefers the NICs that name it, and a GPU those of its switch.
        (gpu_host, None, {"cpu:1": EIGHT[4:], "cuda:5": EIGHT[4:6]}),
        # Without a node named nothing is preferred for the host; GPUs go by the number of steps.
        (no_nodes_named, None, {"cpu:0": (), "cpu:1": (), "cuda:7": ("mlx5_6", "mlx5_7")}),
        # A root port of the other socket was nearer than a NIC of the GPU's own node.
        (shallow_on_the_other_socket, "0.3.7.post2", {"cuda:0": ("mlx5_1",)}),
        (shallow_on_the_other_socket, "0.3.8", {"cuda:0": ("mlx5_0",)}),
        # Although it shares a switch with the GPU.
        (one_nic_without_node, None, {"cuda:7": ("mlx5_6",), "cpu:1": EIGHT[4:7]}),
    ],
)
def test_what_is_preferred_for_a_location(
    make: Callable[[], SyntheticHost],
    release: str | None,
    preferred: dict[str, tuple[str, ...]],
    tmp_path: Path,
) -> None:
    host = make()
    view = view_of(read(tmp_path, host), mooncake_release(release) if release else None)
    assert {name: view[name][0] for name in preferred} == preferred
    assert len(view) == host.nodes + len(host.gpus)
    nics = {nic.name for nic in host.nics}
    assert all({*first, *others} == nics for first, others in view.values())


def test_a_topology_of_the_users_own_is_taken_as_it_is(tmp_path: Path) -> None:
    rows = {"cpu:0": [["mlx5_3"], ["mlx5_0"]], "cuda:10": [[], []], "cuda:9": [["mlx5_9"], []]}
    custom, environment = of_users(tmp_path, rows)
    view = view_of(custom, environment=environment)
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


def test_the_order_of_names_is_no_difference() -> None:
    bad: tuple[Any, ...] = ([], "x", None, {"cpu:0": []}, {"cpu:0": [[], [1]]}, {"nics": []})
    for rows in (*bad, {"cpu:0": {"a": 1}}):
        assert isinstance(parse_locations(rows), Unknown)
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


def test_a_gpu_without_location_may_take_any(tmp_path: Path) -> None:
    """As where a file of the user's own leaves it out: a far one among them is a warning."""
    custom, environment = of_users(tmp_path, {"cpu:0": [EIGHT, []]})
    process = rank(0, gpu_registered_bytes=GIB, environment=environment)
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


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A module ``mooncake.engine`` of the test's own, for the child alone."""
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "engine.py"


@pytest.mark.slow
def test_the_answer_is_read_behind_what_is_printed(engine: Path, monkeypatch: Patch) -> None:
    """In the process's own environment: this program's Mooncake settings are not the launch's."""
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    engine.write_text(
        "import os, sys\n"
        "print('a log line', flush=True)\n"
        "class TransferEngine:\n"
        "    def get_local_topology(self, devices='all'):\n"
        "        names = [name for name in sorted(os.environ) if name.startswith('MC_')]\n"
        "        import json\n"
        "        return json.dumps({devices: [names, []]}, indent=1)\n"
    )
    ask = calls.local_topology
    assert ask(sys.executable, "", "MC_TE_FILTERS=a=b") == {"all": [["MC_TE_FILTERS"], []]}
    assert ask(sys.executable, "mlx5_0,mlx5_1") == {"mlx5_0,mlx5_1": [[], []]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class TransferEngine: pass\n", "has no get_local_topology, which 0.3.6 and later have"),
        ("import os\nos.abort()\n", "exit code -6"),
        ("raise ImportError('libcuda.so.1: not there')\n", "libcuda.so.1: not there"),
    ],
)
def test_why_there_is_no_answer_is_said(engine: Path, code: str, said: str) -> None:
    engine.write_text(code)
    answer = Root().call("mooncake.local_topology", sys.executable, "")
    assert isinstance(answer, Unknown)
    assert said in answer.reason


@pytest.mark.slow
def test_one_that_hangs_is_ended(engine: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls, "LIMIT_SECONDS", 1)
    engine.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(OSError, match="no answer within 1 s"):
        calls.local_topology(sys.executable, "")


@pytest.mark.slow
def test_no_such_interpreter_is_unknown() -> None:
    assert isinstance(Root().call("mooncake.local_topology", "/no/python", ""), Unknown)
