"""``measure`` with the real library over TCP: its rates are a plain loop's, and nothing is left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from preflight.benchmark.measuring import run as run_module
from preflight.benchmark.measuring.records import EngineUse, LaunchWish
from tests.benchmark.measuring.test_measure import OFFLOAD, SCRIPT
from tests.real.conftest import HugePages, Store, Wheel
from tests.real.measures import (
    environment_of,
    library_of,
    measure,
    processes_of,
    rates_of,
    ready_pair,
    same_unit,
    storage_pair,
    store_pairs,
    transfer_pair,
    words_of,
)
from tests.real.test_rehearse_real import pages_in_use

pytestmark = pytest.mark.real

MIB = 1 << 20


@pytest.mark.parametrize("op", ["read", "write"])
def test_transfers_are_as_fast_as_the_wheels_own_benchmark(
    op: str, wheel_0_3_13: Wheel, tmp_path: Path
) -> None:
    with transfer_pair(wheel_0_3_13, op, 16 * MIB, tmp_path) as pair:
        assert same_unit(pair)


def test_put_and_get_are_as_fast_as_in_a_plain_loop(
    wheel_0_3_13: Wheel, stores: Callable[[Wheel], Store], tmp_path: Path
) -> None:
    master = stores(wheel_0_3_13).address
    with store_pairs(wheel_0_3_13, master, 256 << 10, 100, tmp_path) as pairs:
        assert all(map(same_unit, pairs.values()))


def test_a_launch_is_measured_in_its_sizes(
    wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """All parts; TCP is found where RDMA is meant; --save keeps what is printed."""
    refused = huge_pages.set(64, 0, 0)
    if refused:
        pytest.skip(refused)
    folder, saved = tmp_path / "ssd", tmp_path / "saved.json"
    folder.mkdir()
    script = SCRIPT.format(protocol="rdma", python="python3", more=OFFLOAD)
    launch = tmp_path / "launch.sh"
    launch.write_text(script.replace("=/ssd", f"={folder}"))
    code, answer = measure(
        wheel_0_3_13, "--budget", "12s", "--spend", "512mb", "--prefill-rate", "1000000000",
        "--save", str(saved), str(launch),
    )  # fmt: skip
    assert answer["launch"]["source"] == str(launch)
    assert json.loads(saved.read_text()) == answer
    size = 64 * 40 * 4 * 128 * 2
    assert {("write", size), ("read", 64 * MIB)} <= rates_of(answer, "transfer").keys()
    assert rates_of(answer, "store").keys() == {("put", size), ("get", size), ("setup", 0)}
    assert rates_of(answer, "storage").keys() == {("write", size), ("read", size)}
    parts = {one["part"]: one for one in answer["answer"]["parts"]}
    assert {one["page_bytes"] for one in parts["memory"]["rates"]} == {0, 2 * MIB}
    found = {(one["check"], one["status"]) for one in answer["findings"]}
    if parts["registration"]["outcome"] == "skipped":
        assert "no RDMA device" in parts["registration"]["reason"]
        assert parts["transfer"]["used"]["transport"] == "tcp"
        assert "No RDMA devices" in parts["transfer"]["used"]["error"]
        assert ("measure.transport", "warn") in found
        assert code == 1
    assert ("measure.storage", "warn") in found
    assert ("measure.fetch", "warn") in found
    assert list(folder.iterdir()) == []
    assert pages_in_use() == 0


def test_the_time_to_ready_is_predicted_from_a_tenth(
    wheel_0_3_13: Wheel, huge_pages: HugePages, stores: Callable[[Wheel], Store], tmp_path: Path
) -> None:
    """On pages that were touched before: those that a virtual machine's pool never touched come at
    a tenth of the speed."""
    size = 1024 * MIB
    refused = huge_pages.set(size // (2 * MIB) + 16, 0, 0)
    if refused:
        pytest.skip(refused)
    predicted, started = ready_pair(wheel_0_3_13, stores(wheel_0_3_13).address, size, tmp_path)
    started()
    assert same_unit((lambda: 1 / predicted(), lambda: 1 / started()))
    assert pages_in_use() == 0


@pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio")
def test_the_folder_is_as_fast_as_fio_finds_it(tmp_path: Path) -> None:
    """A file for each MiB, written with fdatasync and read, O_DIRECT both."""
    assert all(same_unit(storage_pair(op, tmp_path)) for op in ("write", "read"))


def test_memory_needs_no_library(tmp_path: Path) -> None:
    words = ("--only", "memory,transfer", "--budget", "5s", "--spend", "64mb")
    code, answer = measure(Wheel("none", tmp_path), *words)
    assert code == 0
    memory, transfer = answer["answer"]["parts"]
    assert memory["outcome"] == "measured"
    assert "not installed" in transfer["reason"]


@pytest.mark.parametrize("opened", [False, True])
def test_each_nic_registers_with_an_engine_of_its_own(
    opened: bool, wheel_0_3_13: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the engine did not open the NIC nothing is measured; here its log is made up."""
    monkeypatch.setattr(run_module, "_rdma_devices", lambda: ("mlx5_0",))
    if opened:
        monkeypatch.setattr(run_module, "engine_use", lambda _: EngineUse("rdma", ("mlx5_0",)))
    measuring = run_module.Measuring(library_of(wheel_0_3_13), LaunchWish(), 20.0, 64 * MIB)
    (part,) = measuring.run(("registration",), "127.0.0.1", None, lambda _: None).parts
    if opened:
        assert {(one.op, one.size_bytes) for one in part.rates} == {("register", 32 * MIB)}
        assert part.rates[0].what == "mlx5_0, regular pages"
    else:
        assert "did not open it" in part.failed


KILLS = [
    (signal.SIGKILL, 0.7, "memory"), (signal.SIGTERM, 0.3, "memory"),
    (signal.SIGKILL, 2.5, "transfer"), (signal.SIGTERM, 0.6, "transfer"),
    (signal.SIGKILL, 4.0, "store"), (signal.SIGTERM, 1.0, "store"),
    (signal.SIGKILL, 1.0, "storage"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "seconds", "part"), KILLS)
def test_whatever_ends_it_nothing_is_left(
    sent: signal.Signals, seconds: float, part: str, wheel_0_3_13: Wheel,
    huge_pages: HugePages, tmp_path: Path,
) -> None:  # fmt: skip
    """No process, no page of the pool, no file."""
    refused = huge_pages.set(128, 0, 0)
    if refused:
        pytest.skip(refused)
    folder, temporary = tmp_path / "ssd", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    launch = tmp_path / "launch.sh"
    script = SCRIPT.format(protocol="tcp", python="python3", more=OFFLOAD)
    launch.write_text(script.replace("=/ssd", f"={folder}"))
    shared = set(Path("/dev/shm").iterdir())
    mark = f"TMPDIR={temporary}"
    words = words_of(("--only", part, "--budget", "30s", "--spend", "1gb", str(launch)))
    environment = {**environment_of(wheel_0_3_13), "TMPDIR": str(temporary)}
    started = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    time.sleep(seconds)
    assert started.poll() is None
    started.send_signal(sent)
    started.wait(20)
    until = time.monotonic() + 20
    while (processes_of(mark) or pages_in_use()) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(mark) == []
    assert pages_in_use() == 0
    assert [*folder.iterdir(), *temporary.iterdir()] == []
    assert not [one for one in set(Path("/dev/shm").iterdir()) - shared if "oncake" in one.name]


NEAR, FAR = "mpmeasure1", "mpmeasure2"
LINK = f"""
ip netns add {NEAR}; ip netns add {FAR}
ip link add mpm1 netns {NEAR} type veth peer name mpm2 netns {FAR}
ip -n {NEAR} addr add 10.77.0.1/24 dev mpm1; ip -n {NEAR} link set mpm1 up
ip -n {FAR} addr add 10.77.0.2/24 dev mpm2; ip -n {FAR} link set mpm2 up
ip -n {NEAR} link set lo up; ip -n {FAR} link set lo up
"""


@pytest.fixture
def two_networks() -> Iterator[None]:
    """Two network namespaces with a link between them, as two hosts."""
    try:
        made = subprocess.run(["sh", "-ec", LINK], capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no network namespaces with a link between them here: {made.stderr}")
        yield
    finally:
        subprocess.run(["sh", "-c", f"ip netns del {NEAR}; ip netns del {FAR}"], check=False)


@pytest.mark.usefixtures("two_networks")
def test_two_hosts_are_measured_by_serve_and_to(wheel_0_3_13: Wheel, tmp_path: Path) -> None:
    """The one prints where it listens; the other measures; the first ends with its budget.

    Without a default route it listens at its interface's address, and there alone. "ip netns exec"
    has a /sys of its own, without the memory cgroup."""
    here, there = (("ip", "netns", "exec", name) for name in (NEAR, FAR))
    words = ("--serve", "--budget", "40s", "--spend", "64mb")
    server = subprocess.Popen(
        [*there, *words_of(words)],
        env=environment_of(wheel_0_3_13),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        where = server.stdout.readline().strip()
        assert where.startswith("10.77.0.2:")
        sockets = Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]
        listening = [line.split()[1] for line in sockets if line.split()[3] == "0A"]
        assert [each.partition(":")[0] for each in listening] == ["02004D0A"]
        to = ("--to", where, "--budget", "5s")
        code, answer = measure(wheel_0_3_13, *to, inside=here)
        assert code == 0
        (part,) = answer["answer"]["parts"]
        assert part["part"] == "transfer"
        assert part["there"]["transport"] == "tcp"
        assert rates_of(answer, "transfer")["write", MIB] > MIB
        for other in ("10.77.0.2:9/x", f"{where.partition('/')[0]}/x"):
            refused, answer = measure(wheel_0_3_13, "--to", other, "--budget", "5s", inside=here)
            assert refused == 3
            assert other.partition("/")[0] in answer["reason"]
        # 1000 tokens of this launch are 164 MB: a link of 20 Mbit/s takes a minute for them.
        slow = "tc qdisc add dev mpm2 root tbf rate 20mbit burst 64kb latency 50ms"
        subprocess.run([*there, *slow.split()], check=True)
        launch = tmp_path / "launch.sh"
        launch.write_text(SCRIPT.format(protocol="tcp", python="python3", more=""))
        judged = ("--to", where, "--budget", "8s", "--prefill-rate", "20000", str(launch))
        code, answer = measure(wheel_0_3_13, *judged, inside=here)
        assert code == 1
        (found,) = answer["findings"]
        assert (found["check"], found["status"]) == ("measure.fetch", "warn")
        assert rates_of(answer, "transfer")["read", 64 << 10] < 4 * MIB
    finally:
        server.terminate()
        server.wait(20)
