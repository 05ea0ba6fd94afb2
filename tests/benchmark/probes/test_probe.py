"""The probe without a device: its search, its layout, its verdicts, and every way out of it."""

from __future__ import annotations

import ctypes
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from errno import EAGAIN, EINVAL, EIO, ENOMEM, EPERM
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.rdma import calls as calls_registration
from checks.rdma.device_table import DEVICE_TABLE, MEMORY_KEYS
from checks.rdma.facts import RdmaFacts, read_rdma
from checks.rdma.verbs import CgroupLimit
from checks.run_checks.facts import Facts
from preflight.base.output import json_text
from preflight.base.usage_error import UsageError
from preflight.benchmark.measuring.findings import findings
from preflight.benchmark.measuring.measure import MeasureAnswer
from preflight.benchmark.measuring.records import LaunchWish, MeasuredPart, MeasuredRun
from preflight.benchmark.probes import registration as probe_state
from preflight.benchmark.probes.limits import (
    CGROUP,
    HOST_MEMORY,
    MEMLOCK,
    NOT_TOLD,
    REGION_LENGTH,
    CgroupUse,
    LimitMet,
    ProbeNeed,
    RegistrationRefusal,
    ceilings,
    launch_devices,
    limit_met,
    need_of,
    users_of,
)
from preflight.benchmark.probes.measure import (
    KernelLog,
    Layout,
    Measurement,
    ProbeError,
    ProbeOrder,
    map_range,
    measure,
    plan_layout,
    search,
)
from preflight.benchmark.probes.registration import (
    CeilingAnswer,
    ProbeOptions,
    _choose_nics,
    _make_order,
    ceiling_lines,
    ceiling_object,
    judge,
)
from preflight.cli.main import run as run_program
from tests.checks.limit_hosts import facts as limit_facts
from tests.checks.limit_hosts import limits
from tests.checks.rdma_hosts import GIB, MIB, RXE0, RXE1, FakeHost, launch, process
from tests.checks.rdma_hosts import facts_of as rdma_of
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/measure-v1.schema.json").read_text())
CEILING = {"$ref": "#/$defs/ceiling", "$defs": SCHEMA["$defs"]}
FILE = "/sys/fs/cgroup/a/rdma.max"


class Device:
    """Takes ``ceiling`` bytes in all and ``longest`` in one region."""

    def __init__(self, ceiling: int, longest: int = 1 << 62) -> None:
        self.ceiling, self.longest = ceiling, longest
        self.held: list[int] = []
        self.tries = 0

    def register(self, size: int) -> bool:
        self.tries += 1
        assert size <= self.longest
        if sum(self.held) + size > self.ceiling:
            return False
        self.held.append(size)
        return True


@given(
    ceiling=st.integers(0, 1 << 24),
    region=st.integers(1, 1 << 14),
    most=st.integers(1, 1 << 12),
    wanted=st.integers(0, 1 << 12),
)
def test_the_search_ends_on_the_ceiling_with_few_registrations(
    ceiling: int, region: int, most: int, wanted: int
) -> None:
    """To the region, and 2 log2(ceiling / region) + 8 beyond what holding it takes."""
    device = Device(ceiling, max(region, most * region))
    found = search(device.register, region, device.longest, wanted * region)
    fitting = min(ceiling // region, wanted)
    assert found == fitting * region == sum(device.held)
    at_the_longest = fitting // most
    assert device.tries <= 2 * math.log2(max(1, fitting)) + 8 + at_the_longest


@given(
    page=st.sampled_from([4096, 65536, 2 * MIB, GIB]),
    region=st.integers(1, 1 << 36),
    longest=st.integers(1, 1 << 42),
    spend=st.integers(1 << 16, 1 << 34),
)
def test_a_layout_shows_whole_pages_and_few_mappings(
    page: int, region: int, longest: int, spend: int
) -> None:
    layout = plan_layout(page, region, longest, spend)
    assert layout.range_bytes % page == layout.buffer_bytes % page == 0
    assert 0 < layout.buffer_bytes <= layout.range_bytes
    assert layout.range_bytes // layout.buffer_bytes <= 30_000
    # Whole pages, and a buffer that 30 000 mappings can show, may take more than a quarter.
    assert layout.spent_bytes(0, False) <= spend // 4 + 3 * page + layout.range_bytes // 30_000
    if layout.buffer_bytes < layout.range_bytes:
        # Two runs of pages meet where no page of twice the size begins.
        assert layout.buffer_bytes // page % 2 == 1


def test_a_range_shows_one_buffer_over_and_over() -> None:
    """64 MiB of addresses, 1 MiB of memory: what is written at one place stands at all."""
    layout = Layout(4096, 64 * MIB, MIB)
    before = _resident_bytes()
    start = map_range(layout)
    ctypes.memset(start + 5, 65, 1)
    for showing in range(64):
        assert ctypes.string_at(start + showing * MIB + 5, 1) == b"A"
    assert _resident_bytes() - before < 8 * MIB


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_page_size_that_the_machine_lacks_is_an_error_in_words() -> None:
    with pytest.raises(OSError, match="the buffer takes 1 free page of 8 GiB: "):
        map_range(Layout(8 * GIB, 8 * GIB, 8 * GIB))


def refused(number: int, **changes: Any) -> RegistrationRefusal:
    base = RegistrationRefusal("rxe0", "rxe", "ibv_reg_mr", number, 64 * MIB, 16 * MIB, 64 * MIB)
    return base._replace(lifted=False, **changes)


FULL, NOT_FULL = (CgroupUse(FILE, CgroupLimit(None, most), CgroupLimit(0, 6)) for most in (6, 7))
NO_HANDLE, ONE_HANDLE = (CgroupUse(FILE, CgroupLimit(n, None), CgroupLimit(n, 0)) for n in (0, 1))
KEYS_LOG = "mlx5_core 0000:41:00.0: CREATE_MKEY(0x200) failed, status no resources(0xf)"
LIMITS_LOG = "CREATE_MKEY(0x200) failed, status limits exceeded(0x8), syndrome (0x18af6)"


@each_row(
    ("refusal", "kind", "sure"),
    [
        (refused(ENOMEM, memlock_bytes=79 * MIB), MEMLOCK, True),
        # The limit would still have let it in, is void, or is not there: something else.
        (refused(ENOMEM, memlock_bytes=80 * MIB), HOST_MEMORY, False),
        (refused(ENOMEM, memlock_bytes=79 * MIB)._replace(lifted=True), HOST_MEMORY, False),
        (refused(ENOMEM), HOST_MEMORY, False),
        (refused(ENOMEM, memlock_bytes=79 * MIB)._replace(lifted=None), MEMLOCK, False),
        (refused(ENOMEM, memlock_bytes=79 * MIB)._replace(pinned_bytes=None), HOST_MEMORY, False),
        (refused(EPERM, memlock_bytes=0), MEMLOCK, True),
        (refused(EPERM), NOT_TOLD, False),
        (refused(EAGAIN, cgroups=(FULL,)), CGROUP, True),
        (refused(EAGAIN, cgroups=(NOT_FULL, FULL)), CGROUP, True),
        (refused(EAGAIN, cgroups=(NOT_FULL,)), MEMORY_KEYS, False),
        (refused(EAGAIN, cgroups=None), MEMORY_KEYS, False),
        (refused(EAGAIN, cgroups=(FULL,), log=(KEYS_LOG,)), CGROUP, True),
        (refused(EAGAIN, log=("usb 1-1: new", KEYS_LOG)), MEMORY_KEYS, True),
        (refused(ENOMEM, driver="mlx5", log=(LIMITS_LOG,)), MEMORY_KEYS, True),
        (refused(EAGAIN, keys_used=100, most_keys=100), MEMORY_KEYS, True),
        (refused(EAGAIN, keys_used=99, most_keys=100), MEMORY_KEYS, False),
        (refused(EAGAIN, cgroups=(NO_HANDLE,)), MEMORY_KEYS, False),
        (refused(EAGAIN, call="ibv_open_device", cgroups=(ONE_HANDLE,)),
         CGROUP, True),
        (refused(EIO, driver="erdma"), DEVICE_TABLE, True),
        (refused(EIO, driver="other"), DEVICE_TABLE, False),
        (refused(ENOMEM, driver="ionic"), DEVICE_TABLE, True),
        (refused(ENOMEM, driver="erdma", memlock_bytes=79 * MIB), MEMLOCK, True),
        (refused(EINVAL, max_mr_size_bytes=8 * MIB), REGION_LENGTH, True),
        (refused(EINVAL, log=("erdma_0: ERROR: Out of mr size: 5, max 4",)), REGION_LENGTH, True),
        (refused(EINVAL, max_mr_size_bytes=GIB), NOT_TOLD, False),
        (refused(99), NOT_TOLD, False),
    ],
)  # fmt: skip
def test_the_limit_is_told_from_all_the_evidence(
    refusal: RegistrationRefusal, kind: str, sure: bool
) -> None:
    """An errno has several causes; the counters and the kernel's log say which."""
    met = limit_met(refusal)
    assert (met.limit, met.sure) == (kind, sure)
    assert f"[{refusal.number}]" in met.text
    told = SCHEMA["$defs"]["ceiling"]["properties"]["met"]["oneOf"][1]["properties"]["kind"]
    assert met.limit in told["enum"]


ORDER = ProbeOrder(("rxe0",), ("rxe",), (0,), True, 4096, 16 * MIB, GIB, GIB, 256 * MIB, None, True)


def measured(held: int, met: LimitMet | None = None, **changes: Any) -> Measurement:
    base = Measurement(held, 4, 16 * MIB, GIB, 9, 40 * MIB, None, "", None, met, 0)
    return base._replace(**changes)


def met(kind: str) -> LimitMet:
    return LimitMet(kind, True, "as told")


@each_row(
    ("measurement", "need", "status"),
    [
        (measured(GIB), None, "measured"),
        (measured(GIB, met(MEMLOCK)), None, "measured"),
        (measured(GIB, stopped="--spend"), None, "unknown"),
        # A process is held against memlock, all of them against the device.
        (measured(GIB, met(MEMLOCK)), ProbeNeed(GIB, 8 * GIB, 4, 4, ()), "fits"),
        (measured(GIB, met(MEMLOCK)), ProbeNeed(GIB + 1, 8 * GIB, 4, 4, ()), "too little"),
        (measured(GIB, met(DEVICE_TABLE)), ProbeNeed(GIB, 8 * GIB, 4, 4, ()), "too little"),
        (measured(GIB, met(DEVICE_TABLE)), ProbeNeed(GIB, GIB, 4, 4, ()), "fits"),
        # A cgroup counts registrations, whatever their size.
        (measured(GIB, met(CGROUP)), ProbeNeed(8 * GIB, 8 * GIB, 4, 4, ()), "fits"),
        (measured(GIB, met(CGROUP)), ProbeNeed(MIB, MIB, 3, 5, ()), "fits"),
        (measured(GIB, met(CGROUP)), ProbeNeed(MIB, MIB, 4, 6, ()), "too little"),
        (measured(GIB, met(MEMORY_KEYS)), ProbeNeed(MIB, MIB, 5, 5, ()), "too little"),
        (measured(GIB), ProbeNeed(GIB, GIB, 4, 4, ()), "fits"),
        (measured(GIB), ProbeNeed(2 * GIB, 2 * GIB, 4, 4, ()), "unknown"),
        (measured(GIB, stopped="--spend"), ProbeNeed(2 * GIB, 2 * GIB, 4, 4, ()), "unknown"),
        (measured(GIB, stopped="--spend"), ProbeNeed(GIB, GIB, 4, 4, ()), "fits"),
        (measured(GIB), Unknown("$SIZE is not set"), "unknown"),
    ],
)
def test_a_launch_is_held_against_what_was_measured(
    measurement: Measurement, need: ProbeNeed | Unknown | None, status: str
) -> None:
    found, reason = judge(measurement, need, 256 * MIB, ORDER)
    assert (found, bool(reason)) == (status, True)
    answer = CeilingAnswer(found, reason, ("rxe0",), ORDER, (), measurement, measurement.met, need)
    valid(json.loads(json_text(ceiling_object(answer))), CEILING)
    assert reason in next(ceiling_lines(answer))
    part = MeasuredPart("registration", ceiling=answer)
    run = MeasuredRun("", 60.0, GIB, None, (part,))
    judged = findings(run, LaunchWish())
    assert [one.check for one in judged] == ["measure.registration"] * (status != "measured")
    told = MeasureAnswer(run, tuple(judged))
    assert told.exit_code == {"measured": 0, "fits": 0, "too little": 2}.get(status, 3)


def test_the_allowance_that_would_do_is_said() -> None:
    order = ORDER._replace(up_to_bytes=95 * GIB)
    stopped = measured(16 * GIB, stopped="--spend")
    _, reason = judge(stopped, None, 256 * MIB, order)
    assert "reaches 95.00 GiB" in reason
    told = int(reason.rpartition("--spend ")[2].partition("mb")[0])
    layout = plan_layout(4096, 16 * MIB, GIB, told * MIB)
    assert layout.spent_bytes(95 * GIB, True) <= told * MIB


def host_facts(
    host: FakeHost, needs: LaunchNeeds | None = None, memlock: int | None = None
) -> Facts:
    """A host's RDMA devices, and a user without capabilities."""
    base = limit_facts(limits(memlock))
    topics = {topic: base.topic(topic) for topic in ("limits", "system")}
    return Facts({"rdma": rdma_of(host, needs), **topics})


def test_what_is_predicted_of_this_process() -> None:
    """memlock by bytes, the cgroup and the device by registrations."""
    most = {"rdma.max": "rxe0 hca_handle=2 hca_object=9\n"}
    used = {"rdma.current": "rxe0 hca_handle=0 hca_object=3\n"}
    facts = host_facts(FakeHost((RXE0, RXE1), cgroup={**most, **used}), memlock=500 * MIB)
    found = ceilings(facts, facts.rdma.present, 16 * MIB, 4096)
    by_kind: dict[str, list[int | None]] = {}
    for one in found:
        by_kind.setdefault(one.limit, []).append(one.bytes if one.regions is None else one.regions)
    assert by_kind == {MEMLOCK: [15 * 16 * MIB], CGROUP: [5], MEMORY_KEYS: [524287, 524287]}


def test_what_a_launch_needs_of_its_devices() -> None:
    ranks = [process("rxe1", name=f"rank {n}") for n in range(2)]
    needs = launch(*ranks)
    facts = host_facts(FakeHost((RXE0, RXE1)), needs)
    assert launch_devices(facts, needs) == ("rxe1",)
    need = need_of(facts, needs, ("rxe1",))
    assert need == ProbeNeed(96 * MIB, 192 * MIB, 4, 8, (16 * MIB, 80 * MIB))
    unsized = launch(process(regions=Unknown("$SIZE")))
    assert isinstance(need_of(facts, unsized, ("rxe0",)), Unknown)


def test_which_devices_are_probed() -> None:
    """The named ones; the launch's; all of them."""
    facts = host_facts(FakeHost((RXE0, RXE1)))

    def names(asked: tuple[str, ...], launched: Any) -> Any:
        found = _choose_nics(asked, facts, launched)
        return found if isinstance(found, Unknown) else [nic.name for nic in found]

    assert names((), None) == ["rxe0", "rxe1"]
    assert names((), ("rxe1",)) == ["rxe1"]
    assert names(("rxe1,rxe0", "rxe1"), ("rxe1",)) == ["rxe1", "rxe0"]
    assert isinstance(names((), ()), Unknown)
    assert isinstance(names((), Unknown("$NIC")), Unknown)
    with pytest.raises(UsageError, match=r"--device mlx5_0: .* but rxe0, rxe1"):
        names(("mlx5_0",), None)


def test_sizes_come_from_the_launch() -> None:
    """From its smallest region to its longest, and a quarter more than it needs."""
    facts = host_facts(FakeHost(), memlock=500 * MIB)
    need = ProbeNeed(4 * GIB, 8 * GIB, 8, 9, (4096, 30 * GIB))
    order = _make_order(ProbeOptions(), facts, facts.rdma.present, need)
    assert (order.region_bytes, order.longest_bytes, order.up_to_bytes) == (MIB, 30 * GIB, 10 * GIB)
    assert (order.memlock_bytes, order.lifted, order.soft) == (500 * MIB, False, True)
    order = _make_order(ProbeOptions(region_bytes=5_000_000), facts, facts.rdma.present, need)
    assert order.region_bytes == 5_001_216  # whole pages
    alone = _make_order(ProbeOptions(up_to_bytes=GIB), facts, facts.rdma.present, None)
    assert (alone.region_bytes, alone.up_to_bytes) == (16 * MIB, GIB)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"region_bytes": 0}, "--region 0"),
        ({"spend_bytes": 65536}, "--spend 64.00 KiB is too little"),
        ({"page": "1g"}, "--spend 256.00 MiB is too little"),
        ({"region_bytes": 64 * GIB}, "is too little to register one region of 64.00 GiB"),
    ],
)
def test_sizes_that_cannot_be_meant(tmp_path: Path, changes: Mapping[str, Any], words: str) -> None:
    facts = host_facts(FakeHost())
    with pytest.raises(UsageError, match=words):
        _make_order(ProbeOptions(**changes), facts, facts.rdma.present, None)


def test_users_of_a_device_are_seen_by_what_the_kernel_counts() -> None:
    facts = host_facts(FakeHost((RXE0, RXE1)))
    assert list(users_of(facts, facts.rdma.present)) == []
    for resources in ({"mr": 3, "ctx": 1}, {"mr": 0, "ctx": 1}, {"mr": 1}):
        busy = FakeHost((replace(RXE0, resources=resources), RXE1))
        facts = host_facts(busy)
        (one,) = users_of(facts, facts.rdma.present)
        assert one.device == "rxe0"
    silent = FakeHost(calls={"rdma.kernel": {"unknown": "no netlink"}})
    facts = host_facts(silent)
    (one,) = users_of(facts, facts.rdma.present)
    assert one.text == "rxe0: whether others use it cannot be told"


def test_what_was_measured_is_kept_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this device alone, and a result that says less does not replace one that says more."""
    folder = tmp_path / "state"
    monkeypatch.setattr(calls_registration, "state_folders", lambda: [str(folder)])
    monkeypatch.setattr(probe_state, "state_folders", lambda: [str(folder)])
    host = FakeHost((RXE0, RXE1))
    tree = host.root()
    monkeypatch.setattr(probe_state, "Root", lambda: tree)
    facts = read_rdma(tree, None)

    def keep(measurement: Measurement) -> int:
        return len(probe_state.save_results(facts.present[:1], 4096, measurement))

    assert keep(measured(GIB, met(MEMLOCK))) == 1
    assert keep(measured(GIB // 2)) == 0
    assert keep(measured(2 * GIB)) == 1
    refusal = refused(EIO)
    assert keep(measured(GIB, met(DEVICE_TABLE), refusal=refusal)) == 1
    calls = {**host.calls, "registration.saved": calls_registration.saved()}
    again = FakeHost((RXE0, RXE1), calls=calls).root()
    found: RdmaFacts = read_rdma(again, None)
    assert {(one.device, one.holds_bytes, one.met) for one in found.measured} == {
        ("rxe0", GIB, DEVICE_TABLE),
        ("rxe1", GIB, DEVICE_TABLE),  # the same hardware, firmware and driver
    }
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    assert len(calls_registration.saved()) == 1


def test_a_limit_that_only_the_errno_names_is_not_kept_as_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_state, "state_folders", lambda: [str(tmp_path / "state")])
    facts = rdma_of(FakeHost())
    guess = LimitMet(MEMORY_KEYS, False, "by the errno")
    (path,) = probe_state.save_results(
        facts.present, 4096, measured(GIB, guess, refusal=refused(EAGAIN))
    )
    assert json.loads(Path(path).read_text())["met"] == ""


class FullDevice:
    """A device that holds eight regions and refuses a ninth with EAGAIN."""

    name = "rxe0"
    largest_bytes = 1 << 40

    def __init__(self, name: str) -> None:
        self.held: list[int] = []

    @property
    def regions(self) -> int:
        return len(self.held)

    def register(self, address: int, size: int) -> None:
        if sum(self.held) + size > 8 * ORDER.region_bytes:
            raise OSError(EAGAIN, os.strerror(EAGAIN))
        self.held.append(size)

    def take_back(self) -> None:
        self.held.pop()

    def close(self) -> None:
        self.held.clear()


@pytest.mark.slow
def test_what_was_measured_comes_through_the_pipe_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the real child process, which registers on a device of this test."""
    monkeypatch.setattr("preflight.benchmark.probes.measure.OpenDevice", FullDevice)
    monkeypatch.setattr("preflight.benchmark.probes.measure._cgroups", lambda device: (FULL,))
    monkeypatch.setattr("preflight.benchmark.probes.measure._keys_in_use", lambda device: None)
    shown: list[int] = []
    order = ORDER._replace(devices=("rxe0",))
    found = measure(order, lambda event: shown.append(event.get("held_bytes", 0)))
    assert (found.held_bytes, found.left) == (8 * ORDER.region_bytes, 0)
    assert max(shown) == found.held_bytes
    refusal = found.refusal
    assert refusal is not None
    assert refusal.number == EAGAIN
    assert refusal.held_bytes + refusal.asked_bytes > found.held_bytes
    assert refusal.cgroups == (FULL,)
    assert found.met == limit_met(refusal)


def test_the_kernels_log_is_read_from_now_on(tmp_path: Path) -> None:
    """Where it may not be read, that is a fact and no empty log."""
    assert KernelLog(str(tmp_path / "none")).new_lines() is None
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    log = KernelLog(f"/proc/self/fd/{reading}")
    os.write(writing, b"6,1,2,-;erdma_0: something\n DEVICE=x\n")
    assert log.new_lines() == ("erdma_0: something",)
    assert log.new_lines() == ()
    os.close(reading)
    os.close(writing)


@pytest.mark.slow
def test_no_more_is_tried_once_the_budget_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.benchmark.probes.measure.OpenDevice", FullDevice)
    found = measure(ORDER._replace(budget_seconds=-1.0), lambda event: None)
    assert (found.held_bytes, found.stopped, found.left) == (0, "--budget", 0)


@pytest.mark.slow
def test_a_registration_that_hangs_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(FullDevice):
        def register(self, address: int, size: int) -> None:
            time.sleep(60)

    monkeypatch.setattr("preflight.benchmark.probes.measure.OpenDevice", Hanging)
    monkeypatch.setattr("preflight.benchmark.probes.measure.PATIENCE_SECONDS", 0.3)
    with pytest.raises(ProbeError, match="--budget"):
        measure(ORDER._replace(budget_seconds=0.2), lambda event: None)


@pytest.mark.slow
def test_without_the_device_the_child_says_why() -> None:
    """The real library on this machine, in the real child process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    order = ORDER._replace(devices=("no such device",))
    with pytest.raises(ProbeError) as failed:
        measure(order, lambda event: None)
    assert str(failed.value)
    assert set(children.read_text().split()) <= before  # nothing is left to wait for


@pytest.mark.slow
@pytest.mark.skipif(Path("/sys/class/infiniband").exists(), reason="this machine has RDMA devices")
def test_a_host_without_rdma_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["measure", "--only", "registration", "--spend", "64mb", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    valid(answer, SCHEMA)
    assert "has no RDMA device" in answer["reason"]


def test_root_and_user_keep_results_where_checks_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert calls_registration.state_folders() == [
        "/var/lib/mooncake-preflight/registration",
        "/state/mooncake-preflight/registration",
    ]
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.delenv("HOME", raising=False)
    assert calls_registration.state_folders() == ["/var/lib/mooncake-preflight/registration"]
    assert Root("/").live
