"""What ``measure`` plans, reads out of a log, and concludes: without the library."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Status
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.benchmark.measuring.findings import (
    consequences,
    findings,
    rate_text,
    read_seconds,
    ready_seconds,
)
from preflight.benchmark.measuring.kills import OBJECTS as KILL_OBJECTS
from preflight.benchmark.measuring.kills import Survival, survival_text
from preflight.benchmark.measuring.measure import (
    MeasureAnswer,
    answer_object,
    answer_text,
    own_address,
    prepare,
    processor_quota,
    serve,
)
from preflight.benchmark.measuring.records import (
    MOST_CALLS,
    PARTS,
    EngineUse,
    LaunchWish,
    MeasuredPart,
    MeasuredRun,
    ProcessStart,
    Rate,
    deadlines,
    engine_use,
    launch_wish,
    plan_populating,
    read_measured,
    slice_seconds,
    store_plan,
    transfer_buffer_bytes,
    transfer_sizes,
)
from preflight.benchmark.measuring.run import (
    LOOPBACK,
    MeasureError,
    Measuring,
    transport_environment,
)
from preflight.benchmark.rehearsal.records import Library
from preflight.benchmark.rehearsal.run import MemoryWatch, Room
from preflight.cache_sizing.capacity.tiers import PageObjects
from preflight.cli.main import run
from preflight.cli.measure import PARTS as NAMED
from preflight.cli.measure import seconds_of
from preflight.command_inputs.host_source import open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from tests.builders.hosts import GIB, MIB
from tests.paths import ROOT
from tests.valid import valid

Out = pytest.CaptureFixture[str]

KIB = 1024
SCHEMA = json.loads((ROOT / "preflight/report/schemas/measure-v1.schema.json").read_text())


@pytest.mark.parametrize("parts", [PARTS, ("transfer",), ("memory", "storage")])
def test_the_parts_share_the_budget_and_none_passes_it(parts: tuple[str, ...]) -> None:
    assert NAMED == PARTS
    ends = [0.0, *deadlines(parts, 30.0).values()]
    assert ends == sorted(ends)
    assert ends[-1] == 30.0
    assert all(after > before for before, after in pairwise(ends))


@pytest.mark.parametrize(("left", "items", "each"), [(10, 4, 2.5), (-3, 2, 0.05), (1, 0, 1)])
def test_a_late_measurement_is_short(left: float, items: int, each: float) -> None:
    assert slice_seconds(left, items) == each


@pytest.mark.parametrize(
    ("free", "spend", "found"),
    [
        ({(0, None): 8 * GIB}, GIB, [(0, GIB, 64 * MIB)]),
        ({(0, None): 30 * MIB}, GIB, [(0, 30 * MIB, 30 * MIB)]),
        ({(2 * MIB, None): 256 * MIB}, GIB, [(2 * MIB, 128 * MIB, 64 * MIB)]),
        # Of few, half is left all the same; the only one is left alone.
        ({(2 * MIB, 0): 10 * MIB}, GIB, [(2 * MIB, 4 * MIB, 4 * MIB)]),
        ({(GIB, 0): GIB}, 4 * GIB, []),
        ({(GIB, 0): 4 * GIB, (GIB, 1): 2 * GIB}, GIB, [(GIB, GIB, GIB), (GIB, GIB, GIB)]),
        ({(GIB, 0): 4 * GIB}, GIB - 1, []),
        ({(0, None): 0}, GIB, []),
    ],
)
def test_populated_is_what_may_be_spent_and_half_of_what_is_free(
    free: dict[tuple[int, int | None], int], spend: int, found: list[tuple[int, int, int]]
) -> None:
    asked = plan_populating(free, spend)
    assert [(one.page_bytes, one.bytes, one.chunk_bytes) for one in asked] == found


@pytest.mark.parametrize(
    ("object_bytes", "spend", "sizes"),
    [
        (None, 2 * GIB, [64 * KIB, MIB, 16 * MIB, 64 * MIB]),
        (2_621_440, 2 * GIB, [64 * KIB, MIB, 2_621_440, 16 * MIB, 64 * MIB]),
        (None, 64 * MIB, [64 * KIB, MIB, 16 * MIB]),
        (GIB, GIB, [64 * KIB, MIB, 16 * MIB, 64 * MIB]),
    ],
)
def test_two_buffers_are_within_what_may_be_spent(
    object_bytes: int | None, spend: int, sizes: list[int]
) -> None:
    found = transfer_sizes(object_bytes, spend)
    assert found == sizes
    assert max(found) < 2 * transfer_buffer_bytes(found, spend) <= spend


@pytest.mark.parametrize("object_bytes", [None, 4096, 300_000, 5 * MIB, 20 * MIB])
@pytest.mark.parametrize("spend", [64 * MIB, 300 * MIB, 2 * GIB, 64 * GIB])
def test_a_store_is_within_what_may_be_spent(object_bytes: int | None, spend: int) -> None:
    plan = store_plan(object_bytes, spend)
    if plan is None:
        assert (spend, object_bytes) == (64 * MIB, 20 * MIB)
        return
    buffer_bytes = plan.together * plan.object_bytes
    assert plan.segment_bytes + buffer_bytes + 16 * MIB <= spend
    assert plan.most_objects * plan.object_bytes < plan.segment_bytes * 0.75
    assert plan.most_objects >= 2 * plan.together >= 2
    assert plan.together < MOST_CALLS


HEAD = "I1018 00:46:05.915460 2913040 rdma_context.cpp:129] RDMA device: "
TCP = "I1126 18:34:50.071408 26750 tcp_transport.cpp:391] TcpTransport: listen on port 15167\n"
LOGS = (
    ("", EngineUse("", ())),
    (TCP, EngineUse("tcp", ())),
    (f"{HEAD}mlx5_ib1, LID: 519, GID: (GID_Index 0) fe:80\n", EngineUse("rdma", ("mlx5_ib1",))),
    (
        f"E1126 18:34:50.1 267 rdma_context.cpp:77] No matched device found: mlx5_9\n{TCP}",
        EngineUse("tcp", (), "No matched device found: mlx5_9"),
    ),
    (f"{TCP}{HEAD}a, LID: 1\n{HEAD}b, LID: 1\n{HEAD}a, LID: 1\n", EngineUse("rdma", ("a", "b"))),
)


@pytest.mark.parametrize(("log", "used"), LOGS)
def test_what_was_used_is_read_in_the_engines_log(log: str, used: EngineUse) -> None:
    assert engine_use(log) == used


def test_of_the_launchs_variables_those_of_transfers_count() -> None:
    """Not those that take more memory than may be spent, and not those that hide the log."""
    given = {
        "MC_GID_INDEX": "3",
        "MC_MMAP_ARENA_POOL_SIZE": "9gb",
        "MC_STORE_USE_HUGEPAGE": "1",
        "MC_LOG_DIR": "/var/log",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "80gb",
        "LD_LIBRARY_PATH": "/opt/lib",
    }
    assert transport_environment(given) == {"MC_GID_INDEX": "3", "LD_LIBRARY_PATH": "/opt/lib"}


# 1 GB/s of everything; a token has 100,000 bytes.
OBJECTS = PageObjects(64, (3_200_000, 3_200_000))
RANK = ProcessStart("rank 0", {0: 2 * 10**9})
WANTED = LaunchWish("rdma", "mlx5_0", {}, OBJECTS, (RANK,), "/ssd")


def measured(used: EngineUse | None = None, there: EngineUse | None = None) -> MeasuredRun:
    def part(name: str, op: str, **more: Any) -> MeasuredPart:
        return MeasuredPart(name, "did", (Rate(op, "how", MIB, 10**9, 1.0, 9, 0.1, 0.2),), **more)

    parts = (
        part("memory", "populate"),
        part("transfer", "read", used=used, other=there),
        part("store", "get"),
        MeasuredPart("registration", skipped="no NIC"),
        part("storage", "write"),
    )
    return MeasuredRun("mooncake-transfer-engine 0.3.13", 60.0, 2 * GIB, None, parts)


RDMA = EngineUse("rdma", ("mlx5_0",))
TRANSPORTS: tuple[tuple[EngineUse | None, EngineUse | None, list[Status]], ...] = (
    (None, None, []),
    (RDMA, RDMA, [Status.PASS]),
    (RDMA, EngineUse("tcp", ()), [Status.PASS, Status.WARN]),
    (EngineUse("rdma", ("mlx5_1",)), None, [Status.WARN]),
    (EngineUse("", ()), None, [Status.UNKNOWN]),
)


@pytest.mark.parametrize(("used", "there", "statuses"), TRANSPORTS)
def test_tcp_where_rdma_is_meant_is_found(
    used: EngineUse | None, there: EngineUse | None, statuses: list[Status]
) -> None:
    found = findings(measured(used, there), WANTED)
    assert [one.status for one in found] == statuses
    assert findings(measured(used, there), WANTED._replace(protocol="tcp")) == []


@pytest.mark.parametrize(
    ("rate", "statuses"),
    [
        (None, {}),
        (9_000.0, {"measure.storage": Status.PASS, "measure.fetch": Status.PASS}),
        # 1.1 GB of cache a second; 1000 tokens in 91 ms, and 100 ms out of the store.
        (11_000.0, {"measure.storage": Status.WARN, "measure.fetch": Status.WARN}),
    ],
)
def test_rates_are_held_against_the_prefill_rate(
    rate: float | None, statuses: Mapping[str, Status]
) -> None:
    found = findings(measured()._replace(tokens_per_second=rate), WANTED)
    assert {one.check: one.status for one in found} == statuses
    for one in found:
        assert one.have
        assert one.need
    unknown = WANTED._replace(objects=Unknown("no model"))
    assert findings(measured()._replace(tokens_per_second=rate), unknown) == []


@pytest.mark.parametrize(("rate", "status"), [(9_000.0, Status.PASS), (11_000.0, Status.WARN)])
def test_the_network_to_another_host_is_held_against_the_prefill_rate(
    rate: float, status: Status
) -> None:
    """1000 tokens in 100 ms over a link of 1 GB/s; 91 ms to compute them at 11,000 a second."""
    part = measured().part("transfer")
    over = MeasuredRun("", 60.0, GIB, "10.0.0.2:9", (part,), rate)
    (found,) = (one for one in findings(over, WANTED) if one.check == "measure.fetch")
    assert (found.status, "the other host" in found.subject) == (status, True)
    (said,) = (one for one in consequences(over, WANTED) if "1000 tokens" in one)
    assert "100 ms" in said
    assert not any("the other host" in one.subject for one in findings(measured(), WANTED))


def test_who_measures_a_network_is_told_what_judges_it() -> None:
    over = measured()._replace(peer="10.0.0.2:9")
    assert "--prefill-rate" in consequences(over, WANTED)[-1]
    unknown = WANTED._replace(objects=Unknown("no launch says it"))
    assert "no launch says it" in consequences(over, unknown)[-1]
    assert "judged" not in "".join(consequences(over._replace(tokens_per_second=9.0), WANTED))


@given(st.floats(1e3, 1e15))
def test_a_rate_has_three_digits(speed: float) -> None:
    number, unit = rate_text(speed).split()
    shown = float(number) * {"MB/s": 1e6, "GB/s": 1e9}[unit]
    assert abs(shown - speed) <= max(0.0051 * speed, 0.0051e6)
    assert len(number.replace(".", "")) == 3 or "." not in number or speed < 1e6


@pytest.mark.parametrize(
    ("op", "speed", "statuses"),
    [
        ("copy", 10**9, []),  # no copy to a GPU says nothing of L2
        ("copy-to-gpu", 50 * 10**9, [Status.PASS]),
        ("copy-to-gpu", 10**9, [Status.WARN]),  # 100 ms, and 91 ms to compute them
    ],
)
def test_l2_is_held_against_prefill_by_its_copy_to_a_gpu(
    op: str, speed: float, statuses: list[Status]
) -> None:
    run = with_rates("memory", rate("populate", 10**9), rate(op, speed))
    found = findings(run._replace(tokens_per_second=11_000.0), WANTED)
    assert [one.status for one in found if "L2" in one.subject] == statuses


def with_rates(name: str, *rates: Rate, **more: Any) -> MeasuredRun:
    parts = [
        one._replace(rates=rates, skipped="", **more) if one.name == name else one
        for one in measured().parts
    ]
    return measured()._replace(parts=tuple(parts))


def rate(op: str, bytes_per_second: float, nic: str = "", link: float = 0.0) -> Rate:
    return Rate(op, "how", MIB, int(bytes_per_second), 1.0, 9, 0.1, 0.2, 0, nic, link)


REGISTERED = with_rates("registration", rate("register", 10**9, "mlx5_0"),
                        rate("register", 2 * 10**9, "mlx5_1"))  # fmt: skip


@pytest.mark.parametrize(
    ("run_", "start", "devices", "seconds", "missing"),
    [
        (measured(), RANK, "", 2.0, ""),
        (measured(), RANK._replace(populated={0: 10**9, GIB: GIB}), "", 1.0, "1 GiB pages"),
        (measured(), RANK._replace(registered_bytes=10**9), "", 2.0, "registering"),
        (measured(), RANK._replace(registered_bytes=Unknown("$SIZE")), "", 2.0, "$SIZE"),
        # One NIC after the other; of the launch's alone where it names them.
        (REGISTERED, RANK._replace(registered_bytes=2 * 10**9), "", 5.0, ""),
        (REGISTERED, RANK._replace(registered_bytes=2 * 10**9), "mlx5_1", 3.0, ""),
        (REGISTERED, RANK._replace(registered_bytes=10**9), "mlx5_9", 2.0, "registering"),
        (with_rates("store", Rate("setup", "", 0, 0, 0.5)), RANK, "", 2.5, ""),
    ],
)
def test_when_a_process_has_its_memory(
    run_: MeasuredRun, start: ProcessStart, devices: str, seconds: float, missing: str
) -> None:
    found, unknown = ready_seconds(start, run_, WANTED._replace(devices=devices))
    assert found == pytest.approx(seconds)
    assert missing in unknown
    assert bool(missing) == bool(unknown)


@pytest.mark.parametrize(
    ("allowed", "pages", "status", "advice"),
    [
        (3, 0, Status.PASS, ""),
        # A quarter of 2 s on top is what a start may take longer.
        (2, 0, Status.WARN, "failureThreshold: 1,"),
        (3, GIB, Status.UNKNOWN, ""),
        (None, 0, None, ""),
    ],
)
def test_a_startup_probe_is_held_against_the_time(
    allowed: int | None, pages: int, status: Status | None, advice: str
) -> None:
    start = RANK._replace(populated={0: 2 * 10**9, pages: 2 * 10**9}, allowed_seconds=allowed)
    found = findings(measured(), WANTED._replace(starts=(start,), protocol="tcp"))
    told = [(one.check, one.status) for one in found]
    assert told == ([] if status is None else [("measure.ready", status)])
    assert all(advice in one.advice for one in found)


def test_what_follows_of_times_and_hits_is_said() -> None:
    wish = WANTED._replace(starts=(RANK, RANK._replace(name="rank 1")))
    each, every, worth = consequences(measured(), wish)
    assert "rank 0 and 1 more" in each
    assert "2 s" in each
    assert "4 s" in every
    assert "L3 100 ms" in worth
    found = read_seconds(with_rates("memory", rate("copy", 10**10)), 100_000)
    assert dict(found) == {"L2": 0.01, "L3": 0.1}
    assert consequences(MeasuredRun("", 1.0, 1), wish) == []


GB = 1e9
LATE_NIC = Rate("write", "by b alone", 16 * MIB, 0, 0.0, 0, nic="b")
NICS: tuple[tuple[tuple[Rate, ...], tuple[str, ...], list[Status]], ...] = (
    ((rate("write", 9 * GB, "a", 12.5 * GB),), (), [Status.PASS]),
    ((rate("write", 6 * GB, "a", 12.5 * GB),), (), [Status.WARN]),
    # In software, a port tells nothing: the others do.
    ((rate("write", GB, "a"), rate("write", 0.9 * GB, "b")), (), [Status.PASS, Status.PASS]),
    ((rate("write", GB, "a"), rate("write", 0.4 * GB, "b")), (), [Status.PASS, Status.WARN]),
    ((rate("write", GB, "a"), rate("write", 0, "b")), ("b: returns -1",),
     [Status.PASS, Status.WARN]),
    # 32 MiB take the other 0.03 s.
    ((rate("write", GB, "a"), LATE_NIC._replace(seconds=8.0)), ("b: it took more than 8 s",),
     [Status.PASS, Status.WARN]),
    ((rate("write", GB, "a"), LATE_NIC._replace(seconds=0.06)), ("b: it took more than 0.06 s",),
     [Status.PASS, Status.UNKNOWN]),
    ((LATE_NIC._replace(seconds=8.0, link_bytes_per_second=GB),), ("b: it took more than 8 s",),
     [Status.UNKNOWN]),
)  # fmt: skip


@pytest.mark.parametrize(("rates", "notes", "statuses"), NICS)
def test_a_slow_nic_is_found(
    rates: tuple[Rate, ...], notes: tuple[str, ...], statuses: list[Status]
) -> None:
    run_ = with_rates("transfer", *rates, notes=notes)
    found = [one for one in findings(run_, WANTED) if one.check == "measure.nic"]
    assert [one.status for one in found] == statuses
    assert all(note.partition(": ")[2] in found[-1].text for note in notes)


@pytest.mark.parametrize(
    ("run_", "rate", "code"),
    [
        (measured(RDMA, RDMA), 9_000.0, 0),
        (measured(RDMA, RDMA), 11_000.0, 1),
        (measured(EngineUse("", ())), None, 3),
        (MeasuredRun(Unknown("no wheel"), 1.0, 1, None, (MeasuredPart("store", skipped="x"),)),
         None, 3),
        (measured()._replace(parts=(*measured().parts, MeasuredPart("store", failed="SIGBUS"))),
         None, 3),
    ],
)  # fmt: skip
def test_the_answer_is_valid_and_says_how_it_went(
    run_: MeasuredRun, rate: float | None, code: int
) -> None:
    judged = findings(run_._replace(tokens_per_second=rate), WANTED)
    answer = MeasureAnswer(run_, tuple(judged), tuple(consequences(run_, WANTED)))
    assert answer.exit_code == code
    from preflight.base.envelope import envelope

    found = answer_object(answer)
    whole = envelope("measure", code, found, word=answer.status, reason="why", command="measure")
    valid(json.loads(json.dumps(whole, default=lambda one: {"unknown": one.reason})), SCHEMA)
    text = answer_text(answer, "never")
    for part in run_.parts:
        assert f"{part.name}: " in text
        assert part.skipped in text
        assert part.failed in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2m", 120), ("7", 7), ("1.5s", None), ("", None)]
)
def test_a_time_has_a_unit(text: str, seconds: int | None) -> None:
    import click

    if seconds is None:
        with pytest.raises(click.UsageError):
            seconds_of(None, None, text)
    else:
        assert seconds_of(None, None, text) == seconds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "memory,disk"], "none of memory, transfer"),
        (["--budget", "1s"], "--budget"),
        (["--spend", "1mb"], "--spend"),
        (["--spend", "100tb"], "at most half"),
        *(
            (["--to", f"10.0.0.1{port}"], "HOST:PORT/TOKEN")
            for port in ("/a", ":http/a", ":99999/a", ":9")
        ),
        (["--serve", "--only", "memory"], "--serve"),
        (["--address", "10.0.0.1"], "--serve"),
        (["--only", "registration", "--page", "3m"], "--page"),
        (["--only", "registration", "--region", "-1mb"], "--region"),
        (["--only", "memory", "--device", "mlx5_0"], "--device"),
        (["--no-save"], "--no-save"),
        (["--rehearse", "--only", "memory"], "--rehearse"),
        (["--scale", "2"], "--scale"),
        *((["--rehearse", "--scale", scale], scale) for scale in ("0", "-3", "x", "1.5")),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], said: str, capsys: Out) -> None:
    assert run(["measure", *words]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fleet pairs --nodes a,b", "fleet measure"),
        ("probe registration", "mooncake-preflight measure --only registration"),
        ("rehearse registration", "mooncake-preflight measure --rehearse"),
    ],
)
def test_who_types_an_old_name_is_told_the_new_one(old: str, new: str, capsys: Out) -> None:
    assert run(old.split()) == 64
    assert new in capsys.readouterr().err


def test_the_address_is_that_of_the_way_to_the_other_host() -> None:
    assert own_address("127.0.0.1:9/token") == "127.0.0.1"
    assert own_address()


class Engines:
    """Stands in for Measuring: counts the engines that run."""

    def __init__(self) -> None:
        self.running, self.started = 0, 0

    def serve(self, stack: ExitStack, host: str) -> int:
        self.running, self.started = self.running + 1, self.started + 1
        stack.callback(lambda: setattr(self, "running", self.running - 1))
        return 4321


def test_an_engine_runs_only_for_who_has_the_token() -> None:
    """One is started to try it; one more for the right token, until that side is gone."""
    engines, told = Engines(), list[str]()
    serving = Thread(target=serve, args=(engines, LOOPBACK, 4.0, told.append), daemon=True)
    serving.start()
    while not told:
        time.sleep(0.01)
    where, _, token = told[0].partition("/")
    place = (LOOPBACK, int(where.rpartition(":")[2]))
    for sent, reply in ((b"wrong", b""), (token.encode(), b"4321"), (b"\xff", b"")):
        with socket.create_connection(place, 5) as asking:
            asking.sendall(sent)
            assert asking.recv(100) == reply
            assert engines.running == bool(reply)
    serving.join(9)
    assert (engines.running, engines.started) == (0, 2)


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({"cpu.max": "20000 100000"}, 0.2),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}, 1.5),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_a_quota_of_processors_is_read(
    files: Mapping[str, str], processors: float | None, tmp_path: Path
) -> None:
    kind = "cgroup" if "cpu.cfs_quota_us" in files else "cgroup2"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    number = "4:cpu" if kind == "cgroup" else "0:"
    (tmp_path / "proc/self/cgroup").write_text(f"{number}:/job\n")
    mounted = f"30 25 0:26 / /sys/fs/cgroup rw - {kind} cgroup rw,cpu\n"
    (tmp_path / "proc/self/mountinfo").write_text(mounted)
    for name, text in files.items():
        (tmp_path / "sys/fs/cgroup/job" / name).write_text(f"{text}\n")
    found = processor_quota(Root(str(tmp_path)))
    assert (None if found is None else found[0]) == processors


@pytest.mark.parametrize(
    ("speeds", "says"),
    [
        # 64 KiB a second: 1 MiB twice takes 32 s.
        ([65536.0, 65536.0], "write of 1.00 MiB was not measured"),
        ([1e9] * 5 + [MeasureError("read returns -1")], "broken off: read returns -1"),
    ],
)
def test_what_a_slow_or_broken_link_gave_is_shown(
    speeds: list[Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of smaller blocks stand, both ways."""

    def transfer(_self: Measuring, _process: Any, op: str, size: int, *_more: Any) -> Rate:
        speed = speeds[len(done)]
        if isinstance(speed, Exception):
            raise speed
        done.append((op, size))
        return Rate(op, "how", size, int(speed), 1.0)

    done: list[tuple[str, int]] = []
    monkeypatch.setattr(Measuring, "_connect", lambda *_: (None, EngineUse("tcp", ()), "x:1"))
    monkeypatch.setattr(Measuring, "_ask", lambda *_, **__: {"transport": "tcp", "devices": []})
    monkeypatch.setattr(Measuring, "_measure_transfer", transfer)
    monkeypatch.setattr(Measuring, "_idle_gpu", lambda *_: (False, []))
    run_ = Measuring(Unknown("no library"), LaunchWish("tcp"), 20.0, 64 * MIB)
    measured_run = run_.run(("transfer",), LOOPBACK, None, lambda _: None)
    (part,) = measured_run.parts
    assert [(each.op, each.size_bytes) for each in part.rates] == done
    assert {op for op, _ in done} == {"write", "read"}
    answer = MeasureAnswer(measured_run)
    assert answer.exit_code == (3 if "broken" in says else 0)
    text = " ".join(answer_text(answer, "never").split())
    assert says in text
    assert "64.00 KiB" in text
    from preflight.base.envelope import envelope

    code, told = answer.exit_code, answer_object(answer)
    valid(envelope("measure", code, told, word=answer.status, reason="", command="measure"), SCHEMA)


SCRIPT = """\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_PROTOCOL={protocol} MC_GID_INDEX=3
export MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb {more}
{python} -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --hicache-size 4 \
--enable-hierarchical-cache --hicache-storage-backend mooncake --page-size 64 \
--hicache-mem-layout page_first
"""
OFFLOAD = "MOONCAKE_ENABLE_SSD_OFFLOAD=1 MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/ssd"


@pytest.mark.parametrize("protocol", ["rdma", "tcp"])
def test_a_launch_says_protocol_sizes_and_folder(protocol: str, tmp_path: Any) -> None:
    file = tmp_path / "launch.sh"
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    file.write_text(SCRIPT.format(protocol=protocol, more=OFFLOAD, python=python))
    host = open_host("demo:h800")
    sized = size_and_needs(LaunchWords((str(file),)), host)
    assert sized is not None
    wish = launch_wish(sized, host)
    assert (wish.protocol, wish.folder, wish.python) == (protocol, "/ssd", str(python))
    assert wish.environment["MC_GID_INDEX"] == "3"
    # K and V of 64 tokens on each rank: 40 layers x 4 heads x 128 x 2 bytes.
    assert wish.object_bytes == 64 * 40 * 4 * 128 * 2
    assert not isinstance(wish.starts, Unknown)
    assert len(wish.starts) == 2
    for start in wish.starts:
        assert 4 * 10**9 + 2 * GIB <= sum(start.populated.values()) < 12 * GIB
        assert bool(start.registered_bytes) == (protocol == "rdma")
        assert start.allowed_seconds is None


PROBED = """\
apiVersion: v1
kind: Pod
metadata: {name: s}
spec:
  containers:
  - name: s
    image: lmsysorg/sglang:v0.5.23
    command: [python3, -m, mooncake.mooncake_store_service]
    env:
    - {name: MOONCAKE_MASTER, value: "10.0.0.1:50051"}
    - {name: MOONCAKE_GLOBAL_SEGMENT_SIZE, value: 4gb}
    - {name: MOONCAKE_PROTOCOL, value: tcp}
    startupProbe: {%s}
"""


@pytest.mark.parametrize(
    ("probe", "allowed"),
    [
        ("periodSeconds: 5, failureThreshold: 60, initialDelaySeconds: 7", 307),
        ("httpGet: {port: 80}", 30),
        ("periodSeconds: ten", None),
        ("", None),
    ],
)
def test_a_startup_probe_is_read(probe: str, allowed: int | None, tmp_path: Any) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(PROBED % probe)
    host = open_host("demo:h800")
    sized = size_and_needs(LaunchWords((str(file),)), host)
    assert sized is not None
    starts = launch_wish(sized, host).starts
    assert not isinstance(starts, Unknown)
    assert [one.allowed_seconds for one in starts] == [allowed]


@pytest.fixture
def saved(tmp_path: Any) -> tuple[str, str]:
    """What --save wrote of a slow store, and a launch."""
    from preflight.base.envelope import envelope
    from preflight.base.output import json_text

    run_ = measured(EngineUse("tcp", (), "no GID"))._replace(tokens_per_second=1e5)
    file, launch = tmp_path / "saved.json", tmp_path / "launch.sh"
    told = answer_object(MeasureAnswer(run_))
    found = envelope("measure", 1, told, word="warn", command="measure")
    file.write_text(json_text(found))
    assert read_measured(str(file)).parts[1].used == EngineUse("tcp", (), "no GID")
    launch.write_text(SCRIPT.format(protocol="rdma", more=OFFLOAD, python="python3"))
    return str(file), str(launch)


def test_check_holds_the_launch_against_what_was_measured(
    saved: tuple[str, str], capsys: Out
) -> None:
    words = ["--root", "demo:h800", "--json", "--measured", *saved]
    run(["check", "--only", "measure.*", *words])
    findings_ = json.loads(capsys.readouterr().out)["findings"]
    found = {one["check"]: one["status"] for one in findings_}
    assert found == {f"measure.{each}": "warn" for each in ("transport", "storage", "fetch")}
    assert any("no GID" in one["text"] for one in findings_)


@pytest.mark.parametrize(("command", "where"), [("capacity", "notes"), ("fit --goal l2", "hints")])
def test_capacity_and_fit_say_what_a_hit_is_worth(
    command: str, where: str, saved: tuple[str, str], capsys: Out
) -> None:
    run([*command.split(), "--root", "demo:h800", "--json", "--measured", *saved])
    note = json.loads(capsys.readouterr().out)["answer"][where][-1]
    assert "L2 was not measured, L3 164 ms, SSD was not measured" in note
    assert "computing them takes 10 ms" in note


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"answer": {"parts": [{}]}}'])
def test_what_measure_did_not_write_is_refused(
    text: str | None, tmp_path: Any, capsys: Out
) -> None:
    file = tmp_path / "saved.json"
    if text is not None:
        file.write_text(text)
    assert run(["check", "--measured", str(file), "--root", "demo:h800"]) == 64
    assert "--measured" in capsys.readouterr().err


@pytest.mark.parametrize(("room", "spent"), [(64 * GIB, 2 * GIB), (GIB, GIB // 2), (MIB, None)])
def test_by_default_it_spends_no_more_than_half_of_what_is_free(
    room: int, spent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryWatch, "room", lambda _: Room(room, "told"))
    launch = LaunchWords()
    if spent is None:
        with pytest.raises(UsageError):
            prepare(launch, None, 60.0, None)
    else:
        assert prepare(launch, None, 60.0, None)[0]._spend_bytes == spent


SEEN = Survival("client", "wheel 1", "http", 9, 0, 9, 0, 0.1, back_seconds=1.0, lost=0)


@pytest.mark.parametrize(
    ("found", "costs", "by_hand"),
    [
        (SEEN._replace(newcomer=KILL_OBJECTS), False, "nothing"),
        (SEEN._replace(newcomer=KILL_OBJECTS, lost=3), True, "nothing"),
        (SEEN._replace(newcomer=3), True, "start the clients again"),
        (SEEN._replace(back_seconds=None, lost=None), True, "start the clients again"),
        (SEEN._replace(restart_refused="-600", mended_by="DELETE it"), True, "DELETE it"),
        (SEEN._replace(newcomer_refused="-600"), True, "nobody"),
    ],
)
def test_by_hand(found: Survival, costs: bool, by_hand: str) -> None:
    assert found.costs is costs
    assert by_hand in found.by_hand
    assert f"by hand: {found.by_hand}" in found.statements
    assert survival_text(found).startswith("WARN" if costs else "PASS")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("libcuda.so.1: cannot open shared object file: No such file", "use the -non-cuda wheel"),
        ("libcudart.so.12: cannot open shared object file: No such file", "software.library-miss"),
        ("cannot import name 'TransferEngine'", None),
    ],
)
def test_a_library_that_is_missing_has_its_remedy_beside_the_error(
    error: str, says: str | None, tmp_path: Path
) -> None:
    """As 0.3.13.post1 of PyPI ends without a driver; the remedy is that of check."""
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/__init__.py").write_text(f"raise ImportError({error!r})\n")
    library = Library(sys.executable, str(tmp_path), "mooncake-transfer-engine", "0.3.13.post1")
    measuring = Measuring(library, LaunchWish(protocol="tcp"), 30.0, 256 * MIB)
    for part in measuring.run(("transfer", "store"), "127.0.0.1", None, lambda _: None).parts:
        assert error in part.failed
        assert ("; " in part.failed) is (says is not None)
        assert (says or "") in part.failed
