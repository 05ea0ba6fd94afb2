"""Which devices a process comes to use; the cases marked measured were run on soft-RoCE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.base.needs import ContainerLimits, ProcessNeeds, RdmaUse
from checks.base.unknown import Unknown
from checks.rdma.use import Cause, DevicesInUse, Transport, devices_in_use, uses
from checks.releases.mooncake import mooncake_release, release_of
from tests.checks.rdma_hosts import RXE0, RXE1, FakeHost, FakeNic, closed, facts_of, launch, process

RDMA, TCP, NONE = Transport.RDMA, Transport.TCP, Transport.NONE
NEWEST = mooncake_release("0.3.13.post1")
DOWN = replace(RXE1, state="1: DOWN", physical="3: Disabled")
SHUT = replace(RXE1, node=closed(13, "Permission denied"))
ABSENT = replace(RXE1, node=None)
UNLISTED = replace(RXE1, verbs={"listed": False, "error": "not among the 1 devices"})
REFUSED = replace(
    RXE1, verbs={"listed": True, "opened": False, "errno": 11, "error": "Resource temporarily"}
)
NO_GIDS = replace(RXE1, gids=())


def used(host: FakeHost, folder: Path, asking: ProcessNeeds, release: Any = NEWEST) -> DevicesInUse:
    facts = facts_of(host, folder, launch(asking))
    return devices_in_use(facts, asking, release)


@pytest.mark.parametrize(
    ("limits", "known"),
    [
        (ContainerLimits("pod.yaml:5", "kubernetes"), False),
        (ContainerLimits("a.sh:1", "docker"), False),  # --network of a plugin
        (ContainerLimits("pod.yaml:5", "kubernetes", host_network=True), True),
        (ContainerLimits("a.sh:1", "docker", own_network=True), True),  # nothing is moved into it
        (None, True),
    ],
)
def test_a_network_of_its_own_may_add_the_gid_that_the_host_lacks(
    tmp_path: Path, limits: ContainerLimits | None, known: bool
) -> None:
    asking = process(environment={"NCCL_IB_GID_INDEX": "7"})._replace(container=limits)
    names = used(FakeHost((RXE0,)), tmp_path, asking).names
    if known:
        assert names == ()
    else:
        assert isinstance(names, Unknown)
        assert "entry 7 of the GID table is empty" in names.reason
        assert names.advice.startswith("run this check inside the container")


@pytest.mark.parametrize(
    ("devices", "environment", "names", "transport"),
    [
        ((), {}, ("rxe0", "rxe1"), RDMA),  # measured
        (("rxe1",), {}, ("rxe1",), RDMA),
        (("rxe1", "mlx5_9"), {}, ("rxe1",), RDMA),  # measured: the other is dropped
        (("mlx5_9",), {}, (), NONE),  # measured: 'No available RNIC'
        ((), {"MC_MS_FILTERS": ""}, (), TCP),  # measured: setup returns 0, TCP
        ((), {"MC_MS_FILTERS": " rxe1 "}, ("rxe1",), RDMA),
        ((), {"MC_MS_FILTERS": "mlx5_9"}, (), TCP),
        (("rxe0",), {"MC_MS_FILTERS": "rxe1"}, ("rxe0",), RDMA),  # only with own discovery
        ((), {"MC_TE_FILTERS": "rxe0"}, ("rxe0",), RDMA),
        ((), {"MC_TE_FILTERS": "mlx5_9"}, (), TCP),
        ((), {"MC_TE_FILTERS": ""}, ("rxe0", "rxe1"), RDMA),
        (("rxe1",), {"MC_TE_FILTERS": "rxe0"}, (), NONE),
        (("rxe1",), {"MC_MS_AUTO_DISC": "1"}, ("rxe0", "rxe1"), RDMA),
        ((), {"MC_MS_AUTO_DISC": "0"}, (), NONE),
        ((), {"MC_MS_AUTO_DISC": "yes"}, ("rxe0", "rxe1"), RDMA),
        ((), {"MC_FORCE_TCP": "0"}, (), TCP),
        ((), {"MC_IB_PORT": "2"}, (), NONE),  # measured: listed, then disabled
        ((), {"MC_IB_PORT": "x"}, ("rxe0", "rxe1"), RDMA),
        ((), {"MC_GID_INDEX": "7"}, (), NONE),  # measured
        ((), {"MC_GID_INDEX": "1"}, ("rxe0", "rxe1"), RDMA),  # measured
    ],
)
def test_who_chooses_and_what_comes_of_it(
    tmp_path: Path,
    devices: tuple[str, ...],
    environment: dict[str, str],
    names: tuple[str, ...],
    transport: Transport,
) -> None:
    host = FakeHost((RXE0, RXE1))
    found = used(host, tmp_path, process(*devices, environment=environment))
    assert found.names == names
    assert found.transport is transport


@pytest.mark.parametrize("variable", [{"MC_MS_AUTO_DISC": "0"}, {"MC_MS_FILTERS": "rxe9"}])
def test_sglangs_own_engine_reads_no_variable_of_the_stores_client(
    tmp_path: Path, variable: dict[str, str]
) -> None:
    """transfer_engine_py.cpp discovers whatever they say: a server without a store failed."""
    host, by_store = FakeHost((RXE0, RXE1)), process(environment=variable)
    assert used(host, tmp_path / "store", by_store).names == ()
    assert by_store.rdma is not None
    by_engine = by_store._replace(rdma=by_store.rdma._replace(by_engine=True))
    assert used(host, tmp_path / "engine", by_engine).names == ("rxe0", "rxe1")


@pytest.mark.parametrize(
    ("nic", "cause", "alone"),
    [
        (DOWN, Cause.PORT, TCP),  # measured
        (SHUT, Cause.UVERBS, TCP),
        (ABSENT, Cause.UVERBS, TCP),
        (UNLISTED, Cause.PROVIDER, TCP),
        (REFUSED, Cause.CGROUP, TCP),  # measured
        (NO_GIDS, Cause.PORT, TCP),  # no GID table: not listed
        (replace(RXE1, gids=(None, None)), Cause.GID, NONE),  # an empty one: listed, then dropped
    ],
)
def test_a_device_is_lost_and_why(
    tmp_path: Path, nic: FakeNic, cause: Cause, alone: Transport
) -> None:
    """With another device the launch goes on with that; without, discovery ends in TCP."""
    found = used(FakeHost((RXE0, nic)), tmp_path / "two", process())
    assert found.names == ("rxe0",)
    assert [(lost.name, lost.cause) for lost in found.lost] == [("rxe1", cause)]
    found = used(FakeHost((nic,)), tmp_path / "one", process())
    assert (found.names, found.transport) == ((), alone)
    named = used(FakeHost((nic,)), tmp_path / "named", process("rxe1"))
    assert (named.names, named.transport) == ((), NONE)


def test_a_host_without_devices_silently_becomes_tcp(tmp_path: Path) -> None:
    found = used(FakeHost(()), tmp_path, process())
    assert (found.names, found.transport) == ((), TCP)
    forced = process(environment={"MC_FORCE_HCA": "1"})
    assert used(FakeHost(()), tmp_path / "forced", forced).transport is NONE


def test_missing_names_are_told_apart(tmp_path: Path) -> None:
    found = used(FakeHost((RXE0, DOWN)), tmp_path, process("rxe1", "mlx5_9"))
    assert [one.name for one in found.lost if one.cause is Cause.MISSING] == ["mlx5_9"]
    assert found.candidates == ("rxe1", "mlx5_9")


def test_te_filters_are_not_read_by_older_releases(tmp_path: Path) -> None:
    asking, older = process(environment={"MC_TE_FILTERS": "mlx5_9"}), "0.3.11.post1"
    found = used(FakeHost((RXE0,)), tmp_path / "a", asking, mooncake_release(older))
    assert found.names == ("rxe0",)
    assert used(FakeHost((RXE0,)), tmp_path / "b", asking, None).names == ()


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('{"cpu:0": [["rxe1"], []]}', ("rxe1",)),
        ('{"cpu:0": [["rxe1"], ["rxe0"]]}', ("rxe1", "rxe0")),
        ("not json", ()),
        ("[1, 2]", ()),
        (None, ("rxe0", "rxe1")),  # no such file: Mooncake looks for itself
    ],
)
def test_a_topology_file_names_the_devices(
    tmp_path: Path, content: str | None, names: tuple[str, ...]
) -> None:
    path = "/etc/mooncake/topology.json"
    files = {} if content is None else {path: content}
    asking = process(environment={"MC_CUSTOM_TOPO_JSON": path})
    assert used(FakeHost((RXE0, RXE1), files=files), tmp_path, asking).names == names


def test_what_cannot_be_told_is_unknown(tmp_path: Path) -> None:
    unset = process()._replace(rdma=RdmaUse(Unknown("$DEVICES is not set"), "--device"))
    for name, asking in {"a": unset, "b": process(environment={"MC_USE_TENT": "1"})}.items():
        assert isinstance(used(FakeHost((RXE0,)), tmp_path / name, asking).names, Unknown)


@pytest.mark.parametrize("parts", [frozenset(), frozenset({"efa"})])
def test_a_library_without_tent_goes_on_with_the_classic_engine(
    tmp_path: Path, parts: frozenset[str]
) -> None:
    """The published wheels: the variable switches nothing on."""
    here = facts_of(FakeHost((RXE0,)), tmp_path)._replace(parts=parts)
    asking = process(environment={"MC_USE_TENT": "1"})
    assert devices_in_use(here, asking).names == ("rxe0",)
    for other in (here._replace(parts=parts | {"tent"}), here._replace(parts=Unknown("x"))):
        assert isinstance(devices_in_use(other, asking).names, Unknown)
    elsewhere = asking._replace(container=ContainerLimits("run.sh:1", "docker"))
    assert isinstance(devices_in_use(here, elsewhere).names, Unknown)


def test_one_device_in_doubt_makes_the_set_unknown(tmp_path: Path) -> None:
    """Registered memory is charged per device, so a guess would understate it."""
    host = FakeHost((RXE0, RXE1), calls={"rdma.verbs rxe1": {"unknown": "not recorded"}})
    assert isinstance(used(host, tmp_path / "all", process()).names, Unknown)
    assert used(host, tmp_path / "named", process("rxe0")).names == ("rxe0",)


def test_processes_alike_are_judged_together(tmp_path: Path) -> None:
    ranks = [process(name=f"rank {rank}") for rank in range(3)]
    other = process("rxe1", name="client")
    needs = launch(*ranks, other)
    found = uses(facts_of(FakeHost((RXE0, RXE1)), tmp_path), needs)
    names = [[one.name for one in use.processes] for use in found]
    assert names == [["rank 0", "rank 1", "rank 2"], ["client"]]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.3.13.post1", (0, 3, 13, 0)),
        ("0.3.14", (0, 3, 14, 0)),
        ("v0.3.9rc1", (0, 3, 9, 0)),
        ("", None),
        ("main", None),
    ],
)
def test_releases(text: str, release: tuple[int, ...] | None) -> None:
    row = release_of(text)
    assert (None if row is None else row.first) == release
