"""PCI facts: functions, their place in the tree, links, ACS, IOMMU; and how far they are apart."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.pci.facts import (
    Link,
    PathClass,
    PciFacts,
    PciFunction,
    acs,
    acs_control,
    bridges_between,
    path_class,
    read_accelerators,
    read_function,
    read_pci,
)
from tests.builders.synthetic import SyntheticHost, build_host, gpu_host, plain_host
from tests.builders.synthetic_devices import Gpu
from tests.checks.recorded import recorded
from tests.tables import each_row

# A chassis: two switches in a row below one root port, a third below another port of the same host
# bridge, and one more host bridge on the other node.
CASCADE = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")


def place(address: str, *parents: str, node: int | None = 0) -> PciFunction:
    link = Link(16, 16, "32.0 GT/s PCIe", "32.0 GT/s PCIe")
    return PciFunction(address, "0x10de", "0x2330", "0x030200", node, "", parents, link, "none")


GPU = place("0000:13:00.0", *CASCADE, "0000:12:00.0")
FAR = place("0000:93:00.0", "pci0000:90", "0000:90:01.0", node=None)


@each_row(
    ("other", "expected", "why"),
    [
        (place("0000:14:00.0", *CASCADE, "0000:12:01.0"), PathClass.PIX, "two ports, one switch"),
        (place("0000:13:00.1", *CASCADE, "0000:12:00.0"), PathClass.PIX, "one device"),
        (
            place("0000:17:00.0", *CASCADE, "0000:12:02.0", "0000:15:00.0", "0000:16:00.0"),
            PathClass.PXB,
            "a switch below the switch",
        ),
        (place("0000:20:00.0", "pci0000:10", "0000:10:02.0"), PathClass.PHB, "another root port"),
        (place("0000:10:1f.0", "pci0000:10"), PathClass.PHB, "on the root bus itself"),
        (place("0000:43:00.0", "pci0000:40", "0000:40:01.0"), PathClass.NODE, "another bridge"),
        (FAR._replace(node=1), PathClass.SYS, "another node"),
    ],
)
def test_path_classes(other: PciFunction, expected: PathClass, why: str) -> None:
    """The words of nvidia-smi topo, in both directions."""
    assert path_class(GPU, other) is expected, why
    assert path_class(other, GPU) is expected, why


@pytest.mark.parametrize("other", [FAR, place("0000:93:00.0")])
def test_a_path_that_nothing_tells_is_unknown(other: PciFunction) -> None:
    """Without a node NODE and SYS are the same to us, and nothing is guessed."""
    found = path_class(GPU, other)
    assert isinstance(found, Unknown)
    assert "0000:93:00.0" in found.reason


def test_bridges_where_acs_acts() -> None:
    """The ports of the shared switch and what is below; none where the path leads over the CPU."""
    near = place("0000:14:00.0", *CASCADE, "0000:12:01.0")
    assert bridges_between(GPU, near) == ("0000:12:00.0", "0000:12:01.0")
    assert bridges_between(GPU, place("0000:20:00.0", "pci0000:10", "0000:10:02.0")) == ()
    assert bridges_between(GPU, place("0000:93:00.0", "pci0000:90", "0000:90:01.0")) == ()


def read(path: Path, host: SyntheticHost) -> PciFacts:
    return read_pci(Root(str(build_host(path, host))), None)


@pytest.mark.parametrize(
    ("vendor", "kind", "address", "counts"),
    [
        ("0x10de", "0x030200", "0000:13:00.0", True),
        ("0x10de", "0x040300", "0000:13:00.1", False),  # its audio function
        ("0x10de", "0x068000", "0000:13:00.0", False),  # an NVSwitch
        ("0x1002", "0x038000", "0000:13:00.0", True),  # an MI300X
        ("0x19e5", "0x120000", "0000:13:00.0", True),  # an Ascend
        ("0x1a03", "0x030000", "0000:13:00.0", False),  # the BMC's VGA
        ("0x8086", "0x030000", "0000:00:02.0", False),  # the processor's own graphics
        ("0x8086", "0x038000", "0000:4d:00.0", True),
    ],
)
def test_what_is_an_accelerator(
    tmp_path: Path, vendor: str, kind: str, address: str, counts: bool
) -> None:
    host = replace(plain_host(), gpus=[Gpu(address, ("pci0000:00",), 0, vendor=vendor)])
    own = f"/sys/devices/pci0000:00/{address}/class"
    root = Root(str(build_host(tmp_path, replace(host, files={own: kind}))))
    found = read_accelerators(root)
    assert isinstance(found, tuple)
    assert [one.address for one in found] == [address] * counts


SMALL = replace(gpu_host(), gpus=gpu_host().gpus[:1], nics=gpu_host().nics[:1])
NIC = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0"


@pytest.mark.parametrize(
    ("name", "content"), [("numa_node", ""), ("current_link_width", "x16"), ("max_link_width", "0")]
)
def test_garbage_is_unknown_and_never_raises(tmp_path: Path, name: str, content: str) -> None:
    facts = read(tmp_path, replace(SMALL, files={f"{NIC}/{name}": content}))
    nic = facts.nics["mlx5_0"]
    widths = {"current_link_width": nic.link.width, "max_link_width": nic.link.max_width}
    damaged = widths.get(name, nic.node)
    assert isinstance(damaged, Unknown)
    assert name in damaged.reason


def test_a_direct_nic_platform(tmp_path: Path) -> None:
    """The DMA function of a ConnectX-8 gives it away."""
    folder = "/sys/bus/pci/devices/0002:03:00.0"
    files = {f"{folder}/vendor": "0x15b3", f"{folder}/device": "0x2100", f"{folder}/class": "0x08"}
    assert read(tmp_path, replace(SMALL, files=files)).direct_nic


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        *[("0x1d", "0x1d"), ([1], "[1]"), (1.5, "1.5"), (True, "True")],
        ({"unknown": "only root may read the extended configuration space"}, "root"),
    ],
)
def test_a_wrong_answer_of_acs_or_none_is_unknown(tmp_path: Path, answer: object, why: str) -> None:
    host = replace(SMALL, calls={"pci.acs 0000:12:00.0": answer})
    found = read(tmp_path, host).acs["0000:12:00.0"]
    assert isinstance(found, Unknown)
    assert why in found.reason


def reader_of(space: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: space[offset : offset + length]


def capability(number: int, following: int) -> bytes:
    return (following << 20 | 1 << 16 | number).to_bytes(4, "little")


def space_with(*rows: tuple[int, bytes]) -> bytes:
    space = bytearray(4096)
    for offset, content in rows:
        space[offset : offset + len(content)] = content
    return bytes(space)


@pytest.mark.parametrize(
    ("space", "control"),
    [
        (space_with((0x100, capability(0x000D, 0) + b"\x7f\0" + b"\x1d\0")), 0x1D),
        (
            space_with(
                (0x100, capability(0x0001, 0x148)),
                (0x148, capability(0x0003, 0x220)),
                (0x220, capability(0x000D, 0) + b"\0\0" + b"\x00\x01"),
            ),
            0x100,
        ),
        (space_with(), None),
        (b"\xff" * 4096, None),
        # A list that leads back to its start ends.
        (space_with((0x100, capability(0x0001, 0x100))), None),
    ],
)
def test_acs_control_in_a_configuration_space(space: bytes, control: int | None) -> None:
    assert acs_control(reader_of(space)) == control


def test_the_first_64_bytes_are_not_enough() -> None:
    """What the kernel shows to others than root: unknown, never "no ACS"."""
    with pytest.raises(PermissionError):
        acs_control(reader_of(bytes(64)))


def test_this_machine() -> None:
    """Live: every function has a place; as root, ACS of each can be asked for."""
    root = Root()
    facts = read_pci(root, None)
    assert not isinstance(facts.accelerators, Unknown)
    names = root.names("/sys/bus/pci/devices")
    if isinstance(names, Unknown) or not names:
        pytest.skip("this machine has no PCI")
    for name in names:
        function = read_function(root, name)
        assert function.parents[:1] != ()
        assert isinstance(function.vendor, str)
        if os.geteuid() == 0:
            control = acs(name)
            assert control is None or control >= 0


@pytest.mark.slow
def test_recorded_locality() -> None:
    """A real machine: the HCA is on node 2, below a bridge of the second host bridge."""
    root = Root(str(recorded("40intel64-2g2n4c+pcilocality")))
    facts = read_pci(root, None)
    nic = facts.nics["qib0"]
    assert (nic.address, nic.vendor, nic.node) == ("0000:43:00.0", "0x1077", 2)
    assert nic.parents == ("pci0000:40", "0000:40:03.0")
    assert nic.link.width == 4
    # Its VGA is the management controller's.
    assert facts.accelerators == ()

    def path(one: str, other: str) -> PathClass | Unknown:
        return path_class(read_function(root, one), read_function(root, other))

    assert path("0000:02:00.0", "0000:02:00.1") is PathClass.PIX
    assert path("0000:02:00.0", "0000:03:00.0") is PathClass.PHB
    assert path("0000:43:00.0", "0000:40:05.0") is PathClass.PHB
    # The other host bridge names no node.
    assert isinstance(path("0000:43:00.0", "0000:02:00.0"), Unknown)
