"""Checks of GPUs and of the PCIe way to them: facts and needs give status, have, need, settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import LaunchNeeds, RdmaUse
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.gpu.facts import CudaAbility, Nvml
from checks.run_checks.facts import Facts, read_facts
from preflight.cli.main import run
from tests.builders.synthetic import (
    GIB,
    MIB,
    PATIENCE_SECONDS,
    gpu_host,
    limited_container,
    plain_host,
    read_host,
    varied,
)
from tests.checks.judged import checks_of, judged
from tests.checks.limit_hosts import NOT_SAID
from tests.checks.ranks import launch, rank, ranks
from tests.tables import each_row

JUDGES = checks_of("gpu", "pci")
SILENT = Unknown("no library of NVIDIA's")
PREFILL = launch(*ranks(gpu_registered_bytes=Unknown("only a start tells")))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The host with 8 GPUs and 8 NICs, read for a launch that registers GPU memory."""
    return read_host(tmp_path_factory.mktemp("host"), gpu_host(), PREFILL)


def judge(check: str, facts: Facts, needs: LaunchNeeds | None) -> list[Finding]:
    return judged(JUDGES[check], facts, needs)


def only(check: str, facts: Facts, needs: LaunchNeeds | None) -> Finding:
    (finding,) = judge(check, facts, needs)
    return finding


def gpus(facts: Facts, **changes: Any) -> Facts:
    return varied(facts, gpus=facts.gpus._replace(**changes))


def first_gpu(facts: Facts, **changes: Any) -> Facts:
    """NVML's view of GPU 0, changed."""
    nvml = facts.gpus.nvml
    assert not isinstance(nvml, Unknown)
    changed = (nvml.gpus[0]._replace(**changes), *nvml.gpus[1:])
    return gpus(facts, nvml=nvml._replace(gpus=changed))


@pytest.mark.parametrize("check", JUDGES)
def test_a_fitting_host_passes_with_and_without_a_launch(facts: Facts, check: str) -> None:
    statuses = {finding.status for finding in judge(check, facts, PREFILL)}
    assert statuses == ({Status.SKIP} if check == "gpu.imex" else {Status.PASS})
    assert {finding.status for finding in judge(check, facts, None)} <= {Status.PASS, Status.SKIP}


def test_an_empty_host_passes_nothing(tmp_path: Path) -> None:
    """False-pass catalogue (gpud, Azure NHC, NVSentinel): an empty list is no health."""
    empty = read_facts(Root(str(tmp_path)), None, PATIENCE_SECONDS)
    found = [one for check in JUDGES for n in (None, PREFILL) for one in judge(check, empty, n)]
    assert Status.PASS not in {one.status for one in found}
    assert only("gpu.count", empty, PREFILL).status is Status.FAIL


def test_a_host_without_gpus(tmp_path: Path) -> None:
    plain = read_host(tmp_path, plain_host(), PREFILL)
    count = only("gpu.count", plain, PREFILL)
    assert (count.status, count.have, count.need) == (Status.FAIL, "none visible", "8 GPUs")
    for check in JUDGES:
        if check != "gpu.count":
            assert {one.status for one in judge(check, plain, PREFILL)} == {Status.SKIP}
    assert only("gpu.count", plain, launch(rank(0, gpu=None))).status is Status.PASS
    npus = [rank(number, gpu=None, accelerator="npu") for number in range(16)]
    count = only("gpu.count", plain, launch(*npus))
    assert (count.status, str(count.need)) == (Status.UNKNOWN, "16 NPUs")


def test_a_container_without_gpus(tmp_path: Path) -> None:
    """The host's eight GPUs are on PCI, and none may be used."""
    facts = read_host(tmp_path, limited_container(), PREFILL)
    assert only("gpu.driver", facts, PREFILL).status is Status.UNKNOWN
    for changed in (facts, gpus(facts, nvml=Unknown("no pynvml"))):
        count = only("gpu.count", changed, PREFILL)
        assert (count.status, count.have) == (Status.FAIL, "none visible")
        assert "8 GPUs" in count.advice
        assert only("gpu.memory-busy", changed, PREFILL).status is Status.SKIP
    hidden = gpus(facts, device_nodes=Unknown("/dev: Permission denied"))
    assert only("gpu.count", hidden, PREFILL).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("code", "text", "expected", "have"),
    [
        (18, "RM has detected ...", Status.FAIL, "Driver/library version mismatch"),
        (9, "Driver Not Loaded", Status.FAIL, "Driver Not Loaded"),
        (15, "GPU is lost", Status.FAIL, "GPU is lost"),
        (12, "NVML Shared Library Not Found", Status.UNKNOWN, "NVML Shared Library Not Found"),
        (4, "Insufficient Permissions", Status.UNKNOWN, "Insufficient Permissions"),
        (999, "Unknown Error", Status.UNKNOWN, "Unknown Error"),
    ],
)
def test_driver(facts: Facts, code: int, text: str, expected: Status, have: str) -> None:
    broken = gpus(facts, nvml=Nvml("", None, (), text, code))
    finding = only("gpu.driver", broken, None)
    assert (finding.status, finding.have) == (expected, have)
    # Nothing else passes on GPUs of which NVML says nothing.
    for check in ("gpu.mig", "gpu.memory-busy"):
        assert only(check, broken, PREFILL).status is Status.UNKNOWN
    # Without the library the device nodes still tell how many there are.
    counted = Status.PASS if code == 12 else Status.UNKNOWN
    assert only("gpu.count", broken, PREFILL).status is counted


@pytest.mark.parametrize(
    ("count", "setting", "expected", "have"),
    [
        (8, None, Status.PASS, "8 visible"),
        (9, None, Status.FAIL, "8 visible"),
        (4, "0,1,2,3", Status.PASS, "4 visible"),
        (4, "0,1", Status.FAIL, "2 visible"),
        (4, "0,1,2,8", Status.FAIL, "3 visible"),
        (1, "", Status.FAIL, "none visible"),
    ],
)
def test_count(facts: Facts, count: int, setting: str | None, expected: Status, have: str) -> None:
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    needs = launch(*ranks(count, environment=environment))
    finding = only("gpu.count", facts, needs)
    assert (finding.status, finding.have) == (expected, have)
    assert finding.need == f"{count} GPU{'s' if count > 1 else ''}"


def test_mig(facts: Facts) -> None:
    """Only the GPUs in use are looked at, each by its own."""
    with_mig = first_gpu(facts, mig=1)
    found = judge("gpu.mig", with_mig, PREFILL)
    assert [finding.status for finding in found] == [Status.WARN, Status.PASS]
    assert found[0].subject == "GPU 0000:13:00.0"
    other = launch(rank(3))
    assert only("gpu.mig", with_mig, other).status is Status.PASS
    assert only("gpu.mig", first_gpu(facts, mig=None), other).status is Status.PASS


@pytest.mark.parametrize(
    ("used", "processes", "expected"),
    [
        (4 * MIB, 0, Status.PASS),
        (GIB, 0, Status.PASS),
        (GIB + 1, 0, Status.WARN),
        (4 * MIB, 1, Status.WARN),
        (None, 0, Status.UNKNOWN),
    ],
)
def test_memory_busy(
    facts: Facts, used: int | None, processes: int | None, expected: Status
) -> None:
    busy = first_gpu(facts, used_bytes=used, processes=processes)
    found = judge("gpu.memory-busy", busy, launch(rank(0)))
    assert [finding.status for finding in found] == [expected]


PEERMEM_OFF = {"WITH_NVIDIA_PEERMEM": "0"}
ABLE, UNABLE = (CudaAbility(True, True),) * 8, (CudaAbility(True, False),) * 8


@pytest.mark.parametrize(
    ("environment", "changes", "kernel", "expected"),
    [
        ({}, {}, (6, 8), Status.PASS),
        ({}, {"peer_modules": ()}, (6, 8), Status.FAIL),
        ({}, {"peer_modules": ("nv_peer_mem",)}, (4, 18), Status.PASS),
        ({}, {"peer_modules": (), "memory_peers": ("nv_mem",)}, (6, 8), Status.PASS),
        ({}, {"peer_modules": Unknown("hidden")}, (6, 8), Status.UNKNOWN),
        (PEERMEM_OFF, {"peer_modules": (), "abilities": ABLE}, (6, 8), Status.PASS),
        ({"WITH_NVIDIA_PEERMEM": " FALSE "}, {"peer_modules": ()}, (6, 8), Status.PASS),
        (PEERMEM_OFF, {"abilities": UNABLE}, (6, 8), Status.FAIL),
        (PEERMEM_OFF, {"kernel_module": "proprietary"}, (6, 8), Status.FAIL),
        (PEERMEM_OFF, {}, (5, 11), Status.FAIL),
        (PEERMEM_OFF, {}, (5, 12), Status.PASS),
        (PEERMEM_OFF, {}, Unknown("no release"), Status.UNKNOWN),
        (PEERMEM_OFF, {"abilities": Unknown("no libcuda")}, (6, 8), Status.UNKNOWN),
        (PEERMEM_OFF, {"abilities": (CudaAbility(True, None),)}, (6, 8), Status.UNKNOWN),
    ],
)
def test_peer_memory(
    facts: Facts,
    environment: dict[str, str],
    changes: dict[str, Any],
    kernel: Any,
    expected: Status,
) -> None:
    """The way that Mooncake takes, and whether it is there."""
    changed = gpus(facts, **changes)
    changed = varied(changed, system=facts.system._replace(kernel=kernel))
    needs = launch(*ranks(2, environment=environment, gpu_registered_bytes=GIB))
    finding = only("gpu.peer-memory", changed, needs)
    assert finding.status is expected
    if expected is Status.FAIL:
        assert Setting(Kind.MODULE, "nvidia_peermem", "") in finding.settings


@pytest.mark.parametrize(
    ("value", "expected", "left"),
    [
        ("expandable_segments:True", Status.WARN, ""),
        ("max_split_size_mb:128,expandable_segments:True", Status.WARN, "max_split_size_mb:128"),
        ("expandable_segments:False", Status.PASS, None),
    ],
)
def test_expandable_segments(facts: Facts, value: str, expected: Status, left: str | None) -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": value}
    needs = launch(rank(0, environment=environment, gpu_registered_bytes=GIB))
    finding = only("gpu.peer-memory", facts, needs)
    assert finding.status is expected
    if left is not None:
        wanted = Setting(Kind.ENVIRONMENT, "PYTORCH_CUDA_ALLOC_CONF", left, value)
        assert finding.settings == (wanted,)


def test_a_store_alone_registers_no_gpu_memory(facts: Facts) -> None:
    missing = gpus(facts, peer_modules=())
    assert only("gpu.peer-memory", missing, launch(*ranks())).status is Status.PASS


@pytest.mark.parametrize(
    ("forced", "channels", "expected"),
    [
        (None, (), Status.SKIP),
        ("1", ("channel0",), Status.PASS),
        ("1", (), Status.WARN),
        ("0", (), Status.WARN),  # Mooncake looks only whether it is set
        ("1", Unknown("hidden"), Status.UNKNOWN),
    ],
)
def test_imex(facts: Facts, forced: str | None, channels: Any, expected: Status) -> None:
    needs = launch(rank(0, environment={} if forced is None else {"MC_FORCE_MNNVL": forced}))
    assert only("gpu.imex", gpus(facts, imex_channels=channels), needs).status is expected


def test_a_rack_without_rdma_goes_over_nvlink_in_silence(facts: Facts) -> None:
    rack = first_gpu(facts, name="NVIDIA GB200")
    assert only("gpu.imex", rack, PREFILL).status is Status.SKIP
    without = varied(rack, rdma=facts.rdma._replace(nics=()))
    assert only("gpu.imex", without, PREFILL).status is Status.WARN


def nic_link(facts: Facts, **changes: Any) -> Facts:
    nic = facts.pci.nics["mlx5_0"]
    nics = {**facts.pci.nics, "mlx5_0": nic._replace(link=nic.link._replace(**changes))}
    return varied(facts, pci=facts.pci._replace(nics=nics))


@pytest.mark.parametrize(
    ("changes", "expected", "have"),
    [
        ({}, Status.PASS, "x16 at 32.0 GT/s of 32.0 GT/s"),
        ({"width": 8}, Status.WARN, "x8 at 32.0 GT/s of 32.0 GT/s"),
        ({"speed": "2.5 GT/s PCIe"}, Status.PASS, "x16 at 2.5 GT/s of 32.0 GT/s"),
        ({"max_width": Unknown("gone", absent=True)}, Status.SKIP, ""),
        ({"width": Unknown("denied")}, Status.UNKNOWN, ""),
    ],
)
def test_link_width(facts: Facts, changes: dict[str, Any], expected: Status, have: str) -> None:
    """Lanes are judged, speed is only shown: an idle GPU lowers it."""
    needs = launch(rank(0, gpu=None, rdma=RdmaUse(("mlx5_0",), "--device")))
    finding = only("pci.link-degraded", nic_link(facts, **changes), needs)
    assert (finding.status, finding.have) == (expected, have)


def acs_of(facts: Facts, control: Any) -> Facts:
    registers = dict.fromkeys(facts.pci.acs, control)
    return varied(facts, pci=facts.pci._replace(acs=registers))


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (0, Status.PASS),
        (None, Status.PASS),
        (0b00001, Status.PASS),  # source validation alone redirects nothing
        (0b11101, Status.WARN),
        (0b00100, Status.WARN),
        (0b01000, Status.WARN),
        (0b10000, Status.WARN),
        (Unknown("only root may read it"), Status.UNKNOWN),
    ],
)
def test_acs(facts: Facts, control: Any, expected: Status) -> None:
    found = judge("pci.acs", acs_of(facts, control), launch(rank(0)))
    assert {finding.status for finding in found} == {expected}


def test_direct_nic_needs_acs(facts: Facts) -> None:
    platform = varied(acs_of(facts, 0x1D), pci=acs_of(facts, 0x1D).pci._replace(direct_nic=True))
    assert only("pci.acs", platform, PREFILL).status is Status.SKIP


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("identity", Status.PASS),
        ("none", Status.PASS),
        ("DMA", Status.WARN),
        ("DMA-FQ", Status.WARN),
        ("blocked", Status.UNKNOWN),
        (Unknown("denied"), Status.UNKNOWN),
    ],
)
@pytest.mark.parametrize(
    ("iommus", "command_line", "setting"),
    [
        (("dmar0",), "ro iommu=off", Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt", "off")),
        (("ivhd0",), "ro", Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt", "")),
        (("smmu3.0x1",), "", Setting(Kind.KERNEL_ARGUMENT, "iommu.passthrough", "1", "")),
    ],
)
def test_iommu(
    facts: Facts,
    mode: Any,
    expected: Status,
    iommus: tuple[str, ...],
    command_line: str,
    setting: Setting,
) -> None:
    nics = {"mlx5_0": facts.pci.nics["mlx5_0"]._replace(iommu=mode)}
    pci = facts.pci._replace(nics=nics, iommus=iommus, command_line=command_line)
    needs = launch(rank(0, gpu=None, rdma=RdmaUse(("mlx5_0",), "--device")))
    finding = only("pci.iommu", varied(facts, pci=pci), needs)
    assert finding.status is expected
    assert finding.settings == ((setting,) if expected is Status.WARN else ())


@pytest.mark.parametrize("check", ["pci.link-degraded", "pci.acs", "pci.iommu"])
def test_nics_that_are_not_known_or_not_read_are_not_passed(facts: Facts, check: str) -> None:
    finding = only(check, facts, launch(rank(0, gpu=None, rdma=RdmaUse(Unknown("$NICS"), "-d"))))
    assert finding.status is Status.UNKNOWN
    assert "$NICS" in finding.text
    hidden = varied(facts, rdma=facts.rdma._replace(nics=Unknown("/sys: Permission denied")))
    for needs in (None, PREFILL):
        assert only(check, hidden, needs).status is Status.UNKNOWN


@each_row(("told", "status"), [({}, Status.UNKNOWN), ({"nvml": SILENT}, Status.PASS)])
def test_gpus_that_a_silent_library_hides_leave_the_nics(
    facts: Facts, told: dict[str, Any], status: Status
) -> None:
    """gpu.count says that the library is silent: the links of the NICs are judged all the same."""
    hidden = gpus(facts, accelerators=SILENT, **told)
    needs = launch(rank(0, rdma=RdmaUse(("mlx5_0",), "--device")))
    assert {finding.status for finding in judge("pci.link-degraded", hidden, needs)} == {status}


ONE = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --tp 2 "


@pytest.mark.parametrize(
    ("job", "status"),
    [
        ("#SBATCH --gres=gpu:1\nsrun PROGRAM", "fail"),
        ("#SBATCH --gres=gpu:h100:2\nsrun PROGRAM", "pass"),
        ("#SBATCH --gpus-per-node=1\nPROGRAM", "fail"),
        ("#SBATCH -N 1 -G 1\nPROGRAM", "fail"),
        ("#SBATCH --gpus-per-node=8\nsrun -n1 --gpus-per-task=1 PROGRAM", "fail"),
        ("#SBATCH --gpus-per-node=8\nsrun --gres=none PROGRAM", "fail"),
        ("srun -N1 -G2 PROGRAM", "pass"),
        ("#SBATCH --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES=0,1\nsrun PROGRAM", "pass"),
        ("#SBATCH --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES=6,7\nsrun PROGRAM", "unknown"),
        # A container that the runtime is told to give none.
        ("docker run --privileged --runtime nvidia -e GPUS=none image PROGRAM", "pass"),
        ("docker run -e GPUS=$MINE image PROGRAM", "unknown"),
    ],
)
def test_the_gpus_that_slurm_or_a_container_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, status: str
) -> None:
    script = tmp_path / "job.sh"
    job = job.replace("PROGRAM", ONE).replace(" GPUS=", " NVIDIA_VISIBLE_DEVICES=")
    script.write_text(f"#!/bin/bash\n{job}\n")
    run(["check", "--json", "--only", "gpu.count", "--root", "demo:h800", str(script)])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["status"] for finding in found} == {status}


@pytest.mark.parametrize(
    ("peers", "driver", "pages", "variable", "status"),
    [
        (("amdkfd",), "ionic", NOT_SAID, "1", Status.PASS),
        (("amdkfd",), "ionic", NOT_SAID, None, Status.WARN),
        (("amdkfd",), "mlx5_core", NOT_SAID, None, Status.PASS),
        (("amdkfd",), "bnxt_en", False, None, Status.WARN),
        ((), "ionic", NOT_SAID, None, Status.WARN),
        ((), "ionic", NOT_SAID, "1", Status.WARN),
        ((), "mlx5_core", NOT_SAID, None, Status.UNKNOWN),
        (Unknown("not read"), "mlx5_core", NOT_SAID, None, Status.UNKNOWN),
    ],
)
def test_the_way_to_the_memory_of_amds_gpus(
    facts: Facts, peers: Any, driver: str, pages: Any, variable: str | None, status: Status
) -> None:
    """Without on-demand paging dma-buf pins the KV cache, and holds a second copy of it."""
    (gpu, *_) = facts.gpus.on_pci
    nics = tuple(
        nic._replace(driver=driver, verbs=nic.verbs._replace(pages_on_demand=pages))
        for nic in facts.rdma.present
    )
    amd = (gpu._replace(vendor="0x1002"),)
    changes = {"nvml": Unknown("none", absent=True), "device_nodes": (), "memory_peers": peers}
    here = gpus(facts, accelerators=amd, **changes)
    here = varied(here, rdma=facts.rdma._replace(nics=nics))
    words = {} if variable is None else {"MOONCAKE_DISABLE_HIP_DMABUF": variable}
    needs = launch(rank(0, gpu_registered_bytes=GIB, environment=words))
    finding = only("gpu.peer-memory", here, needs)
    assert finding.status is status
    if peers == () and status is Status.WARN:
        assert "--disaggregation-ib-device" in finding.advice
