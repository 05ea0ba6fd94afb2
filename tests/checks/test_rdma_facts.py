"""What is read of RDMA devices: complete, absent, unreadable and garbled hosts."""

from __future__ import annotations

import json
import socket

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.rdma import calls as calls_rdma
from checks.rdma.devices import IB, LARGEST_GAP, ROCE_1, ROCE_2, Gid, Port
from checks.rdma.facts import Nic, RdmaFacts, read_rdma
from tests.builders.hosts import in_memory
from tests.checks.rdma_hosts import (
    LIMITS,
    LINK_LOCAL,
    RXE0,
    V1,
    V2,
    FakeHost,
    FakeNic,
    facts_of,
    ipv4,
    launch,
    process,
)
from tests.tables import each_row


def only(facts: RdmaFacts) -> Nic:
    assert isinstance(facts.nics, tuple)
    (nic,) = facts.nics
    return nic


def port_of(nic: Nic) -> Port:
    port = nic.port(1)
    assert isinstance(port, Port)
    return port


def test_a_soft_roce_device_as_the_lab_shows_it() -> None:
    """No PCI function, so no driver, address or NUMA node; the netlink number names the library."""
    facts = facts_of(FakeHost((RXE0,)))
    nic = only(facts)
    assert (nic.name, nic.node_type, nic.driver, nic.provider) == ("rxe0", "CA", None, "rxe")
    assert (nic.pci_address, nic.node, nic.uverbs) == (None, None, "uverbs0")
    port = port_of(nic)
    assert (port.state, port.physical_state, port.link_layer) == ("ACTIVE", "LinkUp", "Ethernet")
    assert port.gids == (
        Gid(0, bytes.fromhex(LINK_LOCAL.replace(":", "")), ROCE_2, "eth0"),
        Gid(1, bytes(10) + b"\xff\xff\x0a\x00\x00\x01", ROCE_2, "eth0"),
    )
    assert port.pkeys == {0: 0xFFFF}
    limits = nic.verbs.limits
    assert not isinstance(limits, Unknown)
    assert (limits.max_mr_size_bytes, limits.max_mr) == (LIMITS["max_mr_size"], 524287)
    assert facts.netdevs["eth0"].addresses == (("10.0.0.1", 24),)
    assert facts.libraries.version == 44
    assert facts.libraries.providers == frozenset({"rxe"})


@each_row(
    ("layer", "kind", "meant"),
    [("InfiniBand", V1, IB), ("Ethernet", V1, ROCE_1), ("Ethernet", V2, ROCE_2)],
)
def test_one_word_of_sysfs_means_two_types(layer: str, kind: str, meant: str) -> None:
    """``IB/RoCE v1`` is InfiniBand's own GID, or the old RoCE, by the port's link layer."""
    nic = FakeNic(layer=layer, gids=((ipv4("10.0.0.1"), kind),))
    gids = port_of(only(facts_of(FakeHost((nic,))))).gids
    assert isinstance(gids, tuple)
    assert [gid.kind for gid in gids] == [meant]


def test_an_empty_entry_is_no_gid_and_an_asked_one_is_read_behind_any_gap() -> None:
    """Tables of 1024 entries are not read to the end, but MC_GID_INDEX may point anywhere."""
    far = LARGEST_GAP + 20
    entries = [(ipv4("10.0.0.1"), V2), *[None] * (far - 1), (ipv4("10.0.0.9"), V2)]
    host = FakeHost((FakeNic(gids=entries),))
    gids = port_of(only(facts_of(host))).gids
    assert isinstance(gids, tuple)
    assert [gid.number for gid in gids] == [0]
    needs = launch(process(environment={"MC_GID_INDEX": f" {far}x"}))
    gids = port_of(only(facts_of(host, needs))).gids
    assert isinstance(gids, tuple)
    assert [gid.number for gid in gids] == [0, far]


def test_a_pci_device_has_driver_address_and_node() -> None:
    nic = FakeNic("mlx5_0", driver="mlx5_core", driver_id=1, numa_node=1)
    found = only(facts_of(FakeHost((nic,))))
    assert (found.driver, found.provider, found.node) == ("mlx5_core", "mlx5", 1)
    # The driver names the library if netlink cannot.
    nic = FakeNic("erdma_0", driver="erdma")
    host = FakeHost((nic,), calls={"rdma.kernel": {"unknown": "Protocol not supported"}})
    assert only(facts_of(host)).provider == "erdma"


@each_row("text", ["", "garbage", "4:", ": ACTIVE", "9" * 400, "max max max"])
def test_no_content_of_any_file_is_a_crash(text: str) -> None:
    """Every file that was read is filled with the same rubbish, one host for each."""
    files, links = FakeHost((RXE0,), cgroup={"rdma.max": "x"}).tree()
    calls = files.pop("/calls.json")
    root = in_memory({**dict.fromkeys(files, text), "/calls.json": calls}, links)
    facts = read_rdma(root, launch(process(environment={"MC_PKEY_INDEX": text})))
    assert only(facts).name == "rxe0"
    port = port_of(only(facts))
    assert isinstance(port.gids, Unknown | tuple)
    pkeys = {} if isinstance(port.pkeys, Unknown) else port.pkeys
    # What is longer than any number of Python's can be printed has no place in a report.
    assert all(isinstance(key, Unknown) or key < 1 << 64 for key in pkeys.values())


@each_row("answer", [None, 3, "x", [1], {"open": 1, "limits": [3]}, {"devices": {"rxe0": 1}}])
def test_no_answer_of_any_call_is_a_crash(answer: object) -> None:
    files, links = FakeHost((RXE0,)).tree()
    files["/calls.json"] = json.dumps(dict.fromkeys(json.loads(files["/calls.json"]), answer))
    assert only(read_rdma(in_memory(files, links), None)).name == "rxe0"


def test_unreadable_folders_are_unknown() -> None:
    """A file where a folder should be cannot be listed; that is not the same as no device."""
    facts = read_rdma(in_memory({"/sys/class/infiniband/mlx5_0": ""}), None)
    nic = only(facts)
    assert isinstance(nic.node_type, Unknown)
    assert isinstance(nic.ports, Unknown)


def test_the_addresses_of_this_machine_are_those_of_its_interfaces() -> None:
    """The netlink reader against the C library: every name, and the loopback's own address."""
    found = calls_rdma.interfaces()
    assert set(found) == {name for _, name in socket.if_nameindex()}
    assert ["127.0.0.1", 8] in found.get("lo", [["127.0.0.1", 8]])


def test_a_device_file_opens_and_a_missing_one_is_no_answer() -> None:
    """/dev/null stands for a uverbs node: a character device that everybody may open."""
    answer = calls_rdma.device_node("/dev/null")
    assert answer["open"] is True
    found = Root().call("rdma.device_node", "/dev/infiniband/uverbs-none")
    assert isinstance(found, Unknown)
    assert found.absent


def test_a_device_that_libibverbs_does_not_have_is_not_listed() -> None:
    """With the library, without it, and on a host without RDMA alike."""
    answer = calls_rdma.verbs("no-such-device")
    assert answer["listed"] is False
    assert answer["error"]


def test_netlink_attributes_that_end_early_are_no_crash() -> None:
    whole = calls_rdma._attribute(2, b"rxe0\0") + calls_rdma._attribute(1, b"\1\0\0\0")
    assert dict(calls_rdma.netlink_attributes(whole)) == {2: b"rxe0\0", 1: b"\1\0\0\0"}
    for length in range(len(whole)):
        assert isinstance(dict(calls_rdma.netlink_attributes(whole[:length])), dict)
    assert list(calls_rdma.netlink_attributes(b"\0\0\0\0")) == []
