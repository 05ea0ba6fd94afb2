"""Which devices and which GID a process comes to use, by release and as its variables are read; the
cases marked measured were run on soft-RoCE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checks.framework.needs import ContainerLimits, ProcessNeeds
from checks.framework.unknown import Unknown
from checks.framework.written_numbers import leading_integer
from checks.rdma.devices import IB, ROCE_1, ROCE_2, Gid, GidChoice, Port, asked_index, choose_gid
from checks.rdma.use import Cause, DevicesInUse, Transport, devices_in_use
from checks.releases.mooncake import MooncakeRelease, mooncake_release
from tests.checks.rdma_hosts import RXE0, RXE1, FakeHost, FakeNic, closed, facts_of, launch, process
from tests.tables import each_row

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


def used(host: FakeHost, asking: ProcessNeeds, release: Any = NEWEST) -> DevicesInUse:
    facts = facts_of(host, launch(asking))
    return devices_in_use(facts, asking, release)


@each_row(
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
    limits: ContainerLimits | None, known: bool
) -> None:
    asking = process(environment={"NCCL_IB_GID_INDEX": "7"})._replace(container=limits)
    names = used(FakeHost((RXE0,)), asking).names
    if known:
        assert names == ()
    else:
        assert isinstance(names, Unknown)
        assert "entry 7 of the GID table is empty" in names.reason
        assert names.advice.startswith("run this check inside the container")


@each_row(
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
    devices: tuple[str, ...],
    environment: dict[str, str],
    names: tuple[str, ...],
    transport: Transport,
) -> None:
    host = FakeHost((RXE0, RXE1))
    found = used(host, process(*devices, environment=environment))
    assert found.names == names
    assert found.transport is transport


@each_row("variable", [{"MC_MS_AUTO_DISC": "0"}, {"MC_MS_FILTERS": "rxe9"}])
def test_sglangs_own_engine_reads_no_variable_of_the_stores_client(
    variable: dict[str, str],
) -> None:
    """transfer_engine_py.cpp discovers whatever they say: a server without a store failed."""
    host, by_store = FakeHost((RXE0, RXE1)), process(environment=variable)
    assert used(host, by_store).names == ()
    assert by_store.rdma is not None
    by_engine = by_store._replace(rdma=by_store.rdma._replace(by_engine=True))
    assert used(host, by_engine).names == ("rxe0", "rxe1")


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
def test_a_device_is_lost_and_why(nic: FakeNic, cause: Cause, alone: Transport) -> None:
    """With another device the launch goes on with that; without, discovery ends in TCP."""
    found = used(FakeHost((RXE0, nic)), process())
    assert found.names == ("rxe0",)
    assert [(lost.name, lost.cause) for lost in found.lost] == [("rxe1", cause)]
    found = used(FakeHost((nic,)), process())
    assert (found.names, found.transport) == ((), alone)
    named = used(FakeHost((nic,)), process("rxe1"))
    assert (named.names, named.transport) == ((), NONE)


@each_row(
    ("content", "names"),
    [
        ('{"cpu:0": [["rxe1"], []]}', ("rxe1",)),
        ('{"cpu:0": [["rxe1"], ["rxe0"]]}', ("rxe1", "rxe0")),
        ("not json", ()),
        ("[1, 2]", ()),
        (None, ("rxe0", "rxe1")),  # no such file: Mooncake looks for itself
    ],
)
def test_a_topology_file_names_the_devices(content: str | None, names: tuple[str, ...]) -> None:
    path = "/etc/mooncake/topology.json"
    files = {} if content is None else {path: content}
    asking = process(environment={"MC_CUSTOM_TOPO_JSON": path})
    assert used(FakeHost((RXE0, RXE1), files=files), asking).names == names


@each_row("parts", [frozenset(), frozenset({"efa"})])
def test_a_library_without_tent_goes_on_with_the_classic_engine(parts: frozenset[str]) -> None:
    """The published wheels: the variable switches nothing on."""
    here = facts_of(FakeHost((RXE0,)))._replace(parts=parts)
    asking = process(environment={"MC_USE_TENT": "1"})
    assert devices_in_use(here, asking).names == ("rxe0",)
    for other in (here._replace(parts=parts | {"tent"}), here._replace(parts=Unknown("x"))):
        assert isinstance(devices_in_use(other, asking).names, Unknown)
    elsewhere = asking._replace(container=ContainerLimits("run.sh:1", "docker"))
    assert isinstance(devices_in_use(here, elsewhere).names, Unknown)


V4 = bytes(10) + b"\xff\xff"
PRIVATE, CARRIER, PUBLIC = V4 + b"\x0a\0\0\1", V4 + b"\x64\x40\0\1", V4 + b"\xc0\xa8\0\1"
FE80, FEC0 = b"\xfe\x80" + bytes(13) + b"\1", b"\xfe\xc0" + bytes(13) + b"\1"


def port(*gids: Gid) -> Port:
    return Port(1, "ACTIVE", "LinkUp", "Ethernet", "", gids, 256, {})


def gid(number: int, raw: bytes, kind: str = ROCE_2, netdev: str = "eth0") -> Gid:
    return Gid(number, raw, kind, netdev)


def taken(
    *gids: Gid, release: MooncakeRelease = NEWEST, environment: dict[str, str] | None = None
) -> int | None:
    choice = choose_gid(port(*gids), environment or {}, release)
    assert isinstance(choice, GidChoice)
    return choice.gid.number if choice.gid else None


@each_row(
    ("gids", "number"),
    [
        # Measured on soft-RoCE with 0.3.13.post1: a site-local address of a router's advertisement
        # wins over the fabric's own 10.0.0.1.
        ((gid(0, FE80), gid(1, PRIVATE), gid(2, FEC0)), 2),
        # Also measured: without another address the link-local one is taken.
        ((gid(0, FE80),), 0),
        ((gid(0, FE80), gid(1, PRIVATE)), 1),
        # 192.168 counts as routable, so the lower index decides between it and IPv6.
        ((gid(0, FE80), gid(1, PUBLIC), gid(2, FEC0)), 1),
        # An overlay's interface loses to anything on a real one but link-local, by index.
        ((gid(0, PUBLIC, netdev="docker0"), gid(1, PRIVATE)), 1),
        ((gid(0, PUBLIC, netdev="tunl0"), gid(1, FE80)), 0),
        ((gid(0, PUBLIC, netdev="tunl01"), gid(1, PRIVATE)), 0),
        # No interface behind it: after a routable one that has one, before a private one.
        ((gid(0, FEC0, netdev=""), gid(1, PRIVATE)), 0),
        ((gid(0, FEC0, netdev=""), gid(3, PUBLIC)), 3),
        ((gid(0, PRIVATE, netdev=""), gid(1, FE80)), 1),
        ((gid(0, CARRIER), gid(1, PUBLIC)), 1),
        # RoCE v1 only where there is nothing else.
        ((gid(0, PUBLIC, ROCE_1), gid(1, FE80)), 1),
        ((gid(0, FE80, ROCE_1), gid(1, PUBLIC, ROCE_1)), 0),
        ((gid(0, FE80, IB, ""),), 0),
        ((), None),
    ],
)
def test_the_own_choice_of_releases_since_0_3_12(gids: tuple[Gid, ...], number: int | None) -> None:
    assert taken(*gids) == number


V6_ONLY = (("0.3.8", None), ("0.3.9", None), ("0.3.10", 0), ("0.3.11.post1", 0), ("0.3.12", 1))
BEHIND_A_GAP = (("0.3.9", None), ("0.3.10", None), ("0.3.11.post1", None), ("0.3.12", 1))
LAB, NO_NETDEV = (gid(0, FE80), gid(1, PRIVATE), gid(2, FEC0)), gid(1, PRIVATE, netdev="")


@each_row(
    ("version", "gids", "index", "number"),
    [
        # The same table, the lab's: what was index 1 became 2 with the ranks of 0.3.12.
        ("0.3.7.post2", LAB, None, 0),
        ("0.3.8", LAB, None, 1),
        ("0.3.11.post1", LAB, None, 1),
        ("0.3.12", LAB, None, 2),
        # IPv6 alone, as the real wheels chose (0.3.9, 0.3.10, 0.3.11.post1, 0.3.12, 0.3.13.post1).
        *((release, (gid(0, FE80), gid(1, FEC0)), None, number) for release, number in V6_ONLY),
        *((release, (gid(1, FEC0),), None, number) for release, number in BEHIND_A_GAP),
        *((release, (gid(0, FEC0),), "0", 0) for release, _ in V6_ONLY),
        # IPv4 on no interface comes before IPv6 on one, and IB is no better than IPv6 (source).
        ("0.3.10.post2", (gid(0, FEC0), NO_NETDEV), None, 1),
        ("0.3.10.post2", (gid(0, FE80, netdev=""), gid(1, FEC0)), None, 1),
        ("0.3.10.post2", (gid(0, FE80, IB), gid(1, PRIVATE)), None, 1),
        ("0.3.9", (gid(0, FE80, IB), gid(1, PRIVATE)), None, 0),
        # An index without an interface disabled the device.
        ("0.3.9", (gid(0, PUBLIC), NO_NETDEV), "1", None),
        ("0.3.10", (gid(0, PUBLIC), NO_NETDEV), "1", 1),
        ("0.3.13.post1", (gid(0, PUBLIC), NO_NETDEV), "1", 1),
    ],
)
def test_releases_chose_in_different_ways(
    version: str, gids: tuple[Gid, ...], index: str | None, number: int | None
) -> None:
    environment = {} if index is None else {"MC_GID_INDEX": index}
    assert taken(*gids, release=mooncake_release(version), environment=environment) == number


@each_row(
    ("environment", "index"),
    [
        ({}, None),
        ({"MC_GID_INDEX": "3"}, 3),
        ({"MC_GID_INDEX": " 3x"}, 3),
        ({"MC_GID_INDEX": "abc"}, 0),  # measured: the library says "default 3" and uses 0
        ({"MC_GID_INDEX": ""}, 0),
        ({"MC_GID_INDEX": "256"}, None),
        ({"MC_GID_INDEX": "-1"}, None),
        ({"NCCL_IB_GID_INDEX": "5"}, 5),
        ({"MC_GID_INDEX": "2", "NCCL_IB_GID_INDEX": "5"}, 2),
    ],
)
def test_the_index_as_mooncake_reads_it(environment: dict[str, str], index: int | None) -> None:
    asked = asked_index(environment)
    assert (asked[0] if asked else None) == index


def test_a_table_that_could_not_be_read_is_no_choice() -> None:
    unread = port()._replace(gids=Unknown("no"))
    assert isinstance(choose_gid(unread, {}, NEWEST), Unknown)
    untyped = port(Gid(0, PRIVATE, Unknown("no"), "eth0"))
    assert isinstance(choose_gid(untyped, {}, NEWEST), Unknown)


@each_row(
    ("text", "value"),
    [("12", 12), ("+7", 7), ("\t-3 ", -3), ("4GB", 4), ("", None), ("x1", None), ("٣", None)],
)
def test_numbers_as_c_reads_them(text: str, value: int | None) -> None:
    assert leading_integer(text) == value
