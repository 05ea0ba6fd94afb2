"""Applying a plan: all or nothing, never less than there is, and back again; on a folder's files.

The kernel is a writer that gives pages as one under memory pressure would; test_apply_real
does the same to this machine.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import signal
import stat
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Kind, Setting
from checks.framework.root import Root
from checks.run_checks.facts import read_facts
from preflight.base import exit_codes
from preflight.base.usage_error import UsageError
from preflight.cli.plan import plan_of
from preflight.command_inputs.launch_words import LaunchWords
from preflight.host_tuning import apply as apply_module
from preflight.host_tuning.apply import (
    COMPACT,
    ApplyStep,
    Consent,
    Machine,
    apply_plan,
    carry_out,
    steps_of,
    undo_changes,
)
from preflight.host_tuning.commands import LIMITS_FILE, SYSCTL_FILE, UNIT_FILE, WANTS_FILE, header
from preflight.host_tuning.plan import kept_settings, plan
from preflight.host_tuning.records import Gap, Plan
from preflight.host_tuning.undo import (
    BOOT_ID,
    PART,
    SCHEMA,
    Entry,
    Journal,
    Writer,
    boot_id,
    state_folder,
    undo,
)
from tests.builders.examples import some
from tests.builders.plans import anywhere, finding, launch, on_nodes, plain_facts, rank
from tests.builders.synthetic import build_host, gpu_host, plain_host
from tests.checks.test_synthetic import NICS, script

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
NODE = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
MAPS = "/proc/sys/vm/max_map_count"
BEFORE = ["0", "0", "65530"]
YES, ASKING, DRY = Consent(yes=True), Consent(), Consent(dry_run=True, yes=True)
MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608")


class Kernel(Writer):
    """Below a folder: pools get at most ``pieces`` pages, and ``more`` at each compaction. fails:
    writing this file is an error of the kernel."""

    def __init__(self, folder: Path, pieces: int = 1 << 30, more: int = 0, fails: str = "") -> None:
        super().__init__(str(folder))
        self.pieces, self.more, self.fails = pieces, more, fails
        self.written: list[tuple[str, str]] = []

    def value(self, path: str, text: str) -> None:
        self.written.append((path, text))
        if path == self.fails:
            raise OSError(22, "Invalid argument", path)
        if path == COMPACT:
            self.pieces += self.more
            return
        if path.endswith("/nr_hugepages"):
            now = int(Path(self.locate(path)).read_text())
            text = str(min(int(text), max(now, self.pieces)))
            free = Path(self.locate(path)).parent / "free_hugepages"
            free.write_text(str(int(free.read_text()) + int(text) - now))
        super().value(path, text)


class Ground:
    """A host's folder, what writes below it, and what was printed; its state is kept beside it."""

    def __init__(self, host: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.host, self._capsys = host, capsys
        self.on = machine(host)

    def at(self, path: str) -> Path:
        """Where a path of the host lies, in a folder that is there."""
        place = self.host / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def read(self, path: str) -> str:
        return self.at(path).read_text().strip()

    @property
    def values(self) -> list[str]:
        return [self.read(path) for path in (NODE.format(0), NODE.format(1), MAPS)]

    @property
    def written(self) -> list[tuple[str, str]]:
        assert isinstance(self.on.writer, Kernel)
        return self.on.writer.written

    @property
    def entries(self) -> list[dict[str, object]]:
        place = Path(self.on.state, "journal.json")
        return list(json.loads(place.read_text())["entries"]) if place.exists() else []

    def plan(self, *settings: Setting, pages: tuple[int, ...] = (10, 20)) -> Plan:
        return planned(self.host, *settings, pages=pages)

    def apply(self, plan: Plan | None = None, consent: Consent = YES, **more: bool) -> int:
        return applied(consent, plan or self.plan(), self.on, **more)

    def undo(self) -> int:
        return undo_changes(self.on, YES)

    def said(self) -> str:
        """What was printed since, on both ways out."""
        return "".join(self._capsys.readouterr())


def machine(host: Path, **kernel: int | str) -> Machine:
    writer = Kernel(host, **kernel)  # type: ignore[arg-type]
    return Machine(Root(str(host)), writer, str(host.parent / "state"))


def planned(host: Path, *settings: Setting, pages: tuple[int, ...] = (10, 20)) -> Plan:
    root = Root(str(host))
    needs = launch(on_nodes(*pages), rank(0), rank(1))
    facts = read_facts(root, needs, topics=("system", "limits", "memory", "hugetlb"))
    return plan(needs, facts, [finding(setting) for setting in settings], kept_settings(root))


def applied(
    consent: Consent, planned: Plan, on: Machine, persist: bool = False, force: bool = False
) -> int:
    return apply_plan(planned, ("run.sh",), on, consent, persist=persist, force=force)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A two-node host with a boot id."""
    files = {BOOT_ID: "boot-1", MAPS: "65530"}
    return build_host(tmp_path / "host", replace(plain_host(), nodes=2, files=files))


@pytest.fixture
def here(host: Path, capsys: pytest.CaptureFixture[str]) -> Ground:
    return Ground(host, capsys)


def steps(host: Path, found: Plan) -> tuple[ApplyStep, ...]:
    return steps_of(found, Root(str(host)), Writer(str(host))).steps


# All of it -------------------------------------------------------------------------------------


def test_what_is_applied_is_as_planned_and_a_second_time_changes_nothing(here: Ground) -> None:
    assert here.apply() == 0
    assert here.values == ["10", "20", "262144"]
    assert len(here.entries) == 3
    here.said()
    again, before = here.plan(), list(here.written)
    assert not any(setting.change for setting in again.settings)
    assert here.apply(again) == 0
    assert here.written == before
    assert "nothing to change" in here.said()


def test_undo_takes_it_back_in_reverse(here: Ground) -> None:
    here.apply()
    here.written.clear()
    assert here.undo() == 0
    assert here.values == BEFORE
    assert [path for path, _ in here.written] == [MAPS, NODE.format(1), NODE.format(0)]
    assert here.entries == []
    here.said()
    assert here.undo() == 0
    assert here.said() == "nothing to undo\n"


@given(
    now=st.lists(st.integers(0, 40), min_size=2, max_size=2),
    need=st.lists(st.integers(0, 40), min_size=2, max_size=2),
    pieces=st.integers(0, 60),
)
def test_whatever_the_kernel_gives_the_host_is_as_planned_or_as_before(
    now: list[int], need: list[int], pieces: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And no pool ever has less than it had; undo leads back."""
    folder = tmp_path_factory.mktemp("law")
    host = folder / "host"
    for node in (0, 1):
        place = host / NODE.format(node).lstrip("/")
        place.parent.mkdir(parents=True)
        place.write_text(str(now[node]))
        (place.parent / "free_hugepages").write_text(str(now[node]))
    resv = host / POOL.lstrip("/")
    resv.parent.mkdir(parents=True)
    (resv.parent / "resv_hugepages").write_text("0")
    wanted = tuple(
        ApplyStep("value", NODE.format(node), str(now[node]), str(need[node]), f"node {node}", True)
        for node in (0, 1)
    )
    on = machine(host, pieces=pieces)
    with Journal(on.state) as journal:
        outcome = carry_out(wanted, journal, on.writer, on.root)
        after = [int((host / NODE.format(node).lstrip("/")).read_text()) for node in (0, 1)]
        if outcome.failure:
            assert after == now
            assert journal.entries == []
        else:
            assert after == [max(a, b) for a, b in zip(now, need, strict=True)]
        undo(journal, on.root, on.writer)
    assert [int((host / NODE.format(node).lstrip("/")).read_text()) for node in (0, 1)] == now


def test_compaction_that_helps_is_enough(here: Ground) -> None:
    here.on = machine(here.host, pieces=12, more=4)
    assert here.apply() == 0
    assert here.values == ["10", "20", "262144"]
    assert "after compacting memory 2 times" in here.said()


def test_a_step_that_fails_takes_the_others_back(here: Ground) -> None:
    here.on = machine(here.host, fails=MAPS)
    assert here.apply() == exit_codes.FAIL
    assert here.values == BEFORE
    said = here.said()
    assert f"{MAPS}: Invalid argument" in said
    assert f"taken back: {NODE.format(1)}: 20 -> 0" in said


def test_a_file_that_vanishes_after_the_plan_is_said_and_the_rest_taken_back(here: Ground) -> None:
    found = here.plan()
    before_that = steps(here.host, found)
    here.at(NODE.format(1)).unlink()
    assert here.apply(found) == exit_codes.UNKNOWN
    assert f"{NODE.format(1)} cannot be read" in here.said()
    with Journal(here.on.state) as journal:
        outcome = carry_out(before_that, journal, here.on.writer, here.on.root)
    assert "No such file" in outcome.failure
    assert here.read(NODE.format(0)) == "0"


def test_an_interruption_takes_back_what_was_done(here: Ground) -> None:
    class Interrupted(Kernel):
        def value(self, path: str, text: str) -> None:
            super().value(path, text)
            if path == NODE.format(1) and text == "20":
                raise KeyboardInterrupt

    here.on = here.on._replace(writer=Interrupted(here.host))
    with pytest.raises(KeyboardInterrupt):
        here.apply()
    assert (here.values, here.entries) == (BEFORE, [])


def test_nothing_is_lowered_and_what_others_set_meanwhile_stays(here: Ground) -> None:
    found = here.plan()
    here.at(NODE.format(0)).write_text("500")
    here.at(MAPS).write_text("1048576")
    assert here.apply(found) == 0
    assert here.values == ["500", "20", "1048576"]
    assert [entry["path"] for entry in here.entries] == [NODE.format(1)]


def test_pages_of_others_stay_theirs_when_it_is_undone(here: Ground) -> None:
    here.apply()
    free = here.at(NODE.format(1)).parent / "free_hugepages"
    free.write_text("5")
    assert here.undo() == exit_codes.WARN
    assert here.values == ["0", "15", "65530"]
    assert "in use" in here.said()
    assert [(entry["path"], entry["got"]) for entry in here.entries] == [(NODE.format(1), "15")]
    free.write_text("15")  # whoever had them has ended
    assert here.undo() == 0
    assert here.values == BEFORE


def test_undo_leaves_what_somebody_else_has_changed_or_a_reboot_undone(here: Ground) -> None:
    here.apply()
    here.at(MAPS).write_text("500000")
    assert here.undo() == exit_codes.WARN
    assert here.values == ["0", "0", "500000"]
    assert "it was 65530" in here.said()
    here.apply()
    here.at(BOOT_ID).write_text("boot-2")
    assert here.undo() == 0
    assert here.values == ["10", "20", "500000"]
    assert here.entries == []


# Asking ----------------------------------------------------------------------------------------


def test_without_a_terminal_nobody_is_asked_and_nothing_is_done(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(UsageError, match="--yes"):
            here.apply(consent=ASKING)
    assert here.values == BEFORE


@pytest.mark.parametrize(
    ("answer", "code", "pages"), [("y\n", 0, "10"), ("\n", exit_codes.WARN, "0")]
)
def test_on_a_terminal_the_answer_decides(
    answer: str, code: int, pages: str, here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, terminal = os.openpty()
    with os.fdopen(controller, "wb") as keyboard, os.fdopen(terminal) as screen:
        keyboard.write(answer.encode())
        keyboard.flush()
        monkeypatch.setattr("sys.stdin", screen)
        assert here.apply(consent=ASKING) == code
    assert here.read(NODE.format(0)) == pages


def test_what_is_not_known_or_cannot_be_had_is_refused_first(here: Ground) -> None:
    found = here.plan()
    gap = found._replace(gaps=(Gap("pages", "MODEL is not set"),))
    assert here.apply(gap) == exit_codes.UNKNOWN
    impossible = found._replace(impossible=("2 MiB pages: more than there is",))
    assert here.apply(impossible) == exit_codes.FAIL
    unread = found._replace(undecided=("memory.host, host: not read",))
    assert here.apply(unread) == exit_codes.UNKNOWN
    assert here.written == []
    # Where no page is missing, the settings are made whatever of the memory is not known.
    enough = here.plan(pages=(0, 0))._replace(undecided=("memory.host, host: not read",))
    assert here.apply(enough) == 0
    assert here.read(MAPS) == "262144"


HIDDEN = (
    "/proc/meminfo",
    "/proc/buddyinfo",
    "/sys/devices/system/node/node1/meminfo",
    "/sys/kernel/mm/hugepages/hugepages-2048kB",
    "/sys/devices/system/node/node1/hugepages",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "dry_run"), [*((hidden, False) for hidden in HIDDEN), (HIDDEN[0], True)]
)
def test_a_host_that_hides_what_decides_is_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hidden: str, dry_run: bool
) -> None:
    """As behind a mount over a part of /proc or /sys: nothing is written, the place is named."""
    host, run = tmp_path / "host", tmp_path / "run.sh"
    build_host(host, gpu_host())
    run.write_text(script("Qwen/Qwen3-8B", 8, NICS, "16gb"))
    words = LaunchWords((str(run),), mooncake_version="0.3.13.post1", sglang_version="0.5.23")
    here = Ground(host, capsys)
    seen = plan_of(words, str(host), 60.0)
    assert any(step.is_pool for step in steps(host, seen))
    assert seen.undecided == ()
    place = host / hidden.lstrip("/")
    place.rename(tmp_path / "away")
    if (tmp_path / "away").is_dir():
        place.mkdir()  # an empty folder, as a tmpfs is
    else:
        place.write_text("")
    consent = DRY if dry_run else YES
    assert here.apply(plan_of(words, str(host), 60.0), consent) == exit_codes.UNKNOWN
    said = here.said()
    assert hidden.split("/node1/hugepages")[0] in said
    assert "nothing was changed" in said
    assert (here.written, here.entries) == ([], [])


@pytest.mark.parametrize("read_only", ["/", "/proc/sys/", "/sys/"])
def test_who_may_not_write_gets_the_commands(here: Ground, read_only: str) -> None:
    """All of them, as none is made: of a read-only /proc/sys those of /sys too."""

    class Forbidden(Kernel):
        def may_write(self, kind: str, path: str) -> bool:
            return not path.startswith(read_only)

    here.on = here.on._replace(writer=Forbidden(here.host))
    assert here.apply() == exit_codes.NOT_PERMITTED
    said = here.said()
    for pages, path in (("20", NODE.format(1)), ("262144", MAPS)):
        assert f"echo {pages} > {path}" in said
    refused = next(line for line in said.splitlines() if "not permitted to write" in line)
    assert [path in refused for path in (NODE.format(1), MAPS)] == [
        path.startswith(read_only) for path in (NODE.format(1), MAPS)
    ]
    assert here.written == []


def test_what_apply_does_not_do_is_listed_with_what_does(here: Ground) -> None:
    settings = (
        MEMLOCK,
        Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608", unit="docker.service"),
        Setting(Kind.DEVICE, "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
        Setting(Kind.ENVIRONMENT, "MC_MTU", "1024", "4096"),
        Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt"),
        Setting(Kind.SYSCTL, "vm.compact_memory", "1"),
    )
    here.apply(here.plan(*settings), DRY)
    out = here.said()
    left = out[out.index("left for you") :]
    for said in (
        "memlock: 8388608 -> unlimited: plan --format limits",
        "systemctl restart docker.service",
        "plan --format docker, compose or k8s",
        "MC_MTU: 4096 -> 1024: plan --format env or shell",
        "iommu=pt",
    ):
        assert said in left
    assert "compact_memory" not in out
    assert "vm.max_map_count ->" not in left


# Drop-ins --------------------------------------------------------------------------------------


def test_drop_ins_make_it_last_and_a_second_time_changes_nothing(here: Ground) -> None:
    here.at("/etc/systemd/system/any")
    other = Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2")
    here.at("/proc/sys/vm/overcommit_memory").write_text("2")
    assert here.apply(here.plan(MEMLOCK, other), persist=True) == 0
    assert "vm.max_map_count = 262144" in here.read(SYSCTL_FILE)
    assert "vm.overcommit_memory = 0" in here.read(SYSCTL_FILE)
    assert "-ge 20" in here.read(UNIT_FILE)
    assert os.readlink(here.at(WANTS_FILE)) == UNIT_FILE
    assert "root - memlock unlimited" in here.read(LIMITS_FILE)
    assert here.at(SYSCTL_FILE).stat().st_mode & 0o777 == 0o644
    # The check of overcommit passes now, and asks for nothing any more.
    again = here.plan(MEMLOCK)
    assert all(s.lasts for s in again.planned(Kind.SYSCTL, Kind.SYSFS))
    here.said()
    assert here.apply(again, persist=True) == 0
    assert "nothing to change" in here.said()
    assert here.undo() == 0
    for path in (SYSCTL_FILE, UNIT_FILE, WANTS_FILE, LIMITS_FILE):
        assert not os.path.lexists(here.at(path)), path


def test_what_wins_over_the_drop_in_is_said(here: Ground) -> None:
    """Its file is another's, which apply does not touch; check prints the line that mends it."""
    here.at("/etc/sysctl.d/99-other.conf").write_text("-vm/nr_hugepages = 3\n")
    here.apply(here.plan(pages=(20, 20)), persist=True)
    said = f"/etc/sysctl.d/99-other.conf wins over {SYSCTL_FILE}: it is read later and sets 3 pages"
    assert said in here.said()


def test_lines_of_our_file_are_read_as_sysctl_reads_them(here: Ground) -> None:
    """One that was written again under its other name stood behind the new one, and won."""
    lines = f"{header('', SYSCTL_FILE)}\n-vm/nr_hugepages = 3\nvm/swappiness=1\n"
    here.at(SYSCTL_FILE).write_text(lines)
    assert kept_settings(here.on.root) == {"vm.nr_hugepages": "3", "vm.swappiness": "1"}
    assert here.apply(here.plan(pages=(20, 20)), persist=True) == 0
    text = here.read(SYSCTL_FILE)
    assert re.findall(r"(?m)^.*nr_hugepages.*$", text) == ["vm.nr_hugepages = 40"]
    assert "vm.swappiness = 1" in text


def test_a_file_of_somebody_else_is_not_replaced_unless_told_to(here: Ground) -> None:
    place, found = here.at(SYSCTL_FILE), here.plan()
    place.write_bytes(b"# mine \xff \x1b[31m\nvm.nr_hugepages = 3\n")
    place.chmod(0o600)
    with pytest.raises(UsageError, match=r"90-mooncake\.conf"):
        here.apply(found, persist=True)
    assert here.values == BEFORE
    assert here.apply(found, persist=True, force=True) == 0
    assert "vm.max_map_count" in place.read_text()
    assert "\x1b" not in here.said()
    assert here.undo() == 0
    assert place.read_bytes() == b"# mine \xff \x1b[31m\nvm.nr_hugepages = 3\n"
    assert place.stat().st_mode & 0o777 == 0o600


def test_half_a_drop_in_that_a_crash_left_is_replaced_only_if_it_is_ours(here: Ground) -> None:
    place = here.at(SYSCTL_FILE)
    for other in ("# Generated by moonc", f"vm.x = 1\n{header('', SYSCTL_FILE)}\n"):
        place.write_text(other)
        with pytest.raises(UsageError, match="not written by"):
            here.apply(persist=True)
    for ours in ("", "\n \n", "# Generated by mooncake-preflight for run.sh: /etc/x\nvm.max_ma"):
        place.write_text(ours)
        assert here.apply(persist=True) == 0
        assert "vm.max_map_count = 262144" in place.read_text()


@pytest.mark.parametrize("then", ["undo", "apply", "a write"])
def test_what_a_kill_left_beside_a_drop_in_is_gone_after_the_next(here: Ground, then: str) -> None:
    """undo and apply alike; a file of the same kind that is not in the journal stays."""
    place = here.at(SYSCTL_FILE)
    part = place.with_name(f".{place.name}{PART}")
    with Journal(here.on.state) as journal:
        boot = boot_id(here.on.root)
        journal.add(Entry("file", SYSCTL_FILE, None, "vm.x = 1\n", None, boot))
    part.write_text("vm.x")
    other = place.with_name(f".other.conf{PART}")
    other.write_text("not ours")
    if then == "a write":
        Writer(str(here.host)).file(SYSCTL_FILE, "whole\n")
        assert here.read(SYSCTL_FILE) == "whole"
    else:
        assert (here.undo() if then == "undo" else here.apply()) == 0
    assert (part.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("path", [SYSCTL_FILE, WANTS_FILE])
def test_a_link_that_is_not_ours_is_left_alone(path: str, here: Ground, tmp_path: Path) -> None:
    """Whoever can make one in place of a drop-in would have us write elsewhere."""
    target = tmp_path / "target"
    target.write_text("# Generated by mooncake-preflight for x: y\n")
    here.at("/etc/systemd/system/any")
    place = here.at(path)
    place.symlink_to(target)
    with pytest.raises(UsageError, match=f"{path} was not written by"):
        here.apply(persist=True)
    assert os.readlink(place) == str(target)


def test_an_unwritable_folder_is_said_and_all_is_taken_back(here: Ground) -> None:
    """Root may write anywhere, so a file stands where the folder has to be."""
    shutil.rmtree(here.host / "etc/sysctl.d", ignore_errors=True)
    here.at("/etc/sysctl.d").write_text("")
    assert here.apply(persist=True) == exit_codes.FAIL
    assert here.values == BEFORE
    assert "etc/sysctl.d" in here.said()


def test_in_a_container_drop_ins_belong_to_its_host(here: Ground, tmp_path: Path) -> None:
    found = plan(launch(anywhere(1)), plain_facts(tmp_path / "docker", container="docker"), [])
    with pytest.raises(UsageError, match="container"):
        here.apply(found, persist=True)


# The journal -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        '{"schema": "mooncake-preflight/journal/v9", "entries": []}',
        f'{{"schema": "{SCHEMA}", "entries": [{{"path": "/etc/passwd"}}]}}',
        f'{{"schema": "{SCHEMA}", "ent',
        "\x00\xff",
    ],
)
def test_a_journal_that_is_not_ours_stops_all_and_is_kept(content: str, here: Ground) -> None:
    place = Path(here.on.state, "journal.json")
    place.parent.mkdir()
    place.write_text(content)
    assert here.apply() == here.undo() == exit_codes.NOT_PERMITTED
    assert "nothing was changed" in here.said()
    assert here.values == BEFORE
    assert place.read_text() == content


def test_where_the_journal_cannot_be_kept_nothing_is_changed(here: Ground) -> None:
    with Journal(here.on.state):
        assert here.apply() == exit_codes.NOT_PERMITTED
    assert "another apply is running" in here.said()
    shutil.rmtree(here.on.state)
    Path(here.on.state).write_text("a file in place of the folder")
    assert here.apply() == exit_codes.NOT_PERMITTED
    assert here.values == BEFORE
    assert "nothing was changed" in here.said()


@pytest.mark.parametrize("reached", ["0", "7", "20"])
def test_what_a_crash_broke_off_is_named_and_can_be_undone(reached: str, here: Ground) -> None:
    """The machine went away while the kernel was making pages."""

    class Crash(BaseException):
        pass

    class Crashing(Kernel):
        def value(self, path: str, text: str) -> None:
            super().value(path, text)
            if path == NODE.format(1):
                super().value(path, "0")
                super().value(path, reached)
                raise Crash

    on = here.on._replace(writer=Crashing(here.host))
    # As ``carry_out``, without anybody there to take it back.
    make, boot = apply_module._make, boot_id(on.root)
    with Journal(on.state) as journal, pytest.raises(Crash):
        [make(s, journal, on.writer, on.root, boot) for s in steps(here.host, here.plan())]
    assert [entry["got"] for entry in here.entries] == ["10", None]
    if reached == "20":  # there is nothing left to do, and undo finds it all the same
        assert here.undo() == 0
        assert here.values[:2] == ["0", "0"]
        return
    assert here.apply() == 0
    assert f"stopped here; it was 0, should have become 20, and is {reached}" in here.said()
    assert here.undo() == 0
    assert here.values == BEFORE


@pytest.mark.parametrize(
    ("environment", "root", "folder"),
    [
        ({"HOME": "/root"}, True, "/var/lib/mooncake-preflight"),
        ({"HOME": "/home/a"}, False, "/home/a/.local/state/mooncake-preflight"),
        ({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}, False, "/s/mooncake-preflight"),
        # The specification: a relative path is to be ignored.
        ({"HOME": "/h", "XDG_STATE_HOME": "s"}, False, "/h/.local/state/mooncake-preflight"),
    ],
)
def test_where_the_journal_is_kept(environment: dict[str, str], root: bool, folder: str) -> None:
    assert state_folder(environment, root) == folder


# What makes, changes or takes away a file; each is one step, and a write is two halves.
CALLS = ("fchmod", "fchown", "fsync", "makedirs", "open", "replace", "symlink", "unlink")
MOST_STEPS = 400


def _killed(work: Callable[[], int], last: int) -> bool:
    """Do it in a child that is killed behind its step ``last``; whether it came so far."""
    child = os.fork()
    if child == 0:
        steps = itertools.count()

        def step() -> None:
            if next(steps) == last:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def done(*given: Any, **named: Any) -> Any:
                found = call(*given, **named)
                step()
                return found

            return done

        class Halves(io.FileIO):
            def write(self, content: Any) -> int:
                for half in (content[: len(content) // 2], content[len(content) // 2 :]):
                    super().write(half)
                    step()
                return len(content)

        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        os.fdopen = Halves  # type: ignore[assignment]
        # A kernel's file is written in one piece.
        Writer.value = counted(_value)  # type: ignore[method-assign]
        code = 70
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = int(work())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1, -signal.SIGKILL)
    return code == -signal.SIGKILL


def _value(self: Writer, path: str, text: str) -> None:
    Path(self.locate(path)).write_text(f"{text}\n")


def _state(folder: Path) -> dict[str, tuple[str, int, int, int]]:
    """Each file and link below a folder: content, permissions, owner."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            text = os.readlink(path) if path.is_symlink() else path.read_text().strip()
            owner = (status.st_uid, status.st_gid)
            found[str(path.relative_to(folder))] = (text, stat.S_IMODE(status.st_mode), *owner)
    return found


@pytest.mark.slow
def test_a_kill_at_any_step_leaves_nothing_that_undo_does_not_take_back(host: Path) -> None:
    """The host's own files have another owner and mode; undo is killed too, and run again."""
    for name, mode in ((SYSCTL_FILE, 0o600), (LIMITS_FILE, 0o640)):
        place = host / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("# mine\n")
        place.chmod(mode)
        if os.geteuid() == 0:
            os.chown(place, 1234, 4321)
    before = _state(host)
    wrong = {}

    plan = planned(host, MEMLOCK)

    def apply() -> int:
        return applied(YES, plan, machine(host), persist=True, force=True)

    def undo() -> int:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return undo_changes(machine(host), YES)

    def look(said: str) -> None:
        undo()
        after, left = _state(host), sorted(os.listdir(host.parent / "state"))
        differ = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if differ or len(left) > 1:
            wrong[said] = ({name: (before.get(name), after.get(name)) for name in differ}, left)
        assert len(wrong) < 5, wrong

    for last in some(range(MOST_STEPS), 3):
        killed = _killed(apply, last)
        look(f"apply, step {last}")
        if not killed:
            break
    assert 40 < last < MOST_STEPS - 1
    for last in some(range(MOST_STEPS), 3):
        assert not _killed(apply, MOST_STEPS)
        assert _state(host) != before
        killed = _killed(undo, last)
        look(f"undo, step {last}")
        if not killed:
            break
    assert 20 < last < MOST_STEPS - 1
    assert wrong == {}
