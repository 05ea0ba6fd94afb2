"""Who runs a process, as its launch says, and what that user may lock: real programs are asked."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Status
from checks.framework.needs import CAPABILITIES, LIMIT_NAMES, ProcessNeeds, RunAs
from checks.framework.root import Root
from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.limits.facts import SIZE_ROWS, Ceiling, ThreadFacts, read_limits
from checks.limits.launch_limits import has_capability, start_limit
from checks.limits.runtimes import Limit
from checks.system.facts import read_system
from preflight.cli.main import run
from preflight.launches.shell_script import read_script
from preflight.launches.source import Command
from preflight.processes.containers import container_limits
from tests.checks.limit_hosts import IPC_LOCK, launch, limits, rank, rdma
from tests.checks.test_launch_limits import read_unit
from tests.checks.test_limits_memlock import found, one
from tests.tables import each_row

ROOT = {"euid": 0, "effective_capabilities": 0x1FFFFFFFFFF}
SYSTEMD = "/lib/systemd/systemd"
# What sits where the program would, and says what it is given.
STAND_IN = """#!/bin/sh
grep -E '^(CapEff|Uid)' /proc/self/status
cat /proc/self/limits
"""
ROWS = {"memlock": "Max locked memory", "nofile": "Max open files", "nproc": "Max processes"}
ROWS |= {name: row for row, name in SIZE_ROWS.items()}
LIMITS_CONF = """nobody - memlock 123
* - nofile 4567
root - nproc 99
games soft memlock unlimited
games hard data 7000000
@tape - memlock 5
"""
LINES = """
PROGRAM
sudo PROGRAM
sudo -u nobody PROGRAM
sudo -nu nobody -g games PROGRAM
sudo --user=games PROGRAM
sudo -u '#65534' A=b PROGRAM
sudo -i -u root PROGRAM
su root -c 'PROGRAM --x 1'
su -s /bin/sh nobody -c 'PROGRAM --x 1'
su -s /bin/sh -c 'exec PROGRAM' games
su -s /bin/sh - games -c 'cd / && PROGRAM'
runuser -u games -- PROGRAM
runuser -u nobody -- PROGRAM
setpriv --reuid nobody --clear-groups PROGRAM
setpriv --reuid=65534 --clear-groups --inh-caps=+ipc_lock --ambient-caps=+ipc_lock PROGRAM
sudo setpriv --reuid=games --init-groups PROGRAM
sudo -u nobody prlimit --memlock=4096 PROGRAM
sudo sh -c 'ulimit -l 64; exec setpriv --reuid=nobody --clear-groups PROGRAM'
env A=b nice -n 1 setpriv --reuid nobody --clear-groups sh -c 'ulimit -Sn 50; PROGRAM'
"""


def commands(text: str) -> list[Command]:
    return list(read_script(text, "run.sh", {}).commands)


def unit(lines: str, start: str = "ExecStart=/bin/mooncake_client") -> Command:
    text = f"[Service]\n{lines}\n{start}\n"
    (found,) = read_unit(text).commands
    return found


def of(command: Command) -> ProcessNeeds:
    return rank(limits=command.limits, run_as=command.run_as)


@each_row(
    ("text", "user"),
    [
        ("mooncake_client a", ""),
        ("sudo mooncake_client a", "root"),
        ("sudo -u llm mooncake_client a", "llm"),
        ("sudo -Eullm mooncake_client a", "llm"),
        ("sudo -u '#7' mooncake_client a", "7"),
        ("sudo -g video -p x mooncake_client a", "root"),
        ("su - llm -c 'mooncake_client a'", "llm"),
        ("su -c 'mooncake_client a' llm", "llm"),
        ("su -c 'mooncake_client a'", "root"),
        ("runuser -l llm -c 'mooncake_client a'", "llm"),
        ("gosu llm:users mooncake_client a", "llm"),
        ("setpriv --reuid=llm mooncake_client a", "llm"),
        ("sudo setpriv --reuid 7 --regid 8 mooncake_client a", "7"),
        ("sudo docker run img mooncake_client a", ""),
        ("docker run img gosu llm mooncake_client a", "llm"),
        ("sudo bash -c 'docker run img mooncake_client a'", ""),
        ("sudo -u llm bash -c 'mooncake_client a'", "llm"),
        ("sudo ssh host mooncake_client a", ""),
    ],
)
def test_whom_a_wrapper_makes_run_it(text: str, user: str) -> None:
    (command,) = commands(text)
    assert command.run_as.user == user


@each_row(
    ("lines", "user", "gained"),
    [
        ("", "root", []),
        ("User=llm", "llm", []),
        ("User=llm\nAmbientCapabilities=CAP_IPC_LOCK", "llm", ["IPC_LOCK"]),
        ("AmbientCapabilities=CAP_IPC_LOCK\nAmbientCapabilities=", "root", []),
    ],
)
def test_whom_a_unit_makes_run_it(lines: str, user: str, gained: list[str]) -> None:
    run_as = unit(lines).run_as
    assert (run_as.user, list(run_as.gained)) == (user, gained)
    for prefix in "+!":  # which lift what the unit sets
        assert unit(lines, f"ExecStart={prefix}/bin/mooncake_client").run_as.user == "root"


@each_row(
    "line",
    [
        "CapabilityBoundingSet=~CAP_IPC_LOCK",
        "CapabilityBoundingSet=",
        "AmbientCapabilities=~CAP_CHOWN",
        "DynamicUser=yes",
        "PrivateUsers=yes",
    ],
)
def test_what_takes_from_a_unit_is_named_as_not_read(line: str) -> None:
    text = f"[Service]\n{line}\nExecStart=/bin/mooncake_client\n"
    notes = read_unit(text).notes
    assert [note.origin.line for note in notes if note.id == "unit-limit-not-read"] == [2]


UNREAD = Unknown("limits.identity: says of no user whether it is root")


@each_row(
    ("command", "host", "status"),
    [
        # Root asks: its own capability is not that of the user who runs it.
        (commands("sudo -u llm mooncake_client a"), limits(**ROOT), Status.FAIL),
        (commands("setpriv --reuid=7 mooncake_client a"), limits(**ROOT), Status.FAIL),
        ([unit("User=llm")], limits(None, **ROOT), Status.FAIL),
        ([unit("User=llm\nLimitMEMLOCK=infinity")], limits(**ROOT), Status.PASS),
        ([unit("User=llm\nAmbientCapabilities=CAP_IPC_LOCK")], limits(**ROOT), Status.PASS),
        (
            commands("sudo setpriv --reuid=7 --inh-caps=+ipc_lock --ambient-caps=+ipc_lock a b"),
            limits(),
            Status.PASS,
        ),
        # An ordinary user asks, and root runs it.
        ([unit("")], limits(), Status.PASS),
        ([unit("User=0")], limits(), Status.PASS),
        (commands("sudo mooncake_client a"), limits(), Status.PASS),
        ([unit("")], limits(initial_user_namespace=False), Status.FAIL),
        ([unit("")], limits(bounding_capabilities=0), Status.FAIL),
        # Who it is or whether it is root is not known: that is no pass, and no failure.
        (commands("sudo -u $WHO mooncake_client a"), limits(**ROOT), Status.UNKNOWN),
        ([unit("User=toor")], limits(root_names=("root", "toor")), Status.PASS),
        ([unit("User=toor")], limits(root_names=UNREAD), Status.UNKNOWN),
        ([unit("User=toor\nLimitMEMLOCK=infinity")], limits(root_names=UNREAD), Status.PASS),
        # The launch leaves it to who asks.
        (commands("mooncake_client a"), limits(effective_capabilities=IPC_LOCK), Status.PASS),
    ],
)
def test_memlock_is_judged_for_who_runs_it(
    command: list[Command], host: Any, status: Status
) -> None:
    finding = one("memlock.limit", launch(of(command[0])), host, rdma=rdma(1))
    assert finding.status is status, finding


@each_row(
    ("text", "status"),
    [
        ("docker run --cap-add IPC_LOCK --user 0 img mooncake_client a", Status.PASS),
        ("docker run --cap-add IPC_LOCK --user 0 img gosu 7 mooncake_client a", Status.FAIL),
        ("docker run --cap-add IPC_LOCK --user 7 img sudo mooncake_client a", Status.PASS),
        ("docker run --cap-add IPC_LOCK img gosu $U mooncake_client a", Status.UNKNOWN),
        ("sudo -u 7 docker run --cap-add IPC_LOCK --user 0 img mooncake_client a", Status.PASS),
    ],
)
def test_within_a_container(text: str, status: Status) -> None:
    (command,) = commands(text)
    described = container_limits(command)
    assert described is not None
    process = of(command)._replace(container=described._replace(memlock_bytes=MIB))
    assert one("memlock.limit", launch(process), limits(**ROOT), rdma=rdma(1)).status is status


@each_row(
    ("run_as", "euid", "status"),
    [
        (RunAs(), 0, Status.PASS),
        (RunAs("root", origin="x.service"), 0, Status.PASS),
        (RunAs("root", origin="x.service"), 1000, Status.WARN),
        (RunAs("llm", origin="x.service"), 0, Status.WARN),
        (RunAs("1000", origin="x.service"), 1000, Status.PASS),
        (RunAs(Unknown("$X"), origin="x.service"), 0, Status.UNKNOWN),
    ],
)
def test_the_user_of_a_launch_is_compared_with_who_asks(
    run_as: RunAs, euid: int, status: Status
) -> None:
    needs = launch(rank(run_as=run_as))
    assert one("limits.run-as", needs, limits(euid=euid)).status is status


@each_row(
    ("user", "threads", "status"),
    [("root", 0, Status.PASS), ("llm", 90, Status.UNKNOWN), ("llm", 20, Status.PASS)],
)
def test_another_user_s_threads_are_not_those_of_who_asks(
    user: str, threads: int, status: Status
) -> None:
    facts = ThreadFacts((Ceiling("pid_max", 1 << 22, threads),), (), 0, 1)
    process = rank(program="mooncake_master", run_as=RunAs(user, origin="x"), rdma=None)
    judged = found("limits.threads", launch(process), limits(nproc=Limit(100, 100), threads=facts))
    assert [each.status for each in judged if each.subject.endswith(", user")] == [status]


def compare(folder: str) -> list[str]:
    """Run each line, and return where what it is given is not what is said of it."""
    program = f"{folder}/mooncake_client"
    facts, system = read_limits(Root("/"), None), read_system(Root("/"), None)
    differences = []
    for line in filter(None, LINES.splitlines()):
        line = line.replace("PROGRAM", program)
        if shutil.which(line.split()[0]) is None and not line.startswith(program):
            continue
        told = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, check=False, timeout=20
        ).stdout
        assert "CapEff" in told, line
        (command,) = commands(line)
        process = of(command)
        mask = int(re.findall(r"CapEff:\s+(\w+)", told)[0], 16)
        said: dict[str, Any] = {
            name: has_capability(command.run_as, name, None, facts, system) for name in CAPABILITIES
        }
        real: dict[str, Any] = {name: bool(mask >> CAPABILITIES[name] & 1) for name in said}
        for name, row in ROWS.items():
            start = getattr(facts, name, None) or facts.sizes[row]
            said[name] = start_limit(name, start, process, facts, system).limit
            words = re.findall(rf"{row}\s+(\S+)\s+(\S+)", told)[0]
            real[name] = Limit(*(None if word == "unlimited" else int(word) for word in words))
        differences += [
            f"{line}: {name} is {real[name]}, said {said[name]}"
            for name in said
            if said[name] != real[name]
            # Named as not read: only where limits.conf has a row that may mean the user.
            and "what a login gets of it is not worked out" not in str(said[name])
        ]
    return differences


@pytest.fixture
def program() -> Iterator[Path]:
    """A folder that every user may enter, with the stand-in."""
    folder = Path(tempfile.mkdtemp(prefix="run-as-", dir="/var/tmp"))
    folder.chmod(0o755)
    path = folder / "mooncake_client"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    (folder / "limits.conf").write_text(LIMITS_CONF)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start things as other users")
@pytest.mark.parametrize("with_rows", [False, True])
def test_real_programs_are_the_judge(program: Path, with_rows: bool) -> None:
    """sudo, su, runuser and setpriv: capabilities and limits of what they start."""
    mount = f"mount --bind {program}/limits.conf /etc/security/limits.conf &&" if with_rows else ""
    script = (
        "import json, sys; from tests.checks.test_run_as import compare; "
        "print(json.dumps(compare(sys.argv[1])))"
    )
    words = ["unshare", "-m", "sh", "-c", f'{mount} exec "$@"', "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of one's own, or no pam_limits here")
    asked = [*words, sys.executable, "-c", script, str(program)]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start it as another user")
@pytest.mark.skipif(not Path(SYSTEMD).exists(), reason="systemd is not installed")
@pytest.mark.parametrize(
    "lines",
    [
        "",
        "User=games",
        "User=games\nAmbientCapabilities=CAP_IPC_LOCK\nLimitDATA=4G:5G",
        "AmbientCapabilities=CAP_IPC_LOCK CAP_CHOWN\nLimitNOFILE=10:20",
    ],
)
def test_systemd_is_the_judge_of_a_unit(lines: str, program: Path) -> None:
    """Its own dump of what it read; here it is not process 1, and raises no hard limit."""
    (program / "x.service").write_text(f"[Service]\n{lines}\nExecStart=/bin/mooncake_client\n")
    words = [SYSTEMD, "--test", "--system", "--unit=x.service", "--no-pager"]
    told = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", *words],
        env={"SYSTEMD_UNIT_PATH": f"{program}:", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )
    dump = told.stdout.partition("-> Unit x.service:")[2].partition("-> Unit ")[0]
    if not dump:
        pytest.skip(f"systemd --test shows no unit here: {told.stderr[-200:]}")
    rows = dict(re.findall(r"^\s+(\w+): ?(.*)$", dump, re.MULTILINE))
    command = unit(lines)
    assert command.run_as.user == rows.get("User", "root")
    names = {name: f"cap_{name.lower()}" for name in CAPABILITIES}
    ambient = rows.get("AmbientCapabilities", "").split()
    assert set(command.run_as.gained) == {n for n, word in names.items() if word in ambient}
    facts, system = read_limits(Root("/"), None), read_system(Root("/"), None)
    for name in LIMIT_NAMES:
        hard, soft = (rows.get(f"Limit{name.upper()}{end}") for end in ("", "Soft"))
        if hard is None or soft is None:
            continue
        after = start_limit(name, Unknown("not looked at"), of(command), facts, system).limit
        assert isinstance(after, Limit)
        wanted = [2**64 - 1 if bound is None else bound for bound in (after.soft, after.hard)]
        if name == "nofile" and "LimitNOFILE=" not in lines and isinstance(facts.nofile, Limit):
            wanted = [min(bound, facts.nofile.hard or bound) for bound in wanted]
        assert wanted == [int(soft), int(hard)], name


def test_plan_sets_what_check_fails(tmp_path: Path) -> None:
    """A unit without a limit: check fails, and plan writes the drop-in of that unit."""
    path = tmp_path / "store.service"
    start = "/bin/mooncake_client --global_segment_size=8GB --protocol=rdma"
    path.write_text(f"[Service]\nUser=llm\nExecStart={start}\n")
    shown = []
    for verb in (["check", "--only", "memlock.limit"], ["plan", "--format", "systemd"]):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run([*verb, "--root", "demo:h800", "--timeout", "600", str(path)])
        shown.append(out.getvalue())
    assert "fail" in shown[0]
    assert "store.service.d/90-mooncake.conf" in shown[0]
    header, *lines = shown[1].splitlines()
    assert header.endswith("/etc/systemd/system/store.service.d/90-mooncake.conf")
    assert lines == ["[Service]", "LimitMEMLOCK=infinity"]


KEPT = [
    ("su - -c", ""),
    ("su -l root -c", ""),
    ("su -lc", ""),
    ("su -p - root -c", ""),
    ("su root -c", "MC_X MC_Y"),
    ("runuser -l root -c", ""),
    ("runuser -u root --", "MC_X MC_Y"),
    ("sudo -i", ""),
    ("sudo --login -u root", ""),
    ("sudo", ""),
    ("sudo -u root", ""),
    ("sudo -n MC_Y=2", "MC_Y"),
    ("sudo -E", "MC_X MC_Y"),
    ("sudo -nE -u root", "MC_X MC_Y"),
    ("sudo --preserve-env", "MC_X MC_Y"),
    ("sudo --preserve-env=MC_X,MC_Z -u root", "MC_X"),
]


@each_row(("wrapper", "kept"), KEPT)
def test_which_variables_come_through(wrapper: str, kept: str) -> None:
    program = "'mooncake_client a'" if wrapper.endswith("c") else "mooncake_client a"
    (command,) = commands(f"export MC_X=1 MC_Y=2\n{wrapper} {program}")
    assert [name for name in ("MC_X", "MC_Y") if name in command.environment] == kept.split()


@pytest.mark.slow
@pytest.mark.parametrize(("wrapper", "kept"), KEPT)
def test_the_real_programs_let_the_same_through(wrapper: str, kept: str) -> None:
    if os.geteuid() != 0 or shutil.which(wrapper.split()[0]) is None:
        pytest.skip(f"{wrapper.split()[0]} as root is needed")
    text = "env | grep -o '^MC_[XY]' | sort"
    program = f'"{text}"' if wrapper.endswith("c") else f'bash -c "{text}"'
    ran = subprocess.run(
        ["bash", "-c", f"export MC_X=1 MC_Y=2\n{wrapper} {program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.split() == kept.split(), ran.stderr
