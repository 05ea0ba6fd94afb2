"""GPU facts: PCI, NVML's answers, CUDA's, and the kernel's ways to GPU memory."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from checks.framework.needs import ContainerLimits, LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.gpu.facts import GpuFacts, read_gpus
from checks.gpu.hardware_use import physical_gpus, visible_gpus
from tests.builders.synthetic import SyntheticHost, build_host, gpu_host
from tests.checks.ranks import rank

DRIVER = "/proc/driver/nvidia/version"
SMALL = replace(gpu_host(), gpus=gpu_host().gpus[:2], nics=())


def read(path: Path, host: SyntheticHost, needs: LaunchNeeds | None = None) -> GpuFacts:
    return read_gpus(Root(str(build_host(path, host))), needs)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> GpuFacts:
    return read(tmp_path_factory.mktemp("gpus"), gpu_host())


@pytest.mark.parametrize(
    ("content", "module"),
    [
        ("Open Kernel Module for x86_64  580.65.06  Release Build", "open"),
        ("x86_64 Kernel Module  535.230.02  Thu Nov  7 16:09:35 UTC", "proprietary"),
    ],
)
def test_open_and_proprietary_modules(tmp_path: Path, content: str, module: str) -> None:
    """As /proc/driver/nvidia/version words them."""
    content = f"NVRM version: NVIDIA UNIX {content}"
    host = replace(SMALL, files={DRIVER: f"{content}\nGCC version: gcc 12"})
    facts = read(tmp_path, host)
    assert facts.kernel_module == module
    assert str(facts.kernel_module_version) in content


def test_a_driver_version_that_says_nothing_is_unknown(tmp_path: Path) -> None:
    for number, content in enumerate(("", "garbage", "NVRM version: NVIDIA")):
        facts = read(tmp_path / str(number), replace(SMALL, files={DRIVER: content}))
        assert isinstance(facts.kernel_module, Unknown)
        assert isinstance(facts.kernel_module_version, Unknown)


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        ({"/proc/modules": "nvidia_peermem 16384 0 - Live 0x0"}, ("nvidia_peermem",)),
        ({"/proc/modules": "nv_peer_mem 16384 0 - Live 0x0"}, ("nv_peer_mem",)),
        ({"/proc/modules": "nvidia 1 1 nvidia_peermem, Live 0x0"}, ()),
        ({"/proc/modules": "", "/sys/module/nvidia_peermem/refcnt": "0"}, ("nvidia_peermem",)),
        ({"/proc/modules": None}, ()),
    ],
)
def test_peer_modules(
    tmp_path: Path, files: Mapping[str, str | None], modules: tuple[str, ...]
) -> None:
    """Loaded, not merely named; /sys/module also knows what is built in."""
    without = replace(SMALL, modules=("nvidia",))
    assert read(tmp_path, replace(without, files=files)).peer_modules == modules


@pytest.mark.parametrize(
    "answer", [[], "x", 3, {}, {"devices": 1}, {"devices": [1]}, {"devices": None, "driver": 1}]
)
def test_a_wrong_answer_of_nvml_is_unknown(tmp_path: Path, answer: object) -> None:
    facts = read(tmp_path, replace(SMALL, calls={"gpus.nvml": answer}))
    assert isinstance(facts.nvml, Unknown)


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, (0, 1, 2, 3, 4, 5, 6, 7)),
        ("", ()),
        ("7,0", (7, 0)),
        (" 1 , 2 ", (1, 2)),
        ("0,9,1", (0,)),  # the first wrong entry hides the rest
        ("-1", ()),
        ("GPU-00000000-0000-0000-0000-000000000005,0", (5, 0)),
        ("GPU-ffff,0", ()),
    ],
)
def test_cuda_visible_devices(
    facts: GpuFacts, setting: str | None, indices: tuple[int, ...]
) -> None:
    """As CUDA reads it (programming guide, environment variables)."""
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    addresses = [gpu.address for gpu in facts.on_pci]
    found = visible_gpus(facts, rank(0, environment=environment))
    assert found == tuple(addresses[index] for index in indices)
    mig = visible_gpus(facts, rank(0, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"}))
    assert isinstance(mig, Unknown)  # an instance of MIG is no GPU


def test_what_the_shell_has_set_is_inherited_unless_in_a_container(facts: GpuFacts) -> None:
    inherited = facts._replace(visible_devices="1")
    assert visible_gpus(inherited, rank(0)) == (facts.on_pci[1].address,)
    own = rank(0, environment={"CUDA_VISIBLE_DEVICES": "2"})
    assert visible_gpus(inherited, own) == (facts.on_pci[2].address,)
    contained = rank(0, container=ContainerLimits("compose.yaml", "compose"))
    assert visible_gpus(inherited, contained) == physical_gpus(facts)
