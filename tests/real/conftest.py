"""The real library: its wheels, its master, and real huge pages, for tests that ask for them.

These tests set ``vm.nr_hugepages`` and install wheels, so they run only where that is wanted: as
root, under CI, or with MOONCAKE_PREFLIGHT_REAL=1.
"""

from __future__ import annotations

import ctypes.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

POOLS = Path("/sys/kernel/mm/hugepages")
CACHE = Path(__file__).parents[2] / ".cache" / "real"


def why_not() -> str | None:
    """Why the real library cannot be run here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "sets vm.nr_hugepages and installs wheels: set MOONCAKE_PREFLIGHT_REAL=1 to allow it"
    if os.geteuid() != 0:
        return "needs root, to set vm.nr_hugepages"
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "the wheels are for Linux on x86-64"
    if sys.version_info[:2] > (3, 13):
        return "no wheel for this Python"
    if not os.access(POOLS / "hugepages-2048kB" / "nr_hugepages", os.W_OK):
        return "this kernel has no 2 MiB huge page pool that can be set"
    if ctypes.util.find_library("ibverbs") is None:
        return "the wheel needs libibverbs.so.1 (apt-get install ibverbs-providers libnuma1)"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if item.get_closest_marker("real") and reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Wheel:
    """An installed Mooncake: where it lies, and the environment that loads it."""

    version: str
    folder: Path
    environment: dict[str, str]

    def command(self, name: str) -> list[str]:
        return [str(self.folder / "mooncake" / name)]


def install(distribution: str, version: str, *also: str) -> Path:
    """Install a wheel into a folder of its own, once."""
    folder = CACHE / f"{distribution}-{version}"
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ]
        wanted = [f"{distribution}=={version}", *also]
        done = subprocess.run(
            [*pip, "--target", str(folder), *wanted], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"{distribution} {version} cannot be installed: {done.stderr[-300:]}")
        (folder / "installed").touch()
    return folder


@pytest.fixture(scope="session")
def wheel_0_3_13() -> Wheel:
    folder = install("mooncake-transfer-engine-non-cuda", "0.3.13.post1")
    return Wheel("0.3.13.post1", folder, {"PYTHONPATH": str(folder)})


# Every function of the CUDA driver that the 0.3.14 wheel links; each answers "no device" (100).
CUDA_DRIVER = """
CtxGetCurrent CtxGetDevice CtxSetCurrent DeviceGet DeviceGetAttribute DeviceGetPCIBusId
DevicePrimaryCtxRelease_v2 DevicePrimaryCtxRetain FuncSetAttribute GetErrorName GetErrorString Init
LaunchKernel LaunchKernelEx MemAddressFree MemAddressReserve MemCreate MemExportToShareableHandle
MemGetAddressRange_v2 MemGetAllocationGranularity MemGetHandleForAddressRange
MemImportFromShareableHandle MemMap MemRelease MemRetainAllocationHandle MemSetAccess MemUnmap
ModuleGetFunction ModuleLoadDataEx ModuleUnload PointerGetAttribute PointerSetAttribute
""".split()


@pytest.fixture(scope="session")
def wheel_0_3_14() -> Wheel:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a stand-in for libcuda.so.1")
    folder = install("mooncake-transfer-engine-cuda13", "0.3.14", "nvidia-cuda-runtime==13.*")
    driver = folder / "libcuda.so.1"
    source = "".join(f"int cu{name}(void) {{ return 100; }}\n" for name in CUDA_DRIVER)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(driver)],
        input=source,
        text=True,
        check=True,
    )
    runtime = next(folder.rglob("libcudart.so.13"), None)
    libraries = [str(folder), *([str(runtime.parent)] if runtime else [])]
    return Wheel(
        "0.3.14",
        folder,
        {"PYTHONPATH": str(folder), "LD_LIBRARY_PATH": ":".join(libraries)},
    )


class HugePages:
    """Sets the host's pools for one case at a time."""

    def set(self, pages_2m: int, pages_1g: int, overcommit_2m: int) -> str | None:
        """Why the kernel did not give these pages, or None."""
        wanted = {
            "2048kB/nr_overcommit": overcommit_2m,
            "2048kB/nr": pages_2m,
            "1048576kB/nr": pages_1g,
        }
        for name, pages in wanted.items():
            file = POOLS / f"hugepages-{name}_hugepages"
            if not file.exists():
                if pages:
                    return f"this kernel has no {file.parent.name}"
                continue
            if int(file.read_text()) != pages:
                file.write_text(str(pages))
            if int(file.read_text()) != pages:
                return (
                    f"asked for {pages} pages, the kernel gave {file.read_text().strip()} ({name})"
                )
        return None


@pytest.fixture(scope="session")
def huge_pages() -> Iterator[HugePages]:
    names = ("nr_hugepages", "nr_overcommit_hugepages")
    files = [file for name in names for file in POOLS.glob(f"hugepages-*/{name}")]
    before: dict[Path, str] = {}
    for file in files:
        before[file] = file.read_text()
    yield HugePages()
    for file, value in before.items():
        if file.read_text() != value:
            file.write_text(value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_master(wheel: Wheel, log: Path, *flags: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a mooncake_master and wait until it answers; the caller ends it."""
    rpc, metrics = free_port(), free_port()
    command = [*wheel.command("mooncake_master"), f"--rpc_port={rpc}", f"--metrics_port={metrics}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--rpc_address=127.0.0.1", *flags],
            stdout=output,
            stderr=output,
            env={**os.environ, **wheel.environment},
        )
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", rpc)) == 0:
                return process, f"127.0.0.1:{rpc}"
        if process.poll() is not None:
            break
        time.sleep(0.1)
    stop(process)
    raise RuntimeError(f"mooncake_master did not start: {log.read_text()[-500:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
