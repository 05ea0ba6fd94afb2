"""Known problems reproduced with the real wheels: bad on the last bad release, gone on the first
good one. Each is named by its record, whose ``command`` it is."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.launch_problems.advisories.records import advisories, advisory
from tests.lab.recorded import recorded_experiments
from tests.lab.results import recorded
from tests.real.conftest import HugePages, Store, Wheel, cut, free_port, install, install_release

pytestmark = pytest.mark.real
MOONCAKE, NON_CUDA = "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"
# One client of the store: what each of its calls returns.
CLIENT = """
import json, os, sys
from mooncake.store import MooncakeDistributedStore
master, port, protocol = sys.argv[1:]
store = MooncakeDistributedStore()
said = [store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", 64 << 20, 16 << 20, protocol, "", master)]
if said == [0]:
    said += [store.put("key", b"x" * 1000), len(store.get("key"))]
print("\\n" + json.dumps(said))
sys.stdout.flush()
if "peer" in os.environ:
    import subprocess
    os.environ.pop("peer")
    peer = [sys.executable, "-c", os.environ["reader"], master, str(int(port) + 1), protocol]
    print("\\n" + json.dumps([subprocess.run(peer).returncode]))
    sys.stdout.flush()
os._exit(0)
"""
# Another one that reads what the first one put.
READER = """
import os, sys
from mooncake.store import MooncakeDistributedStore
master, port, protocol = sys.argv[1:]
store = MooncakeDistributedStore()
store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", 0, 16 << 20, protocol, "", master)
os._exit(0 if len(store.get("key")) == 1000 else 1)
"""
# One that registers both halves of a pool on huge pages, as SGLang does from 0.5.21 on.
HALVES = """
import json, os, sys
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
master, port, protocol = sys.argv[1:]
half, store, allocator = 4 << 20, MooncakeDistributedStore(), MooncakeHostMemAllocator()
try:
    pool = allocator.alloc(2 * half)
    if protocol == "standalone":
        said = [store.setup_dummy(500 << 20, 16 << 20, master)]
        said.append(store.register_buffer(pool, 2 * half))
        store.unregister_buffer(pool)
    else:
        said = [store.setup(f"127.0.0.1:{port}", "P2PHANDSHAKE", 0, 0, protocol, "", master)]
    said += [store.register_buffer(pool + at, half) for at in (0, half)]
except RuntimeError as error:
    said = [str(error)]
print("\\n" + json.dumps(said))
sys.stdout.flush()
os._exit(0)
"""


def run_python(program: str, environment: dict[str, str], *words: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout, done.stderr


def imported(folder: Path) -> str:
    """What the loader says of a wheel's store, "" where it loads."""
    said = run_python("import mooncake.store", Wheel("", folder).environment({}))[1]
    return said.strip().rpartition("\n")[2]


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., tuple[list[Any], str]]:
    """Runs one client of a release against a master of another."""

    def run(
        master: str, release: str, protocol: str = "tcp", program: str = CLIENT, **more: str
    ) -> tuple[list[Any], str]:
        folder = Path(mkdtemp(dir=tmp_path))
        store, wheel = Store(install_release(master), folder), install_release(release)
        try:
            words = (store.address, str(free_port()), protocol)
            said, log = run_python(program, wheel.environment(more), *words)
        finally:
            store.stop()
        return json.loads(said.splitlines()[-1]), log

    return run


def test_every_record_that_was_reproduced_is_tested_here() -> None:
    """And names its test as the command that reproduces it."""
    numbers = sorted(set(re.findall(r"mp_2026_(\d+)_", " ".join(globals()))))
    reproduced = [one.id[-4:] for one in advisories() if "reproduced" in one.evidence]
    assert numbers == reproduced
    assert len(numbers) >= 16
    for number in numbers:
        record = advisory(f"MP-2026-{number}")
        assert record is not None
        assert f"tests/real/test_advisories_real.py -k {number}" in record.command, number


@pytest.mark.parametrize(
    ("release", "memcpy", "ends"),
    [
        ("0.3.10.post2", None, -signal.SIGSEGV),
        ("0.3.10.post2", "0", 0),
        ("0.3.10", None, 0),
        ("0.3.10", "1", -signal.SIGSEGV),
        ("0.3.10", "", -signal.SIGSEGV),
        ("0.3.10", "disable", -signal.SIGSEGV),
        ("0.3.10", "Off", 0),
        ("0.3.9", "1", 0),
        ("0.3.11", "1", 0),
    ],
)
def test_mp_2026_0001_a_peer_on_the_same_host(
    release: str, memcpy: str | None, ends: int, client: Any
) -> None:
    more = {} if memcpy is None else {"MC_STORE_MEMCPY": memcpy}
    said, _ = client(release, release, "tcp", CLIENT, peer="1", reader=READER, **more)
    assert said == [ends]


def test_mp_2026_0002_the_wheel_without_cuda_needs_it() -> None:
    for release, needs in {"0.3.11.post1": False, "0.3.12": True, "0.3.13": True}.items():
        said = imported(install_release(release).folder)
        assert ("libcudart.so.12: cannot open" in said) is needs, (release, said)
    assert imported(install_release("0.3.13.post1").folder) == ""


@pytest.mark.parametrize(("release", "needs"), [("0.3.6.post1", False), ("0.3.7", True)])
def test_mp_2026_0003_the_wheel_for_cuda_12_links_its_runtime(release: str, needs: bool) -> None:
    said = imported(install(MOONCAKE, release))
    assert ("libcudart.so.12: cannot open shared object file" in said) is needs, said


def pip_takes(release: str, glibc: str, folder: Path) -> bool:
    """Whether pip finds a wheel of a release for a machine with this glibc."""
    words = f"download --quiet --no-deps --no-cache-dir --only-binary=:all: -d {folder}"
    where = f"--platform manylinux_{glibc}_x86_64 --python-version 3.11 {NON_CUDA}=={release}"
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words.split(), *where.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.returncode == 0
    assert found or "No matching distribution" in done.stderr, done.stderr[-500:]
    return found


def needed_glibc(folder: Path) -> tuple[int, int]:
    """The newest version of glibc that a file of the wheel asks for."""
    found = set()
    for file in (folder / "mooncake").iterdir():
        content = file.read_bytes() if file.is_file() else b""
        if content.startswith(b"\x7fELF"):
            found |= set(re.findall(rb"\0GLIBC_(\d+)\.(\d+)\0", content))
    return max((int(major), int(minor)) for major, minor in found)


@pytest.mark.parametrize(
    ("release", "glibc", "takes", "needs"),
    [
        ("0.3.8.post1", "2_17", True, (2, 34)),  # record 4: installed, and does not load
        ("0.3.9", "2_17", False, (2, 34)),
        ("0.3.9", "2_34", False, (2, 34)),  # record 5: what is there is not taken
        ("0.3.11.post1", "2_34", False, (2, 34)),
        ("0.3.12", "2_28", True, (2, 28)),
    ],
)
def test_mp_2026_0004_and_mp_2026_0005_tags_and_what_is_needed(
    release: str, glibc: str, takes: bool, needs: tuple[int, int], tmp_path: Path
) -> None:
    assert pip_takes(release, glibc, tmp_path) is takes
    assert needed_glibc(install_release(release).folder) == needs


def test_mp_2026_0022_other_releases_do_not_talk(client: Any) -> None:
    assert client("0.3.12.post1", "0.3.13.post1")[0] == [0, -900, 0]
    assert client("0.3.12.post1", "0.3.12.post1")[0] == [0, 0, 1000]
    assert client("0.3.13.post1", "0.3.13.post1")[0] == [0, 0, 1000]


def test_mp_2026_0025_a_pool_that_ends_inside_a_huge_page() -> None:
    """Recorded in the virtual machine, whose rdma-core is older than 51, on a soft-RoCE device.
    0.3.14 takes the pool; a local buffer of an odd size is refused by both."""

    def errors(name: str) -> list[str]:
        steps = recorded("rehearsals")[name]["answer"]["steps"]
        return [step["measured"]["error"] for step in steps if step["measured"]["error"]]

    assert errors("T1b host pool of 64e6") == ["register_buffer of 64000000 bytes returns -600"]
    assert errors("T1d whole huge pages") == errors("T1c and libibverbs looks") == []
    assert errors("T1 the newest takes it whole") == []
    for name in ("T1e odd local buffer", "W6 odd local buffer, the newest"):
        assert errors(name) == ["setup returns -600"]


@pytest.mark.parametrize(("release", "old"), [("0.3.11.post1", True), ("0.3.12", False)])
def test_mp_2026_0027_the_go_in_the_wheel(release: str, old: bool) -> None:
    built = set()
    for file in install_release(release).folder.rglob("libetcd_wrapper*.so"):
        built |= set(re.findall(rb"Go buildinf:.{0,40}?go1\.(\d+)\.(\d+)", file.read_bytes(), re.S))
    assert built
    assert {(int(minor), int(patch)) < (25, 10) for minor, patch in built} == {old}


CALL = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")  # 0.3.5 imports it for other things
from mooncake.store import MooncakeDistributedStore
print(MooncakeDistributedStore().batch_get_buffer)
"""


@pytest.mark.parametrize(("release", "has"), [("0.3.5", False), ("0.3.6", True)])
def test_mp_2026_0040_what_lmcache_calls(release: str, has: bool) -> None:
    """Of LMCache 0.3.4 on the connector reads by a call that Mooncake 0.3.5 does not have."""
    wheel = Wheel(release, install(MOONCAKE, release))
    said = run_python(CALL, wheel.environment({}))[1]
    record = advisory("MP-2026-0040")
    assert record is not None
    assert (record.lines[0] not in said) is has, said
    for lmcache, calls in {"0.3.3": False, "0.3.4": True}.items():
        connector = "lmcache/v1/storage_backend/connector/mooncakestore_connector.py"
        text = (install("lmcache", lmcache) / connector).read_text()
        assert ("self.store.batch_get_buffer" in text) is calls


def test_mp_2026_0050_a_split_segment_on_regular_pages() -> None:
    """Measured in the virtual machine with two nodes: tests/lab, experiment "NICs on both nodes".
    The split segment takes huge pages from 0.3.12 on; the local buffer does so in each."""
    pages = {
        release: sum(recorded_experiments()[f"NICs on both nodes, {release}"].pages)
        for release in ("0.3.10.post2", "0.3.11.post1", "0.3.12.post1")
    }
    assert pages["0.3.10.post2"] == pages["0.3.11.post1"] < pages["0.3.12.post1"]


@pytest.mark.real_newest
def test_mp_2026_0028_the_second_half_of_a_pool(client: Any, huge_pages: HugePages) -> None:
    """On huge pages 0.3.14 registers all of it for the first; on regular ones what it is given."""
    assert huge_pages.set(30, 0, 0) is None
    for on, release, second in (("1", "0.3.13.post1", 0), ("1", "0.3.14", -600)):
        said, _ = client(release, release, "tcp", HALVES, MC_STORE_USE_HUGEPAGE=on)
        assert said == [0, 0, second], release


@pytest.mark.real_newest
@pytest.mark.parametrize("release", ["0.3.13.post1", "0.3.14"])
def test_mp_2026_0029_half_a_pool_of_standalone_storage(release: str, tmp_path: Path) -> None:
    """Its client takes the whole pool, and neither half."""
    wheel = install_release(release)
    store = Store(wheel, tmp_path)
    try:
        address = store.start_client({}, "--global_segment_size=64MB", "--local_buffer_size=16MB")
        said, log = run_python(HALVES, wheel.environment({}), address, "0", "standalone")
    finally:
        store.stop()
    assert json.loads(said.splitlines()[-1]) == [0, 0, -1, -1], log


@pytest.mark.real_newest
def test_mp_2026_0049_pages_of_512_mib(client: Any, huge_pages: HugePages) -> None:
    """A host has none of them: the first good release asks for them, the last bad one does not."""
    assert huge_pages.set(30, 0, 0) is None
    size = {"MC_STORE_USE_HUGEPAGE": "1", "MC_STORE_HUGEPAGE_SIZE": "512MB"}
    assert client("0.3.13.post1", "0.3.13.post1", "tcp", HALVES, **size)[0] == [0, 0, 0]
    (said,) = client("0.3.14", "0.3.14", "tcp", HALVES, **size)[0]
    assert "using 512MB hugepages" in said


ENGINE = """
import os
from mooncake.engine import TransferEngine
TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "")
os._exit(0)
"""


@pytest.mark.parametrize(
    ("release", "variable", "says"),
    [
        ("0.3.12.post1", None, "Relaxed ordering disabled"),
        ("0.3.12.post1", "1", "IBV_ACCESS_RELAXED_ORDERING will be requested"),
        ("0.3.13", None, "IBV_ACCESS_RELAXED_ORDERING will be requested"),
        ("0.3.13", "0", "Relaxed ordering disabled"),
    ],
)
def test_mp_2026_0052_how_memory_is_registered(
    release: str, variable: str | None, says: str, tmp_path: Path
) -> None:
    """It says so before it opens a device, so that one that is only named will do."""
    topology = tmp_path / "topology.json"
    topology.write_text('{"cpu:0": [["rxe0"], []]}')
    more = {} if variable is None else {"MC_IB_PCI_RELAXED_ORDERING": variable}
    wheel = install_release(release)
    log = run_python(ENGINE, wheel.environment({"MC_CUSTOM_TOPO_JSON": str(topology), **more}))[1]
    assert says in log


def registering(release: str) -> Any:
    """SGLang's own function, cut out of its wheel: its module imports torch."""
    file = install("sglang", release) / "sglang/srt/mem_cache/memory_pool_host.py"
    refuses = SimpleNamespace(
        cudaHostRegister=lambda *_: 2, cudaGetErrorString=lambda _: "out of memory"
    )
    torch = SimpleNamespace(
        dtype=object, Tensor=object, cuda=SimpleNamespace(cudart=lambda: refuses)
    )
    names: dict[str, Any] = {"torch": torch, "HostTensorAllocator": object}
    return cut(file, names, "alloc_with_host_register")["alloc_with_host_register"]


def test_mp_2026_0061_a_pool_that_was_not_pinned() -> None:
    """CUDA answers 2 (out of memory): the last bad release goes on, the first good one stops."""
    pool = SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: 8, element_size=lambda: 2)
    allocator = SimpleNamespace(allocate=lambda *_, **__: pool)
    assert registering("0.5.12.post1")(8, None, "cpu", True, allocator) is pool
    with pytest.raises(RuntimeError, match="cudaHostRegister failed"):
        registering("0.5.13")(8, None, "cpu", True, allocator)


@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this host has RDMA devices")
def test_mp_2026_0067_without_a_device_it_goes_on_over_tcp(client: Any) -> None:
    said, log = client("0.3.13.post1", "0.3.13.post1", "rdma")
    assert said == [0, 0, 1000]
    assert "Found 0 HCAs" in log
    assert "TCP-only environment" in log
