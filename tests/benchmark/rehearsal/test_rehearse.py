"""Rehearsals without the library: scaling, the plan, the verdicts, and every way out.

What is foretold of registrations that are refused: the step, the words, the pages.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.pages import Region, Spot
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.hugetlb.fit import Stock
from checks.rdma.fork import Forking, bad_end
from checks.releases.mooncake import mooncake_release
from preflight.base.envelope import envelope
from preflight.benchmark.rehearsal.child import cpus_of
from preflight.benchmark.rehearsal.plan import (
    changed_by_scale,
    plan_members,
    scaled_bytes,
    scaled_environment,
    scaled_launch,
)
from preflight.benchmark.rehearsal.programs import CHILD, Running, StoppedError, worst_lines
from preflight.benchmark.rehearsal.records import (
    Library,
    Member,
    ProcessMemory,
    RehearsalPlan,
    RehearsalRun,
    StepResult,
    Transfer,
    find_library,
)
from preflight.benchmark.rehearsal.rehearse import (
    answer_object,
    answer_text,
    judge,
    predicted_pages,
    same_error,
)
from preflight.benchmark.rehearsal.run import MemoryWatch, pages_in_use, pages_of_others
from preflight.cli.main import run as run_program
from preflight.engines.mooncake.allocations import EndlessPools, OnShortage, all_regions_of
from preflight.engines.mooncake.replay import replay
from preflight.engines.programs.memory_records import (
    HotCache,
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
)
from preflight.engines.programs.memory_records import StoreSettings as Settings
from preflight.engines.programs.store_environment import read_store_settings
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

FILE = ROOT / "preflight/report/schemas/rehearse-v1.schema.json"
SCHEMA = json.loads(FILE.read_text())
RELEASE = mooncake_release("0.3.13.post1")
LIBRARY = Library("/usr/bin/python3", "/opt/packages", "mooncake-transfer-engine", "0.3.13.post1")
HUGE = Settings(True, 2 * MIB)
ANYWHERE = Spot(2 * MIB, None)
SIZES = st.integers(0, 1 << 42)
SCALES = st.integers(1, 10_000)
PAGES = st.sampled_from([4096, 2 * MIB, GIB])


@given(SIZES, SCALES, PAGES)
def test_a_scaled_size_keeps_what_it_is_in_pages(size: int, scale: int, page: int) -> None:
    """Whole pages stay whole, what lies beyond them stays, and nothing is scaled to nothing."""
    small = scaled_bytes(size, scale, page)
    assert small % page == size % page
    assert small <= size
    assert small * scale >= size - size % page
    assert bool(small) == bool(size)


def process(
    segment: int = 80 * MIB,
    local: int = 16 * MIB,
    pools: tuple[int, ...] = (),
    settings: Settings = HUGE,
    **more: Any,
) -> MappedProcess:
    name, protocol = more.pop("name", "rank 0"), more.pop("protocol", Protocol.TCP)
    node = more.pop("node", None)
    client = StoreClient(segment, local, protocol, **more)
    return MappedProcess(name, settings, pools, (client,), node)


def launch(*processes: MappedProcess) -> Launch:
    return Launch(processes or (process(),), RELEASE)


@given(SIZES, SIZES.filter(bool), st.integers(1, 1 << 36), st.integers(1, 1 << 26), SCALES)
def test_the_library_reads_the_scaled_sizes_back(
    segment: int, arena: int, cache: int, block: int, scale: int
) -> None:
    """The variables of a scaled launch say to Mooncake just what the prediction is made of."""
    settings = HUGE._replace(arena_bytes=arena, hot_cache=HotCache(cache, block, True))
    (small,) = scaled_launch(launch(process(segment, settings=settings)), scale).processes
    more = {"MC_STORE_USE_HUGEPAGE": "1", "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1"}
    found, _ = read_store_settings({**more, **scaled_environment(small)}, RELEASE)
    if small.settings.hot_cache is not None and not small.settings.hot_cache.bytes:
        small = small._replace(settings=small.settings._replace(hot_cache=None))
    if scale > 1:
        assert found == small.settings


def test_a_segment_on_regular_pages_stays_one_that_is_taken() -> None:
    """Mooncake refuses less than 16 MiB, and that refusal is not the larger launch's."""
    regular = process(8 * GIB, settings=Settings(False, 2 * MIB))
    (small,) = scaled_launch(launch(regular), 10_000).processes
    assert small.clients[0].segment_bytes == 16 * MIB


def test_an_arena_that_holds_less_when_scaled_is_told() -> None:
    """Rounding up may leave no room for the segment: that is another launch, and says so."""
    full = launch(process(80 * MIB, 16 * MIB, settings=HUGE._replace(arena_bytes=96 * MIB)))
    changed = changed_by_scale(full, scaled_launch(full, 7))
    assert changed == ["rank 0, global segment: arena at full size, hugetlb when scaled"]
    assert changed_by_scale(full, scaled_launch(full, 8)) == []
    assert scaled_launch(full, 1) is full


def member(one: MappedProcess, program: str = "store_service", **more: Any) -> Member:
    return Member(one.name, program, one, {}, **more)


def plan(
    *processes: MappedProcess, pages: int = 100, members: tuple[Member, ...] = (), **more: Any
) -> RehearsalPlan:
    every = processes or (process(),)
    stock = {ANYWHERE: Stock(pages, pages)}
    found = plan_members(
        members or tuple(member(one) for one in every), launch(*every), stock, LIBRARY
    )
    return found._replace(**more)


def run_of(
    found: RehearsalPlan,
    *,
    short: int = 0,
    error: str = "",
    ended: int | None = None,
    at: int = -1,
    pinned: int = 0,
    **more: Any,
) -> RehearsalRun:
    """A run as predicted, but for ``short`` pages and ``error`` at the last or ``at``-th step."""
    done = []
    steps = found.steps[: at + 1] if at >= 0 else found.steps
    for index, step in enumerate(steps):
        pages = dict(predicted_pages(step.taken or ()))
        last = index == len(steps) - 1
        if last and short:
            pages[ANYWHERE] = pages.get(ANYWHERE, 0) - short
        gone = ended if last else None
        done.append(StepResult(step, error if last else "", 0.1, pages, ended=gone))
    held = tuple(ProcessMemory(one, pinned, 0, MIB) for one in found.members)
    moved = Transfer("rank 0", "rank 0", 1024)
    return RehearsalRun(tuple(done), held, {ANYWHERE: 48}, moved, "", {})._replace(**more)


REFUSED, SIGBUS = "setup returns -600", "SIGBUS (exit code 135)"
REFUSED_TRANSFER = Transfer("rank 0", "rank 0", 9, "put returns -800")
FELL_BACK = process(settings=HUGE._replace(arena_bytes=900 * MIB))


@each_row(
    ("found", "run", "status", "code", "as_predicted"),
    [
        (plan(), run_of(plan()), "starts", 0, True),
        (plan(), run_of(plan(), short=1), "differs", 1, False),
        (plan(), run_of(plan(), error=REFUSED), "differs", 2, False),
        (plan(), run_of(plan(), error=SIGBUS, ended=-7), "differs", 2, False),
        (plan(pages=20), run_of(plan(pages=20), error=REFUSED), "fails", 2, True),
        (plan(pages=20), run_of(plan(pages=20), error=REFUSED, short=1), "differs", 2, False),
        (plan(pages=20), run_of(plan(pages=20), error="setup returns -1"), "differs", 2, False),
        (plan(pages=20), run_of(plan(pages=20)), "differs", 1, False),
        (plan(FELL_BACK), run_of(plan(FELL_BACK)), "warns", 1, True),
        (plan(), run_of(plan(), left={2 * MIB: 3}), "warns", 1, True),
        (plan(may_fail="a race"), run_of(plan()), "warns", 1, True),
        (plan(may_fail="a race"), run_of(plan(), error=REFUSED), "fails", 2, True),
        (plan(refused="no such flag"), run_of(plan()), "fails", 2, True),
        (plan(), run_of(plan(), stopped="the host came to its limit"), "stopped", 3, None),
        (plan(replayed=None), run_of(plan()), "warns", 1, None),
        (plan(replayed=None), run_of(plan(), error=REFUSED), "fails", 2, None),
        (plan(), run_of(plan(), transfer=REFUSED_TRANSFER), "warns", 1, True),
    ],
)
def test_the_verdict(
    found: RehearsalPlan, run: RehearsalRun, status: str, code: int, as_predicted: bool | None
) -> None:
    """Each way in which a rehearsal can end; its object has the form that is promised."""
    answer = judge(found, run)
    assert (answer.status, answer.exit_code, answer.as_predicted) == (status, code, as_predicted)
    shown, why = answer_object(answer), answer.reason
    named = envelope("rehearse", code, shown, word=status, reason=why, command="rehearse")
    valid(named, SCHEMA)
    text = answer_text(answer, "never")
    assert text.startswith(f"{status.upper()}: {answer.reason}")
    assert all(difference in text for difference in answer.differences)


@pytest.mark.parametrize(
    ("pinned", "more", "status"),
    [
        (192 * MIB, 0, "starts"),
        (192 * MIB + 4096, 0, "differs"),
        (192 * MIB + 4096, 4 * MIB, "starts"),  # as a transparent huge page happens to lie
        (196 * MIB + 4096, 4 * MIB, "differs"),
        (192 * MIB - 4096, 4 * MIB, "differs"),
    ],
)
def test_pinned_memory_is_compared_to_the_page(pinned: int, more: int, status: str) -> None:
    """One page more or less is a difference, but for what the kernel's own choice may add."""
    members = (member(process(), nics=("a", "b"), pinned_bytes=192 * MIB, more_bytes=more),)
    found = plan(members=members)
    assert judge(found, run_of(found, pinned=pinned)).status == status


def test_what_is_pinned_for_a_rank_without_a_segment_is_another_processes() -> None:
    """Its memory is registered by the client, so the sum alone is compared."""
    rank = process(0, 16 * MIB, name="rank 0", dummy=True)
    members = (
        member(process(name="client"), "mooncake_client", nics=("a",), pinned_bytes=96 * MIB),
        member(rank, "sglang", nics=("a",), pinned_bytes=16 * MIB),
    )
    found = plan(process(name="client"), rank, members=members)
    run = run_of(found)
    held = tuple(
        ProcessMemory(one, 112 * MIB if one.name == "client" else 0, 0, 0) for one in found.members
    )
    assert judge(found, run._replace(processes=held)).status == "starts"
    assert judge(found, run).status == "differs"


FAILS, DIES = OnShortage.FAILS, OnShortage.BUS_ERROR


@each_row(
    ("predicted", "shortage", "may_die", "measured", "ended", "kind", "same"),
    [
        ("setup returns -600: Failed to allocate", FAILS, False, REFUSED, None, "setup", True),
        ("setup returns -600: Failed", FAILS, False, "setup returns -6", None, "pool", True),
        ("setup returns -600: Failed", FAILS, False, "setup returns -1", None, "setup", False),
        ("setup raises MemoryError", FAILS, False, "setup raises MemoryError", None, "setup", True),
        ("it is touched", DIES, False, SIGBUS, -7, "setup", True),
        ("it is touched", DIES, False, "SIGSEGV (exit code 139)", -11, "setup", False),
        ("setup returns -600", FAILS, True, SIGBUS, -7, "setup", True),
        ("setup returns -600", FAILS, False, SIGBUS, -7, "setup", False),
        ("setup returns -600", FAILS, False, "SIGABRT (exit code 134)", -6, "program", True),
        ("it is touched", DIES, False, "SIGABRT (exit code 134)", -6, "program", False),
        ("setup returns -600", FAILS, False, "SIGABRT (exit code 134)", -6, "setup", False),
        ("RuntimeError: Failed", FAILS, False, "RuntimeError: Failed to", None, "pool", True),
    ],
)
def test_errors_are_the_same_where_the_words_or_the_signal_are(
    predicted: str,
    shortage: OnShortage,
    may_die: bool,
    measured: str,
    ended: int | None,
    kind: str,
    same: bool,
) -> None:
    """A program of its own ends in its own way; anything else says what was foretold."""
    asked = plan().steps[0].asked[0]
    foretold = asked._replace(error=predicted, on_shortage=shortage, may_die=may_die)
    step = plan().steps[0]._replace(action=kind)
    assert same_error(foretold, StepResult(step, measured, 0.1, {}, ended=ended)) is same


def test_the_host_keeps_a_tenth(tmp_path: Path) -> None:
    """Of the memory that is not huge pages: a pool of nearly all of it is no reason to refuse."""
    (tmp_path / "proc").mkdir()
    file = tmp_path / "proc/meminfo"
    file.write_text("MemTotal: 1000 kB\nMemAvailable: 30 kB\nHugetlb: 800 kB\n")
    watch = MemoryWatch(Root(str(tmp_path)), ())
    assert watch.room().bytes == 10 * 1024
    file.write_text("MemTotal: 1000 kB\nMemAvailable: 15 kB\nHugetlb: 800 kB\n")
    assert watch.room().bytes == -5 * 1024
    assert watch.lowest_bytes == -5 * 1024
    file.write_text("")
    assert watch.room().bytes < 0


def test_a_cgroup_that_cannot_be_read_leaves_what_the_caller_says(tmp_path: Path) -> None:
    """Behind ``ip netns exec`` none is mounted: nothing may be taken, or what measuring needs."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n")
    (tmp_path / "proc/self/mountinfo").write_text("")
    root = Root(str(tmp_path))
    rooms = [MemoryWatch(root, (), *given).room() for given in ((), (128 << 20,))]
    assert [room.bytes for room in rooms] == [-1, 128 << 20]
    assert all("cannot be read" in room.source for room in rooms)


def test_what_is_bound_to_a_node_needs_room_there(tmp_path: Path) -> None:
    """A node may be full while the host is not; its huge pages are no part of its tenth."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 10000 kB\nMemAvailable: 9000 kB\n")
    node = tmp_path / "sys/devices/system/node/node1"
    node.mkdir(parents=True)
    rows = {"MemTotal": 5000, "MemFree": 600, "Inactive(file)": 100}
    text = "".join(f"Node 1 {name}: {size} kB\n" for name, size in rows.items())
    (node / "meminfo").write_text(text)
    watch = MemoryWatch(Root(str(tmp_path)), (1,))
    assert watch.room().bytes == 200 * 1024
    assert watch.first_shortage({None: 1 << 20, 1: 200 * 1024}) is None
    found = watch.first_shortage({None: 1 << 20, 1: 200 * 1024 + 1})
    assert found is not None
    assert (found[0], found[1].numa_node) == (200 * 1024 + 1, 1)
    assert MemoryWatch(Root(str(tmp_path)), ()).room().bytes == 8000 * 1024


def test_others_pages_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in use, and those promised."""
    monkeypatch.setattr("preflight.benchmark.rehearsal.run._QUIET_SECONDS", 0.0)
    pool = HostPool(total=10, free=6, reserved=2)
    root = Root(str(Host(pools={2 * MIB: pool}).write(tmp_path)))
    assert pages_in_use(root)[ANYWHERE] == 4
    assert pages_of_others(root)[0].startswith("others use 4 pages of 2.00 MiB and 2 more")
    quiet = Root(str(Host(pools={2 * MIB: HostPool(total=10)}).write(tmp_path / "quiet")))
    assert pages_of_others(quiet) == []


@pytest.mark.parametrize(
    ("own", "status"), [(48 * 2 * MIB, "warns"), (47 * 2 * MIB, "differs"), (None, "differs")]
)
def test_pages_that_others_take_meanwhile_are_no_difference(own: int | None, status: str) -> None:
    """The host has more in use than was predicted; the processes themselves have what was."""
    found = plan(process(32 * 2 * MIB, 16 * 2 * MIB, settings=HUGE))
    done = run_of(found, short=-44)
    last = done.done[-1]
    assert predicted_pages(last.step.taken or ())[ANYWHERE] == 48
    answer = judge(found, done._replace(done=(*done.done[:-1], last._replace(huge_bytes=own))))
    assert answer.status == status
    assert ("others took" in " ".join(answer.warnings)) == (status == "warns")


def test_what_is_given_back_is_waited_for(tmp_path: Path) -> None:
    """Pages of a process that is gone, which come back one by one, are nobody's."""
    root = Root(str(Host(pools={2 * MIB: HostPool(total=10, free=7, reserved=1)}).write(tmp_path)))
    pool = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB"
    back = threading.Timer(0.02, lambda: (pool / "resv_hugepages").write_text("0\n"))
    rest = threading.Timer(0.1, lambda: (pool / "free_hugepages").write_text("10\n"))
    back.start()
    rest.start()
    assert pages_of_others(root) == []


@pytest.fixture
def player(tmp_path: Path) -> Iterator[Running]:
    running = Running(sys.executable, {}, tmp_path / "log")
    yield running
    running.end()


@pytest.mark.slow
def test_a_step_is_broken_off_when_memory_runs_out(player: Running) -> None:
    """The look during a step ends it; the process is gone at once, its memory with it."""

    def look() -> None:
        raise StoppedError("the host came to its limit")

    with pytest.raises(StoppedError):
        player.ask({"do": "own_pool", "bytes": 64 * MIB, "page_bytes": 0}, 60, look)
    player.end()
    reply = player.wait_until(lambda: False, 60)
    assert (reply.error, reply.ended) == ("SIGKILL (exit code 137)", -9)
    assert not Path(f"/proc/{player.pid}").exists()


@pytest.mark.slow
def test_a_step_has_a_limit_of_time_and_a_dead_process_is_an_answer(player: Running) -> None:
    """What hangs is not waited for for ever; a signal is no failure of the command."""
    with pytest.raises(StoppedError, match=r"more than 0\.05 s"):
        player.answer(0.05, lambda: None)  # nothing was asked
    player._process.kill()
    answer = player.ask({"do": "load", "folder": None}, 60, lambda: None)
    assert answer.error == "SIGKILL (exit code 137)"


@pytest.mark.slow
def test_memory_of_sglangs_own_is_there_at_once(player: Running) -> None:
    """Every page is touched, as SGLang does before it pins them."""
    order = {"do": "own_pool", "bytes": 32 * MIB + 1, "page_bytes": 0}
    assert player.ask(order, 60, lambda: None).error == ""
    status = Path(f"/proc/{player.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) * 1024 > 32 * MIB


@pytest.mark.parametrize(
    ("text", "cpus"), [("0", {0}), ("0-2,8\n", {0, 1, 2, 8}), ("\n", set()), ("3,5-6", {3, 5, 6})]
)
def test_a_nodes_cpus_are_read(text: str, cpus: set[int]) -> None:
    """As the kernel lists them; a node may have none."""
    assert cpus_of(text) == cpus


def test_the_process_needs_nothing_of_this_program() -> None:
    """It is run by a Python that may have Mooncake and nothing else."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(CHILD.read_text())):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - sys.stdlib_module_names == {"mooncake"}


def test_the_last_errors_are_shown() -> None:
    """glog's own, and where there is none the last lines."""
    text = "I0101 1 hello\nE0101 2 first\nW0101 3 careful\nE0101 4 second\nI0101 5 bye\n"
    assert worst_lines(text) == ("E0101 2 first", "E0101 4 second")
    assert worst_lines("one\n\ntwo\n") == ("one", "two")
    assert worst_lines("") == ()


def test_a_library_is_found_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its version is its wheel's; a folder called mooncake that is of no wheel is not trusted."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = find_library(None)
    assert isinstance(found, Unknown)
    assert "is of no wheel" in found.reason
    (tmp_path / "mooncake_transfer_engine_non_cuda-0.3.13.post1.dist-info").mkdir()
    found = find_library(None)
    assert isinstance(found, Library)
    assert found.name == "mooncake-transfer-engine-non-cuda 0.3.13.post1"
    assert found.program("mooncake_master") == f"{tmp_path}/mooncake/mooncake_master"


Said = Mapping[str, Any]


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Said]:
    code = run_program(["measure", "--rehearse", "--json", *words])
    answer = json.loads(capsys.readouterr().out)
    valid(answer, SCHEMA)
    assert answer["exit_code"] == code
    return code, answer


LAUNCH = ["--", "python3", "-m", "mooncake.mooncake_store_service"]


def test_without_the_library_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unknown, and the command that installs it."""
    left = [one for one in sys.path if not (Path(one or ".") / "mooncake/__init__.py").exists()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *left])
    code, answer = said(LAUNCH, capsys)
    assert (code, answer["status"]) == (3, "unknown")
    assert "pip install mooncake-transfer-engine" in answer["reason"]


@pytest.mark.slow
def test_a_python_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With its path and what went wrong."""
    code, answer = said(["--python", "/no/such/python", *LAUNCH], capsys)
    assert (code, answer["status"]) == (3, "unknown")
    assert answer["reason"].startswith("--python /no/such/python: cannot be run")
    code, answer = said(["--python", "/bin/false", *LAUNCH], capsys)
    assert (code, "is no Python" in answer["reason"]) == (3, True)


OLD, NEW = "0.3.13.post1", "0.3.14"
# Of a machine with six processors, and a device that takes any length in one registration.
SIX = Forking(6, 1 << 40, mooncake_release("0.3.13.post1"))
SIX_NEW = SIX._replace(release=mooncake_release("0.3.14"))


def planned(
    segment: int = 32 * MIB,
    local: int = 16 * MIB,
    *,
    pools: tuple[int, ...] = (),
    forking: Forking | None = SIX,
    settings: Settings = HUGE,
    nic_nodes: tuple[int, ...] = (),
    halves: bool = False,
    clients: int = 1,
) -> RehearsalPlan:
    client = StoreClient(segment, local, Protocol.RDMA)
    split = (halves,) * len(pools)
    rank = MappedProcess("rank", settings, pools, (client,) * clients, split_pools=split)
    version = NEW if forking is SIX_NEW else OLD
    stock = {spot: Stock(9000, 9000) for spot in (ANYWHERE, Spot(2 * MIB, 0), Spot(2 * MIB, 1))}
    library = Library("python3", "/opt", "mooncake-transfer-engine", version)
    member = Member("rank", "sglang", rank, {}, forking=forking)
    return plan_members(
        (member,), Launch((rank,), mooncake_release(version), nic_nodes), stock, library
    )


def foretold(plan: RehearsalPlan) -> tuple[str, int, str]:
    """Where it is to end, how many pages it has then, and what the call says; "" for nowhere."""
    pages = 0
    for step in plan.steps:
        assert step.taken is not None, "a step after the end"
        pages += predicted_pages(step.taken).get(ANYWHERE, 0)
        if step.failure is not None:
            return step.what, pages, step.failure.error.partition(":")[0]
    return "", pages, ""


CLIENT = "store client (local buffer, global segment)"
NOT_REGISTERED = "register_buffer of 64000000 bytes returns -600"
REGISTERING = "registering L2 host pool"
ARENA = HUGE._replace(arena_bytes=100 * MIB)


@each_row(
    ("given", "expected"),
    [
        # Measured in the lab on soft-RoCE, rdma-core 44: what stays mapped is there until the end.
        ({"segment": 4 * GIB}, (CLIENT, 2056, REFUSED)),
        ({"segment": 4 * GIB, "nic_nodes": (0, 1)}, (CLIENT, 2056, REFUSED)),
        ({"segment": 6 * 704 * MIB}, ("", 2120, "")),
        ({"segment": 4 * GIB, "forking": None}, ("", 2056, "")),
        ({"segment": 4 * GIB, "forking": SIX_NEW}, ("", 2056, "")),
        ({"local": 16777217}, (CLIENT, 9, REFUSED)),
        ({"local": 16777217, "forking": SIX_NEW}, (CLIENT, 9, REFUSED)),
        ({"local": 16777217, "settings": ARENA}, ("", 50, "")),
        ({"pools": (64_000_000,)}, (REGISTERING, 55, NOT_REGISTERED)),
        ({"pools": (62 * MIB,)}, ("", 55, "")),
        ({"pools": (64_000_000,), "forking": None}, ("", 55, "")),
        ({"pools": (64_000_000,), "forking": SIX_NEW}, ("", 55, "")),
        # The newest Mooncake registers all of a pool for K, whatever the protocol.
        ({"pools": (64 * MIB,), "halves": True}, ("", 56, "")),
        (
            {"pools": (64 * MIB,), "halves": True, "forking": SIX_NEW},
            (REGISTERING, 56, "register_buffer of 33554432 bytes returns -600"),
        ),
    ],
)  # fmt: skip
def test_where_it_ends(given: dict[str, Any], expected: tuple[str, int, str]) -> None:
    """The first registration that is refused ends it, with what was mapped until then."""
    plan = planned(**given)
    failing = next((n for n, step in enumerate(plan.steps) if step.failure), None)
    if failing is not None:
        assert all(step.taken is None for step in plan.steps[failing + 1 :])
        plan = plan._replace(steps=plan.steps[: failing + 1])
    assert foretold(plan) == expected
    assert bool(expected[0]) == any(step.refused for step in plan.steps)


def test_a_hot_cache_is_done_without() -> None:
    """Its pages go back, setup goes on, and the answer warns."""
    cache = HUGE._replace(hot_cache=HotCache(30_000_000, 3_000_000, True))
    plan = planned(local=0, settings=cache)
    assert foretold(plan) == ("", 16, "")
    answer = judge(plan, ran(plan))
    assert answer.status == "warns"
    assert "hot cache of 30000000 B is no whole number of 2 MiB pages" in answer.reason


def test_each_of_several_clients_maps_its_own() -> None:
    """An arena of 100 MiB serves two of three clients in one process, as was measured."""
    plan = planned(clients=3, forking=None, settings=ARENA)
    pages = [predicted_pages(step.taken or ()).get(ANYWHERE, 0) for step in plan.steps]
    assert pages == [50, 0, 24]


@pytest.mark.parametrize("nodes", [(), (0, 1)])
def test_a_segment_in_shares_is_registered_once(nodes: tuple[int, ...]) -> None:
    """One region of all of it, which is what decides whether it is touched in blocks."""
    clients = (StoreClient(4 * GIB, 0, Protocol.RDMA),) * 2
    rank = MappedProcess("rank", HUGE, clients=clients)
    (one,) = replay(Launch((rank,), mooncake_release(OLD), nodes), EndlessPools())
    found = list(all_regions_of(one.allocations))
    assert found == [Region("global segment", 4 * GIB, 2 * MIB)] * 2
    assert "6 blocks" in str(bad_end(found[0], SIX))


def ran(plan: RehearsalPlan, error: str = "") -> RehearsalRun:
    """As planned, to the step that is to fail, or that fails with ``error``."""
    done = []
    for step in plan.steps:
        said = step.failure.error.partition(":")[0] if step.failure else error
        done.append(StepResult(step, said, 0.1, predicted_pages(step.taken or ())))
        if said:
            break
    held = (ProcessMemory(plan.members[0], 0, 0, 0),)
    return RehearsalRun(tuple(done), held, {}, Transfer("", "", 0), "", {})
