"""The real library: its wheels, its master, and real huge pages, for tests that ask for them.

These tests set ``vm.nr_hugepages`` and install wheels, so they run only where that is wanted: as
root, under CI, or with MOONCAKE_PREFLIGHT_REAL=1.
"""

from __future__ import annotations

import ast
import ctypes.util
import fcntl
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks.releases.mooncake import parse_version
from tests.real.cases import Case

POOLS = Path("/sys/kernel/mm/hugepages")
# Nothing depends on it: the kernel clears 8 GiB of pages beside guests that take both processors.
LIMIT_SECONDS = 500
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
        if reason and item.get_closest_marker("real"):
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Wheel:
    """An installed Mooncake: where it lies, and the environment that loads it."""

    version: str
    folder: Path
    libraries: tuple[Path, ...] = ()

    def command(self, name: str) -> str:
        return str(self.folder / "mooncake" / name)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """This process's environment without its Mooncake settings, and with ``more``."""
        ours = ("MC_", "MOONCAKE_")
        kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
        paths = {"PYTHONPATH": str(self.folder)}
        if self.libraries:
            paths["LD_LIBRARY_PATH"] = ":".join(str(path) for path in self.libraries)
        return {**kept, **paths, **more}


def install(distribution: str, version: str, *also: str) -> Path:
    """Install a wheel into a folder of its own, once, also where two processes ask for it."""
    folder = CACHE / f"{distribution}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install(folder, [f"{distribution}=={version}", *also])


def _install(folder: Path, wanted: list[str]) -> Path:
    if not (folder / "installed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, *"-m pip install --quiet --no-deps --only-binary=:all:".split()]
        # Thousands of modules, of which a few are read: to compile them takes 15 seconds a release.
        pip += ["--no-compile"] if wanted[0].startswith(("sglang==", "lmcache==")) else []
        done = subprocess.run(
            [*pip, "--target", str(folder), *wanted], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"{wanted[0]} cannot be installed: {done.stderr[-300:]}")
        (folder / "installed").touch()
    return folder


def cut(file: Path, space: dict[str, Any], *names: str) -> dict[str, Any]:
    """Run those definitions of a module alone, in ``space``: the module imports torch."""

    def named(node: ast.stmt) -> Iterator[str]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        targets = node.targets if isinstance(node, ast.Assign) else ()
        yield from map(ast.unparse, (node.target,) if isinstance(node, ast.AnnAssign) else targets)

    found: list[ast.stmt] = [
        node for node in ast.parse(file.read_text()).body if {*named(node)} & {*names}
    ]
    exec(compile(ast.Module(found, []), str(file), "exec"), space)
    return space


@pytest.fixture(scope="session")
def wheel_0_3_13() -> Wheel:
    return install_release("0.3.13.post1")


@pytest.fixture(scope="session")
def wheel_of() -> Callable[[str], Wheel]:
    """Any release."""
    return install_release


# Every function of the CUDA driver that the 0.3.14 wheel links; each answers "no device" (100).
CUDA_DRIVER = """
CtxGetCurrent CtxGetDevice CtxSetCurrent DeviceGet DeviceGetAttribute DeviceGetPCIBusId
DevicePrimaryCtxRelease_v2 DevicePrimaryCtxRetain FuncSetAttribute GetErrorName GetErrorString Init
LaunchKernel LaunchKernelEx MemAddressFree MemAddressReserve MemCreate MemExportToShareableHandle
MemGetAddressRange_v2 MemGetAllocationGranularity MemGetHandleForAddressRange
MemImportFromShareableHandle MemMap MemRelease MemRetainAllocationHandle MemSetAccess MemUnmap
ModuleGetFunction ModuleLoadDataEx ModuleUnload PointerGetAttribute PointerSetAttribute
""".split()


def install_release(version: str) -> Wheel:
    """Return a release without CUDA; since 0.3.14 none is, and it gets a stand-in for a driver.
    0.3.12 and 0.3.13 link the CUDA 12 runtime all the same."""
    if parse_version(version) >= (0, 3, 14, 0):
        return _install_with_driver(version)
    runtime = (
        ["nvidia-cuda-runtime-cu12"] if version in ("0.3.12", "0.3.12.post1", "0.3.13") else []
    )
    folder = install("mooncake-transfer-engine-non-cuda", version, *runtime)
    return Wheel(version, folder, tuple(p.parent for p in folder.rglob("libcudart.so.12")))


@pytest.fixture(scope="session")
def wheel_0_3_14() -> Wheel:
    return install_release("0.3.14")


def _install_with_driver(version: str) -> Wheel:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build a stand-in for libcuda.so.1")
    folder = install("mooncake-transfer-engine-cuda13", version, "nvidia-cuda-runtime==13.*")
    driver = folder / "libcuda.so.1"
    if not driver.exists():
        made = driver.with_name(f"{driver.name}.{os.getpid()}")  # others may load it meanwhile
        source = "".join(f"int cu{name}(void) {{ return 100; }}\n" for name in CUDA_DRIVER)
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=source, text=True, check=True)
        made.replace(driver)
    runtime = tuple(path.parent for path in folder.rglob("libcudart.so.13"))
    return Wheel(version, folder, (folder, *runtime))


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

    def settled_use(self) -> int:
        """2 MiB pages in use, once two looks in a row agree."""
        folder = POOLS / "hugepages-2048kB"
        last = -1
        while True:
            total, free = (int((folder / f"{n}_hugepages").read_text()) for n in ("nr", "free"))
            if total - free == last:
                return last
            last = total - free
            time.sleep(0.3)


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


class Store:
    """A running mooncake_master of one wheel, and workers that run cases against it."""

    def __init__(self, wheel: Wheel, folder: Path, *more: str) -> None:
        self.wheel = wheel
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        flags = (
            f"--rpc_port={self.address.rpartition(':')[2]}",
            f"--metrics_port={free_port()}",
            "--enable_offload=true",
            *more,
        )
        self._worker: subprocess.Popen[str] | None = None
        self._processes = [self._start("mooncake_master", flags, {})]
        self._wait_for(self.address)

    def start_client(self, environment: Mapping[str, str], *flags: str) -> str:
        """Start a mooncake_client, which owns a segment; returns its address."""
        address = f"127.0.0.1:{free_port()}"
        where = (
            "--host=127.0.0.1",
            f"--port={address.rpartition(':')[2]}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address={self.address}",
        )
        self._processes.append(self._start("mooncake_client", (*where, *flags), environment))
        self._wait_for(address)
        return address

    def run(self, case: Case, **more: object) -> dict[str, Any]:
        """What the library said and took; a signal counts as what it said."""
        order = {
            "environment": case.environment,
            "host_pools_bytes": case.host_pools_bytes,
            "clients": [vars(client) for client in case.clients],
            "master": self.address,
            "port": free_port(),
            "offload_path": str(self.folder),
            **more,
        }
        worker = self._worker = self._worker or self._start_worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        limit = threading.Timer(LIMIT_SECONDS, worker.kill)
        limit.start()
        worker.stdin.write(f"{json.dumps(order)}\n")
        worker.stdin.flush()
        answer: dict[str, Any] = {}
        for line in worker.stdout:  # the library logs there as well
            if line.startswith(('{"said"', '{"ended"')):
                answer = {**json.loads(line), **answer}
            if "ended" in answer:
                break
        limit.cancel()
        log = (self.folder / "worker.log").read_text(errors="replace")[-2000:]
        return {"said": f"exit {answer.get('ended')}: {log}", "pages": {}, **answer}

    def _start_worker(self) -> subprocess.Popen[str]:
        with (self.folder / "worker.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.wheel.environment({}),
            )

    def stop_clients(self) -> None:
        while len(self._processes) > 1:
            _stop(self._processes.pop())

    def stop(self) -> None:
        self.stop_clients()
        if self._worker is not None:
            self._worker.communicate()
        _stop(self._processes.pop())

    def _start(
        self, name: str, flags: tuple[str, ...], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [self.wheel.command(name), *flags],
                stdout=log,
                stderr=log,
                env=self.wheel.environment(environment),
            )

    def _wait_for(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._processes[-1].poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.05)
        _stop(self._processes.pop())
        logs = [path.read_text()[-500:] for path in self.folder.glob("*.log")]
        raise RuntimeError(f"nothing answers on {address}: {logs}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Wheel], Store]]:
    """One master per wheel, started when first asked for."""
    running: dict[str, Store] = {}

    def store(wheel: Wheel) -> Store:
        if wheel.version not in running:
            running[wheel.version] = Store(wheel, tmp_path_factory.mktemp("store"))
        return running[wheel.version]

    yield store
    for started in running.values():
        started.stop()
