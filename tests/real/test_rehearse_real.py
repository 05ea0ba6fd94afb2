"""The command on this host, with the real library over TCP: 0 pages of difference, 0 left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from checks.framework.root import Root
from checks.releases.mooncake import mooncake_release
from preflight.benchmark.rehearsal import run as rehearsal_run
from preflight.benchmark.rehearsal.plan import plan_members
from preflight.benchmark.rehearsal.records import Library, Member
from preflight.benchmark.rehearsal.rehearse import judge
from preflight.benchmark.rehearsal.run import MemoryWatch, Room, run, status_bytes
from preflight.engines.programs.memory_records import Launch, MappedProcess, OwnAllocator
from preflight.engines.programs.store_environment import read_store_settings
from tests.real.cases import GIB, MIB, RECORDED, Case
from tests.real.conftest import HugePages, Wheel
from tests.real.rehearse_launches import (
    DEEPSEEK,
    HUGE,
    LLAMA,
    TCP,
    all_pages,
    measured_pages,
    predicted_pages,
    server,
    standalone,
    store,
)
from tests.rows import flat
from tests.valid import valid

pytestmark = pytest.mark.real

REFUSED, NO_POOL = "setup returns -600", "RuntimeError: Failed to map shared memory"
EXIT_CODES = {"starts": 0, "warns": 1, "fails": 2}
FILE = Path(__file__).parents[2] / "preflight/report/schemas/rehearse-v1.schema.json"
SCHEMA = json.loads(FILE.read_text())
HUNDREDTH = ("--scale", "100")
Answer = Mapping[str, Any]


def rehearse(
    script: str, wheel: Wheel, folder: Path, words: Iterable[str] = ()
) -> tuple[int, Answer]:
    """The exit code, and the object that was printed."""
    done = subprocess.run(
        command(script, folder, words),
        env=wheel.environment({}),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stdout.startswith("{"), done
    answer = json.loads(done.stdout)
    valid(answer, SCHEMA)
    return done.returncode, flat(answer)


def command(script: str, folder: Path, words: Iterable[str]) -> list[str]:
    file = folder / "launch.sh"
    file.write_text(script)
    program = [sys.executable, "-m", "preflight.cli.main", "measure", "--rehearse"]
    program += ["--json"]
    return [*program, *words, str(file)]


def assert_as_predicted(answer: Answer) -> None:
    assert answer["as_predicted"] is True, (answer["differences"], answer["reason"])
    for step in answer["steps"]:
        measured = measured_pages(step)
        assert measured is None or measured.total == predicted_pages(step).total, step
    assert answer["left_pages"] == []


def pages_in_use() -> int:
    folder = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
    total, free = (int((folder / f"{n}_hugepages").read_text()) for n in ("nr", "free"))
    return total - free


def written(case: Case) -> str:
    """A case as the launch of a store service."""
    (client,) = case.clients
    offload = {}
    if client.offload_buffer_bytes is not None:
        offload = {"MOONCAKE_OFFLOAD_ENABLED": "1"}
    return store(
        str(client.segment_bytes),
        str(client.local_buffer_bytes),
        client.protocol,
        "",
        **case.environment,
        **offload,
    )


# A row of each kind, of one client and no host pool: a store service can say all of it, and
# test_conformance.py has all rows. Without a RDMA device and with the protocol rdma a launch fails
# its check, and starts with TCP.
KINDS = "A1 B3 C1 C2 C5 D1 D10 F2 E2 Z1".split()
ROWS = [case for case in RECORDED if case.id.split()[0] in KINDS]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)
def test_recorded_rows(
    case: Case, wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """What was measured before this program existed, what is predicted, what is measured now."""
    refused = huge_pages.set(case.pages_2m, case.pages_1g, case.overcommit_2m)
    if refused:
        pytest.skip(refused)
    code, answer = rehearse(written(case), wheel_0_3_13, tmp_path)
    assert_as_predicted(answer)
    assert code == (2 if case.fails else 1 if answer["warnings"] else 0)
    error = answer["steps"][-1]["measured"]["error"]
    assert (case.fails or "") in (error or "")
    assert bool(case.fails) == bool(error)
    if case.recorded is not None:
        pages = all_pages(answer)
        assert (pages.get(2 * MIB, 0), pages.get(GIB, 0)) == case.recorded
    if not error and answer["transfer"]["size_bytes"]:
        assert answer["transfer"]["error"] is None
    assert pages_in_use() == 0


@dataclass(frozen=True)
class Rehearsal:
    """A launch. pages: 2 MiB pages on the host. fails: where, and with which words."""

    id: str
    script: str
    words: tuple[str, ...] = HUNDREDTH
    pages: int = 600
    status: str = "starts"
    fails: tuple[str, str] | None = None


CLIENT = "mooncake_client --protocol=tcp --master_server_address=10.0.0.1:50051"
HOT: dict[str, Any] = {
    "MC_STORE_LOCAL_HOT_CACHE_SIZE": "8000000000",
    "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1",
}
MOONCAKE = "--hicache-storage-backend mooncake"
OWN: dict[str, Any] = {"flags": "", "SGLANG_HUGEPAGE_SIZE": "2MB"}
NINE: dict[str, Any] = {"MC_MMAP_ARENA_POOL_SIZE": "9gb"}
LAUNCHES = (
    Rehearsal("one rank", server(protocol=TCP)),
    Rehearsal("two ranks", server(protocol=TCP, tp=2)),
    Rehearsal("two ranks, an arena", server(protocol=TCP, tp=2, **NINE)),
    Rehearsal("two ranks, no huge pages", server(protocol=TCP, tp=2, huge="")),
    Rehearsal("a hot cache that is dropped", server(2, "1gb", protocol=TCP, **HOT), pages=30,
        status="warns"),
    Rehearsal("SSD offload", server(protocol=TCP, MOONCAKE_ENABLE_SSD_OFFLOAD="1")),
    Rehearsal("pipeline stages", server(protocol=TCP, flags=f"{MOONCAKE} --pp-size 2")),
    Rehearsal("layer by layer", server(protocol=TCP,
        flags=f"{MOONCAKE} --hicache-mem-layout layer_first --hicache-io-backend kernel")),
    Rehearsal("a prefill server",
        server(protocol=TCP, flags=f"{MOONCAKE} --disaggregation-mode prefill")),
    Rehearsal("no store", server(protocol=TCP, flags="")),
    Rehearsal("SGLang's own huge pages", server(protocol=TCP, **OWN)),
    Rehearsal("SGLang's own huge pages, short", server(protocol=TCP, **OWN), pages=20,
        status="warns"),
    Rehearsal("ranks beside a client", standalone(10, "8GB", "1GB", 2, TCP)),
    Rehearsal("a rank beside a client, whole pools", standalone(10, "8GB", "1GB", 1, TCP, LLAMA),
        (*HUNDREDTH, "--sglang-version", "0.5.20")),
    Rehearsal("a rank beside a client, and it is short", standalone(5, "8GB", "0", 1, TCP),
        pages=60, status="fails", fails=("global segment", "SIGABRT (exit code 134)")),
    Rehearsal("a rank whose client is elsewhere",
        standalone(10, "8GB", "1GB", 2, TCP).partition("&\n")[0]),
    Rehearsal("G5 a client of 0.08 GB", f"{HUGE}{CLIENT} --global_segment_size='0.08 GB'\n", ()),
    Rehearsal("G10 a client of 4 GB", f"{HUGE}{CLIENT}\n", (), 300, "fails",
        ("global segment", "SIGABRT (exit code 134)")),
    Rehearsal("a client whose size is none", f"{HUGE}{CLIENT} --global_segment_size=4GiB\n", ()),
    Rehearsal("the second rank's pool short", server(protocol=TCP, tp=2), pages=95, status="fails",
        fails=("L2 host pool", NO_POOL)),
    Rehearsal("a local buffer short", server(protocol=TCP, tp=2), pages=96, status="fails",
        fails=("local buffer", "setup raises MemoryError: std::bad_alloc")),
    Rehearsal("the second rank's segment short", server(protocol=TCP, tp=2), pages=130,
        status="fails", fails=("global segment", REFUSED)),
    Rehearsal("an arena that starves",
        server(10, "16gb", protocol=TCP, tp=2, MC_MMAP_ARENA_POOL_SIZE="6gb"), pages=170,
        status="fails", fails=("global segment", REFUSED)),
)  # fmt: skip


@pytest.mark.parametrize("rehearsal", LAUNCHES, ids=lambda rehearsal: rehearsal.id)
def test_launches(
    rehearsal: Rehearsal, wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """Servers, stores and clients as users write them, and those that must fail."""
    assert huge_pages.set(rehearsal.pages, 0, 0) is None
    code, answer = rehearse(rehearsal.script, wheel_0_3_13, tmp_path, rehearsal.words)
    assert answer["outcome"] == rehearsal.status, answer["reason"]
    assert code == EXIT_CODES[rehearsal.status]
    assert_as_predicted(answer)
    last = answer["steps"][-1]
    if rehearsal.fails is None:
        assert last["measured"]["error"] is None
        assert answer["transfer"]["error"] is None
    else:
        at, words = rehearsal.fails
        assert last["predicted"]["fails_at"] == at
        assert last["measured"]["error"].startswith(words)
    assert pages_in_use() == 0


def test_a_rank_without_a_segment_does_not_register_k_alone(
    wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """It hands over whole pools alone; SGLang 0.5.21 registers K, then V: a rule foretells it."""
    assert huge_pages.set(600, 0, 0) is None
    script = standalone(10, "8GB", "1GB", 1, TCP, LLAMA)
    words = (*HUNDREDTH, "--sglang-version", "0.5.23")
    code, answer = rehearse(script, wheel_0_3_13, tmp_path, words)
    assert (code, answer["outcome"], answer["as_predicted"]) == (2, "fails", True)
    assert "error code: -1" in answer["reason"]
    assert answer["steps"][-1]["kind"] == "register"
    assert "Invalid buffer address or size" in answer["reason"]
    assert pages_in_use() == 0


@pytest.mark.real_newest
def test_the_newest_library_registers_a_pool_once(
    wheel_0_3_14: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """Of K it registers the whole pool, and refuses V as an overlap; on regular pages it does not.
    No release of SGLang since 0.5.21 starts so, with a model that has K and V apart."""
    assert huge_pages.set(600, 0, 0) is None
    words = (*HUNDREDTH, "--sglang-version", "0.5.23")
    code, answer = rehearse(server(protocol=TCP), wheel_0_3_14, tmp_path, words)
    assert (code, answer["outcome"], answer["as_predicted"]) == (2, "fails", True)
    assert "error code: -600" in answer["reason"]
    assert [step["kind"] for step in answer["steps"][-2:]] == ["register", "register"]
    assert "overlapped memory region" in answer["reason"]
    for script in (server(protocol=TCP, huge=""), server(protocol=TCP, model=DEEPSEEK)):
        code, answer = rehearse(script, wheel_0_3_14, tmp_path, words)
        assert (code, answer["outcome"]) == (0, "starts")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_is_broken_off_gives_everything_back(
    number: signal.Signals, wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """In the middle of it, by Ctrl-C and by what cannot be caught: no page and no process stays."""
    assert huge_pages.set(1500, 0, 0) is None
    running = subprocess.Popen(
        command(server(60, "8gb", tp=4, protocol=TCP), tmp_path, HUNDREDTH),
        env=wheel_0_3_13.environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    until = time.monotonic() + 60
    while pages_in_use() == 0:
        assert running.poll() is None
        assert time.monotonic() < until
        time.sleep(0.002)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    os.kill(running.pid, number)
    said, _ = running.communicate(timeout=200)
    assert children
    while (pages_in_use() or any(map(_runs, children))) and time.monotonic() < until:
        time.sleep(0.02)  # the kernel is still ending them
    assert pages_in_use() == 0
    assert not [child for child in children if _runs(child)]
    if number == signal.SIGINT:
        assert running.returncode == 130
        assert json.loads(said)["exit_code"] == 130


def own_children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_memory_that_is_not_there_is_not_tried(
    wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """A launch larger than the host: nothing is started, and the scale that it names is enough."""
    assert huge_pages.set(0, 0, 0) is None
    script = store("900gb", protocol=TCP, huge="")
    code, answer = rehearse(script, wheel_0_3_13, tmp_path)
    assert (code, answer["outcome"], answer["steps"]) == (3, "stopped", [])
    _, _, told = answer["reason"].partition("it was not tried; --scale ")
    words = ("--scale", str(2 * int(told.split()[0])))  # twice: others take memory meanwhile
    code, answer = rehearse(script, wheel_0_3_13, tmp_path, words)
    assert (code, answer["outcome"]) == (0, "starts")


def library(wheel: Wheel) -> Library:
    return Library(sys.executable, str(wheel.folder), "mooncake", wheel.version)


def test_it_is_broken_off_before_the_host_comes_to_its_limit(
    wheel_0_3_13: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a pool: the process is ended at once, and says where it was."""
    limit_bytes = 300 * MIB
    largest: dict[int, int] = {}
    others = own_children()  # what other tests left running in the background

    class Short(MemoryWatch):
        """A host whose memory ends when the rehearsal's process has taken so much."""

        def room(self) -> Room:
            for child in own_children() - others:
                largest[child] = max(largest.get(child, 0), status_bytes(child).get("VmRSS", 0))
            return Room(limit_bytes - max(largest.values(), default=0), "of a test")

    monkeypatch.setattr(rehearsal_run, "MemoryWatch", Short)
    pools = (200 * MIB, 2048 * MIB)
    own = OwnAllocator()
    settings = read_store_settings({}, mooncake_release(wheel_0_3_13.version))[0]
    rank = MappedProcess("rank 0", settings, pools, own_allocator=own)
    members = (Member(rank.name, "sglang", rank, {}),)
    launch = Launch((rank,), mooncake_release(wheel_0_3_13.version))
    plan = plan_members(members, launch, {}, library(wheel_0_3_13))
    done = run(plan, Root(), 60, lambda _: None)
    assert done.stopped.startswith("rank 0, L2 host pool 2 of 2: stopped")
    assert len(done.done) == 1
    assert judge(plan, done).exit_code == 3
    assert max(largest.values()) < 1800 * MIB
    assert not [child for child in largest if _runs(str(child))]


def test_pages_of_others_are_told(
    wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path
) -> None:
    """Somebody else holds pages of the pool: a warning, and they are neither counted nor freed."""
    assert huge_pages.set(100, 0, 0) is None
    file = os.memfd_create("other", os.MFD_HUGETLB)
    try:
        os.ftruncate(file, 4 * MIB)
        os.posix_fallocate(file, 0, 4 * MIB)
        script = store(protocol=TCP)
        code, answer = rehearse(script, wheel_0_3_13, tmp_path)
        assert (code, answer["outcome"]) == (1, "warns")
        assert answer["warnings"][0].startswith("others use 2 pages of 2.00 MiB")
        assert all_pages(answer) == {2 * MIB: 48}
        assert pages_in_use() == 2
    finally:
        os.close(file)
