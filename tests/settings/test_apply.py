"""Applying a plan: all or nothing, never less than there is, and back again; on a folder's files.

The kernel is a writer that gives pages as one under memory pressure would; test_apply_real
does the same to this machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Kind, Setting
from checks.base.root import Root
from checks.run.facts import read_facts
from preflight.base import exit_codes
from preflight.base.usage_error import UsageError
from preflight.inputs.launch_words import LaunchWords
from preflight.settings.apply import (
    COMPACT,
    ApplyStep,
    Consent,
    Machine,
    apply_plan,
    carry_out,
    steps_of,
    undo_changes,
)
from preflight.settings.commands import LIMITS_FILE, SYSCTL_FILE, UNIT_FILE, WANTS_FILE, header
from preflight.settings.plan import kept_settings, plan, plan_of
from preflight.settings.records import Gap, Plan
from preflight.settings.undo import (
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
from tests.builders.plans import anywhere, finding, launch, on_nodes, plain_facts, rank
from tests.builders.synthetic import GIB, MIB, build_host, gpu_host, plain_host
from tests.checks.test_synthetic import NICS, script

Out = pytest.CaptureFixture[str]

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
NODE = "/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages"
MAPS = "/proc/sys/vm/max_map_count"
BEFORE = ["0", "0", "65530"]
YES, ASKING, DRY = Consent(yes=True), Consent(), Consent(dry_run=True, yes=True)
MEMLOCK = Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608")


def applied(
    consent: Consent, planned: Plan, on: Machine, *, persist: bool = False, force: bool = False
) -> int:
    return apply_plan(planned, ("run.sh",), on, consent, persist=persist, force=force)


class Kernel(Writer):
    """Below a folder: pools get at most ``pieces`` pages, and ``more`` at each compaction.

    fails: writing this file is an error of the kernel.
    """

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


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A two-node host with a boot id; its state is kept beside it."""
    files = {BOOT_ID: "boot-1", MAPS: "65530"}
    return build_host(tmp_path / "host", replace(plain_host(), nodes=2, files=files))


def machine(host: Path, **kernel: int | str) -> Machine:
    writer = Kernel(host, **kernel)  # type: ignore[arg-type]
    return Machine(Root(str(host)), writer, str(host.parent / "state"))


def planned(host: Path, *settings: Setting, pages: tuple[int, ...] = (10, 20)) -> Plan:
    root = Root(str(host))
    needs = launch(on_nodes(*pages), rank(0), rank(1))
    found = [finding(setting) for setting in settings]
    facts = read_facts(root, needs, topics=("system", "limits", "memory", "hugetlb"))
    return plan(needs, facts, found, kept_settings(root))


def at(host: Path, path: str) -> Path:
    """Where a path of the host lies, in a folder that is there."""
    place = host / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def read(host: Path, path: str) -> str:
    return at(host, path).read_text().strip()


def values(host: Path) -> list[str]:
    return [read(host, path) for path in (NODE.format(0), NODE.format(1), MAPS)]


def entries(on: Machine) -> list[dict[str, object]]:
    place = Path(on.state, "journal.json")
    return list(json.loads(place.read_text())["entries"]) if place.exists() else []


def steps(host: Path, found: Plan) -> tuple[ApplyStep, ...]:
    return steps_of(found, Root(str(host)), Writer(str(host))).steps


# All of it -------------------------------------------------------------------------------------


def test_what_is_applied_is_as_planned_and_a_second_time_changes_nothing(
    host: Path, capsys: Out
) -> None:
    on = machine(host)
    assert applied(YES, planned(host), on) == 0
    assert values(host) == ["10", "20", "262144"]
    assert len(entries(on)) == 3
    capsys.readouterr()
    again = planned(host)
    assert not any(setting.change for setting in again.settings)
    before = list(on.writer.written)  # type: ignore[attr-defined]
    assert applied(YES, again, on) == 0
    assert on.writer.written == before  # type: ignore[attr-defined]
    assert "nothing to change" in capsys.readouterr().out


def test_undo_takes_it_back_in_reverse(host: Path, capsys: Out) -> None:
    on = machine(host)
    applied(YES, planned(host), on)
    on.writer.written.clear()  # type: ignore[attr-defined]
    assert undo_changes(on, YES) == 0
    assert values(host) == BEFORE
    paths = [path for path, _ in on.writer.written]  # type: ignore[attr-defined]
    assert paths == [MAPS, NODE.format(1), NODE.format(0)]
    assert entries(on) == []
    capsys.readouterr()
    assert undo_changes(on, YES) == 0
    assert capsys.readouterr().out == "nothing to undo\n"


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
        after = [int(read(host, NODE.format(node))) for node in (0, 1)]
        if outcome.failure:
            assert after == now
            assert journal.entries == []
        else:
            assert after == [max(a, b) for a, b in zip(now, need, strict=True)]
        undo(journal, on.root, on.writer)
    assert [int(read(host, NODE.format(node))) for node in (0, 1)] == now


def test_fewer_pages_than_asked_for_are_said_compacted_for_and_given_back(
    host: Path, capsys: Out
) -> None:
    on = machine(host, pieces=15)
    assert applied(YES, planned(host), on) == exit_codes.FAIL
    said = capsys.readouterr().err
    assert "2 MiB pages on node 1: the kernel gave 15 of 20 pages" in said
    assert "at boot" in said
    assert (COMPACT, "1") in on.writer.written  # type: ignore[attr-defined]
    assert values(host) == BEFORE
    assert entries(on) == []


def test_compaction_that_helps_is_enough(host: Path, capsys: Out) -> None:
    on = machine(host, pieces=12, more=4)
    assert applied(YES, planned(host), on) == 0
    assert values(host) == ["10", "20", "262144"]
    assert "after compacting memory 2 times" in capsys.readouterr().out


def test_a_step_that_fails_takes_the_others_back(host: Path, capsys: Out) -> None:
    on = machine(host, fails=MAPS)
    assert applied(YES, planned(host), on) == exit_codes.FAIL
    assert values(host) == BEFORE
    said = capsys.readouterr().err
    assert f"{MAPS}: Invalid argument" in said
    assert f"taken back: {NODE.format(1)}: 20 -> 0" in said


def test_a_file_that_vanishes_after_the_plan_is_said_and_the_rest_taken_back(
    host: Path, capsys: Out
) -> None:
    on, found = machine(host), planned(host)
    before_that = steps(host, found)
    at(host, NODE.format(1)).unlink()
    assert applied(YES, found, on) == exit_codes.UNKNOWN
    assert f"{NODE.format(1)} cannot be read" in capsys.readouterr().err
    with Journal(on.state) as journal:
        outcome = carry_out(before_that, journal, on.writer, on.root)
    assert "No such file" in outcome.failure
    assert read(host, NODE.format(0)) == "0"


def test_an_interruption_takes_back_what_was_done(host: Path) -> None:
    class Interrupted(Kernel):
        def value(self, path: str, text: str) -> None:
            super().value(path, text)
            if path == NODE.format(1) and text == "20":
                raise KeyboardInterrupt

    on = machine(host)._replace(writer=Interrupted(host))
    with pytest.raises(KeyboardInterrupt):
        applied(YES, planned(host), on)
    assert values(host) == BEFORE
    assert entries(on) == []


def test_nothing_is_lowered_and_what_others_set_meanwhile_stays(host: Path) -> None:
    on, found = machine(host), planned(host)
    at(host, NODE.format(0)).write_text("500")
    at(host, MAPS).write_text("1048576")
    assert applied(YES, found, on) == 0
    assert values(host) == ["500", "20", "1048576"]
    assert [entry["path"] for entry in entries(on)] == [NODE.format(1)]


def test_pages_of_others_stay_theirs_when_it_is_undone(host: Path, capsys: Out) -> None:
    on = machine(host)
    applied(YES, planned(host), on)
    free = at(host, NODE.format(1)).parent / "free_hugepages"
    free.write_text("5")
    assert undo_changes(on, YES) == exit_codes.WARN
    assert values(host) == ["0", "15", "65530"]
    assert "in use" in capsys.readouterr().out
    assert [(entry["path"], entry["got"]) for entry in entries(on)] == [(NODE.format(1), "15")]
    free.write_text("15")  # whoever had them has ended
    assert undo_changes(on, YES) == 0
    assert values(host) == BEFORE


def test_undo_leaves_what_somebody_else_has_changed(host: Path, capsys: Out) -> None:
    on = machine(host)
    applied(YES, planned(host), on)
    at(host, MAPS).write_text("500000")
    assert undo_changes(on, YES) == exit_codes.WARN
    assert values(host) == ["0", "0", "500000"]
    assert "it was 65530" in capsys.readouterr().out


def test_after_a_reboot_there_is_nothing_to_take_back(host: Path) -> None:
    on = machine(host)
    applied(YES, planned(host), on)
    at(host, BOOT_ID).write_text("boot-2")
    assert undo_changes(on, YES) == 0
    assert values(host) == ["10", "20", "262144"]
    assert entries(on) == []


# Asking ----------------------------------------------------------------------------------------


def test_the_difference_is_shown_before_anything_is_done(host: Path, capsys: Out) -> None:
    on = machine(host)
    assert applied(DRY, planned(host), on) == 0
    out = capsys.readouterr().out
    assert f"--- {MAPS}\n+++ {MAPS}\n@@ -1 +1 @@\n-65530\n+262144\n" in out
    assert values(host) == BEFORE
    assert not Path(on.state).exists()


def test_without_a_terminal_nobody_is_asked_and_nothing_is_done(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = machine(host)
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        with pytest.raises(UsageError, match="--yes"):
            applied(ASKING, planned(host), on)
    assert values(host)[0] == "0"


@pytest.mark.parametrize(
    ("answer", "code", "pages"), [("y\n", 0, "10"), ("\n", exit_codes.WARN, "0")]
)
def test_on_a_terminal_the_answer_decides(
    answer: str, code: int, pages: str, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, terminal = os.openpty()
    with os.fdopen(controller, "wb") as keyboard, os.fdopen(terminal) as screen:
        keyboard.write(answer.encode())
        keyboard.flush()
        monkeypatch.setattr("sys.stdin", screen)
        assert applied(ASKING, planned(host), machine(host)) == code
    assert read(host, NODE.format(0)) == pages


def test_what_is_not_known_or_cannot_be_had_is_refused_before_anything_is_done(host: Path) -> None:
    on, found = machine(host), planned(host)
    gap = found._replace(gaps=(Gap("pages", "MODEL is not set"),))
    assert applied(YES, gap, on) == exit_codes.UNKNOWN
    impossible = found._replace(impossible=("2 MiB pages: more than there is",))
    assert applied(YES, impossible, on) == exit_codes.FAIL
    assert on.writer.written == []  # type: ignore[attr-defined]


def test_what_decides_about_pages_alone_stops_nothing_else(host: Path) -> None:
    """Where no page is missing, the settings are made whatever of the memory is not known."""
    on = machine(host)
    unread = planned(host)._replace(undecided=("memory.host, host: not read",))
    assert applied(YES, unread, on) == exit_codes.UNKNOWN
    assert on.writer.written == []  # type: ignore[attr-defined]
    enough = planned(host, pages=(0, 0))._replace(undecided=("memory.host, host: not read",))
    assert applied(YES, enough, on) == 0
    assert read(host, MAPS) == "262144"


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
    tmp_path: Path, capsys: Out, hidden: str, dry_run: bool
) -> None:
    """As behind a mount over a part of /proc or /sys: nothing is written, the place is named."""
    host, run = tmp_path / "host", tmp_path / "run.sh"
    build_host(host, gpu_host())
    run.write_text(script("Qwen/Qwen3-8B", 8, NICS, "16gb"))
    words = LaunchWords((str(run),), mooncake_version="0.3.13.post1", sglang_version="0.5.23")
    on = machine(host)
    seen = plan_of(words, str(host), 60.0)
    assert any(step.pool for step in steps(host, seen))
    assert seen.undecided == ()
    place = host / hidden.lstrip("/")
    place.rename(tmp_path / "away")
    if (tmp_path / "away").is_dir():
        place.mkdir()  # an empty folder, as a tmpfs is
    else:
        place.write_text("")
    assert (
        applied(DRY if dry_run else YES, plan_of(words, str(host), 60.0), on) == exit_codes.UNKNOWN
    )
    said = capsys.readouterr().err
    assert hidden.split("/node1/hugepages")[0] in said
    assert "nothing was changed" in said
    assert on.writer.written == []  # type: ignore[attr-defined]
    assert entries(on) == []


def test_who_may_not_write_gets_the_commands(host: Path, capsys: Out) -> None:
    class Forbidden(Kernel):
        def may_write(self, kind: str, path: str) -> bool:
            return False

    on = machine(host)._replace(writer=Forbidden(host))
    assert applied(YES, planned(host), on) == exit_codes.NOT_PERMITTED
    assert f"echo 20 > {NODE.format(1)}" in capsys.readouterr().out
    assert on.writer.written == []  # type: ignore[attr-defined]


def test_what_apply_does_not_do_is_listed_with_what_does(host: Path, capsys: Out) -> None:
    settings = (
        MEMLOCK,
        Setting(Kind.ULIMIT, "memlock", "unlimited", "8388608", unit="docker.service"),
        Setting(Kind.DEVICE, "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
        Setting(Kind.ENVIRONMENT, "MC_MTU", "1024", "4096"),
        Setting(Kind.KERNEL_ARGUMENT, "iommu", "pt"),
        Setting(Kind.SYSCTL, "vm.compact_memory", "1"),
    )
    applied(DRY, planned(host, *settings), machine(host))
    out = capsys.readouterr().out
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


def test_drop_ins_make_it_last_and_a_second_time_changes_nothing(host: Path, capsys: Out) -> None:
    (host / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
    other = Setting(Kind.SYSCTL, "vm.overcommit_memory", "0", "2")
    (host / "proc/sys/vm/overcommit_memory").write_text("2")
    on = machine(host)
    assert applied(YES, planned(host, MEMLOCK, other), on, persist=True) == 0
    assert "vm.max_map_count = 262144" in read(host, SYSCTL_FILE)
    assert "vm.overcommit_memory = 0" in read(host, SYSCTL_FILE)
    assert "-ge 20" in read(host, UNIT_FILE)
    assert os.readlink(host / WANTS_FILE.lstrip("/")) == UNIT_FILE
    assert "root - memlock unlimited" in read(host, LIMITS_FILE)
    assert (host / SYSCTL_FILE.lstrip("/")).stat().st_mode & 0o777 == 0o644
    # The check of overcommit passes now, and asks for nothing any more.
    again = planned(host, MEMLOCK)
    assert all(s.lasts for s in again.planned(Kind.SYSCTL, Kind.SYSFS))
    capsys.readouterr()
    assert applied(YES, again, on, persist=True) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert undo_changes(on, YES) == 0
    for path in (SYSCTL_FILE, UNIT_FILE, WANTS_FILE, LIMITS_FILE):
        assert not os.path.lexists(host / path.lstrip("/")), path


def test_what_wins_over_the_drop_in_is_said(host: Path, capsys: Out) -> None:
    """Its file is another's, which apply does not touch; check prints the line that mends it."""
    later = host / "etc/sysctl.d/99-other.conf"
    later.parent.mkdir(parents=True, exist_ok=True)
    later.write_text("-vm/nr_hugepages = 3\n")
    applied(YES, planned(host, pages=(20, 20)), machine(host), persist=True)
    said = f"/etc/sysctl.d/99-other.conf wins over {SYSCTL_FILE}: it is read later and sets 3 pages"
    assert said in capsys.readouterr().out


def test_lines_of_our_file_are_read_as_sysctl_reads_them(host: Path) -> None:
    """One that was written again under its other name stood behind the new one, and won."""
    place = at(host, SYSCTL_FILE)
    place.write_text(f"{header('', SYSCTL_FILE)}\n-vm/nr_hugepages = 3\nvm/swappiness=1\n")
    assert kept_settings(Root(str(host))) == {"vm.nr_hugepages": "3", "vm.swappiness": "1"}
    assert applied(YES, planned(host, pages=(20, 20)), machine(host), persist=True) == 0
    assert re.findall(r"(?m)^.*nr_hugepages.*$", read(host, SYSCTL_FILE)) == [
        "vm.nr_hugepages = 40"
    ]
    assert "vm.swappiness = 1" in read(host, SYSCTL_FILE)


def test_a_file_of_somebody_else_is_not_replaced_unless_told_to(host: Path, capsys: Out) -> None:
    place = at(host, SYSCTL_FILE)
    place.write_bytes(b"# mine \xff \x1b[31m\nvm.nr_hugepages = 3\n")
    place.chmod(0o600)
    on, found = machine(host), planned(host)
    with pytest.raises(UsageError, match=r"90-mooncake\.conf"):
        applied(YES, found, on, persist=True)
    assert values(host)[0] == "0"
    assert applied(YES, found, on, persist=True, force=True) == 0
    assert "vm.max_map_count" in place.read_text()
    assert "\x1b" not in capsys.readouterr().out
    assert undo_changes(on, YES) == 0
    assert place.read_bytes() == b"# mine \xff \x1b[31m\nvm.nr_hugepages = 3\n"
    assert place.stat().st_mode & 0o777 == 0o600


def test_half_a_drop_in_that_a_crash_left_is_replaced_only_if_it_is_ours(host: Path) -> None:
    place = at(host, SYSCTL_FILE)
    on = machine(host)
    for other in ("# Generated by moonc", f"vm.x = 1\n{header('', SYSCTL_FILE)}\n"):
        place.write_text(other)
        with pytest.raises(UsageError, match="not written by"):
            applied(YES, planned(host), on, persist=True)
    for ours in ("", "\n \n", "# Generated by mooncake-preflight for run.sh: /etc/x\nvm.max_ma"):
        place.write_text(ours)
        assert applied(YES, planned(host), on, persist=True) == 0
        assert "vm.max_map_count = 262144" in place.read_text()


@pytest.mark.parametrize("then", ["undo", "apply", "a write"])
def test_what_a_kill_left_beside_a_drop_in_is_gone_after_the_next(host: Path, then: str) -> None:
    """undo and apply alike; a file of the same kind that is not in the journal stays."""
    place = at(host, SYSCTL_FILE)
    part = place.with_name(f".{place.name}{PART}")
    on = machine(host)
    with Journal(on.state) as journal:
        journal.add(Entry("file", SYSCTL_FILE, None, "vm.x = 1\n", None, boot_id(on.root)))
    part.write_text("vm.x")
    other = place.with_name(f".other.conf{PART}")
    other.write_text("not ours")
    if then == "undo":
        assert undo_changes(on, YES) == 0
    elif then == "apply":
        assert applied(YES, planned(host), on) == 0
    else:
        Writer(str(host)).file(SYSCTL_FILE, "whole\n")
        assert read(host, SYSCTL_FILE) == "whole"
    assert (part.exists(), other.exists()) == (False, True)


@pytest.mark.parametrize("path", [SYSCTL_FILE, WANTS_FILE])
def test_a_link_that_is_not_ours_is_neither_followed_nor_replaced(
    path: str, host: Path, tmp_path: Path
) -> None:
    """Whoever can make one in place of a drop-in would have us write elsewhere."""
    target = tmp_path / "target"
    target.write_text("# Generated by mooncake-preflight for x: y\n")
    at(host, "/etc/systemd/system/x")
    place = at(host, path)
    place.symlink_to(target)
    with pytest.raises(UsageError, match=f"{path} was not written by"):
        applied(YES, planned(host), machine(host), persist=True)
    assert os.readlink(place) == str(target)


def test_an_unwritable_folder_is_said_and_all_is_taken_back(host: Path, capsys: Out) -> None:
    """Root may write anywhere, so a file stands where the folder has to be."""
    shutil.rmtree(host / "etc/sysctl.d", ignore_errors=True)
    (host / "etc").mkdir(exist_ok=True)
    (host / "etc/sysctl.d").write_text("")
    on = machine(host)
    assert applied(YES, planned(host), on, persist=True) == exit_codes.FAIL
    assert values(host) == BEFORE
    assert "etc/sysctl.d" in capsys.readouterr().err


def test_in_a_container_drop_ins_belong_to_its_host(tmp_path: Path) -> None:
    found = plan(launch(anywhere(1)), plain_facts(tmp_path / "host", container="docker"), [])
    with pytest.raises(UsageError, match="container"):
        applied(YES, found, machine(tmp_path / "host"), persist=True)


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
def test_a_journal_that_is_not_ours_stops_everything_and_is_kept(
    content: str, host: Path, capsys: Out
) -> None:
    on = machine(host)
    place = Path(on.state, "journal.json")
    place.parent.mkdir()
    place.write_text(content)
    assert applied(YES, planned(host), on) == exit_codes.NOT_PERMITTED
    assert undo_changes(on, YES) == exit_codes.NOT_PERMITTED
    assert "nothing was changed" in capsys.readouterr().err
    assert values(host) == BEFORE
    assert place.read_text() == content


def test_where_the_journal_cannot_be_kept_nothing_is_changed(host: Path, capsys: Out) -> None:
    on = machine(host)
    with Journal(on.state):
        assert applied(YES, planned(host), on) == exit_codes.NOT_PERMITTED
    assert "another apply is running" in capsys.readouterr().err
    shutil.rmtree(on.state)
    Path(on.state).write_text("a file in place of the folder")
    assert applied(YES, planned(host), on) == exit_codes.NOT_PERMITTED
    assert values(host) == BEFORE
    assert "nothing was changed" in capsys.readouterr().err


@pytest.mark.parametrize("reached", ["0", "7", "20"])
def test_what_a_crash_broke_off_is_named_and_can_be_undone(
    reached: str, host: Path, capsys: Out
) -> None:
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

    on = machine(host)._replace(writer=Crashing(host))
    with Journal(on.state) as journal, pytest.raises(Crash):
        _crash(steps(host, planned(host)), journal, on)
    assert [entry["got"] for entry in entries(on)] == ["10", None]
    on = machine(host)
    if reached == "20":  # there is nothing left to do, and undo finds it all the same
        assert undo_changes(on, YES) == 0
        assert values(host)[:2] == ["0", "0"]
        return
    assert applied(YES, planned(host), on) == 0
    assert (
        f"stopped here; it was 0, should have become 20, and is {reached}"
        in capsys.readouterr().err
    )
    assert undo_changes(on, YES) == 0
    assert values(host) == BEFORE


def _crash(found: tuple[ApplyStep, ...], journal: Journal, on: Machine) -> None:
    """As ``carry_out``, without anybody there to take it back."""
    from preflight.settings import apply

    for step in found:
        apply._make(step, journal, on.writer, on.root, boot_id(on.root))


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


def test_the_largest_pages_come_first(tmp_path: Path) -> None:
    host = build_host(tmp_path / "host", plain_host())
    pages = {**anywhere(4), **anywhere(1, GIB)}
    found = plan(launch(pages), plain_facts(tmp_path / "facts"), [])
    assert [step.wanted for step in steps(host, found) if step.pool] == ["1", "4"]
    assert {pool.page_bytes for pool in found.pools} == {2 * MIB, GIB}
