"""``fleet check`` over a real ssh server and ClusterShell: what nodes say, and what they do not."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.cli.main import run as main
from preflight.fleet.base.node_sets import expand
from preflight.fleet.remote.program import SshNodes
from tests.fleet.conftest import (
    BUSIER,
    BUSY,
    CARRIED,
    CUT_OFF,
    ENDS,
    GARBAGE,
    GATEWAY,
    HANGING,
    HEALTHY,
    LOW_MEMLOCK,
    NOISY,
    OLD,
    PORT_DOWN,
    REFUSING,
    SILENT,
    UNKNOWN_KEY,
)
from tests.fleet.sshd_farm import PATIENCE_SECONDS, Farm, name_of, wait_for
from tests.paths import ROOT
from tests.valid import valid

pytestmark = pytest.mark.fleet
SCHEMA = json.loads((ROOT / "preflight/report/schemas/check-v1.schema.json").read_text())

Json = dict[str, Any]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "preflight.cli.main", "fleet", "check", *words]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_SECONDS,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def numbers(*which: int) -> list[str]:
    return ["--nodes", ",".join(name_of(number) for number in which)]


def kept(folder: Path) -> dict[str, Json]:
    """The reports that were written, each as its schema says."""
    found = {}
    for path in folder.iterdir():
        found[path.stem] = json.loads(path.read_text())
        valid(found[path.stem], SCHEMA)
    return found


def said_of(answer: subprocess.CompletedProcess[str], number: int) -> dict[str, str]:
    """What stands in an answer's JSON about one node: check -> text; "" -> its status."""
    found, node = json.loads(answer.stdout), name_of(number)

    def has(nodes: Json) -> bool:
        return node in expand(nodes["set"])

    by_status = found["answer"]["by_status"].items()
    (status,) = (status for status, nodes in by_status if has(nodes))
    told = {"": status}
    for one in found["findings"]:  # what is wanting stands before what passes
        if has(one["nodes"]):
            told.setdefault(one["check"], one["text"])
    return told


def left_running(farm: Farm) -> list[str]:
    """Processes of ssh's that know of this farm, and whatever its logins started."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            of_login = f"TMPDIR={farm.folder}/".encode() in environment
            if (f"-F{farm.config}" in words and "fleet check" not in words) or (of_login and words):
                found.append(words)
    return found


def all_is_gone(farm: Farm) -> bool:
    """Whether nothing runs any more, and no folder is left, once what never ends is ended. What a
    node started lives on without its connection; a real one ends within its time."""
    for place in farm.folder.glob("pids-*"):
        for pid in place.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        place.unlink()
    wait_for("the nodes' processes to end", lambda: not left_running(farm))
    return not [*farm.folder.glob("temporary-*/*")]


def test_sixteen_nodes_of_which_five_are_broken(nodes: Farm, launch: Path, tmp_path: Path) -> None:
    """Every node has a report under its name, the broken ones a finding that says how."""
    wait = ("--connect-timeout", "8", "--timeout", "90", "--fanout", "16", "--json")
    answer = run(
        "--nodes", "gpu[001-016]", nodes.options, *wait, "--reports", f"{tmp_path}", str(launch)
    )
    reports = kept(tmp_path)
    judged = (*HEALTHY, CARRIED, NOISY, LOW_MEMLOCK, PORT_DOWN)
    assert sorted(reports) == [name_of(number) for number in judged], answer.stderr
    for number in judged:
        report = reports[name_of(number)]
        machine = report["answer"]["machine"]
        assert machine["name"] == name_of(number)
        assert report["launch"]["source"] == "launch.sh"
        assert machine["share"]["segment_bytes"] == 64 << 30
        assert machine["rails"][0]["addresses"] == [f"10.0.0.{number}/24"]
    for number in (*HEALTHY, CARRIED, NOISY):
        assert reports[name_of(number)]["status"] in ("pass", "warn")
    for number, check, words in (
        (LOW_MEMLOCK, "memlock.limit", "Failed to register memory"),
        (PORT_DOWN, "rdma.port-down", "port 1 is DOWN"),
        (CUT_OFF, "fleet.report", "in the middle of its report"),
        (HANGING, "fleet.ssh", "banner exchange"),
        (REFUSING, "fleet.ssh", "Connection refused"),
    ):
        assert words in said_of(answer, number)[check]
    assert said_of(answer, CUT_OFF)[""] == "unknown"
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "Traceback" not in answer.stderr
    assert all_is_gone(nodes)


def test_what_was_kept_is_merged_as_it_was_answered(
    nodes: Farm, launch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*numbers(1, 2, CARRIED), nodes.options, "--json", "--reports", f"{tmp_path}")
    answer = json.loads(run(*words, str(launch)).stdout)
    assert main(["fleet", "merge", "--json", str(tmp_path)]) == answer["exit_code"]
    again = json.loads(capsys.readouterr().out)
    for found in (answer, again):
        del found["command"]
    assert again == answer


@pytest.mark.parametrize(
    ("number", "words", "check", "said"),
    [
        (UNKNOWN_KEY, [], "fleet.ssh", "Host key verification failed"),
        (SILENT, [], "fleet.report", "ended with exit code 0"),
        (OLD, [], "fleet.python", "this is 3.6.8"),
        (OLD, ["--carry", "never"], "fleet.tool", "--remote-command"),
        (CARRIED, ["--carry", "always", "--remote-python", "python9"], "fleet.python", "python9"),
        (GARBAGE, [], "fleet.report", "truncated"),
        (ENDS, [], "fleet.report", "exit code 70 and no report: no such device"),
        (BUSY, ["--timeout", "6", "--connect-timeout", "5"], "fleet.timeout", "within 6 s"),
    ],
)
def test_a_node_without_a_report(
    nodes: Farm, number: int, words: Sequence[str], check: str, said: str
) -> None:
    """It is unknown, and its one finding says what stood in the way."""
    answer = run(*numbers(number), nodes.options, "--json", *words)
    found = said_of(answer, number)
    assert (found.pop(""), list(found)) == ("unknown", [check])
    assert said in found[check]
    assert answer.returncode == 3, answer.stderr
    assert all_is_gone(nodes)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_nothing_running_here(
    nodes: Farm, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """What one node had said by then is kept; the others are named."""
    places = [nodes.folder / f"pids-{busy}" for busy in (BUSY, BUSIER)]
    words = (*numbers(1, BUSY, BUSIER), nodes.options, "--json", "--reports", f"{tmp_path}")
    started = subprocess.Popen(
        command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    wait_for("the programs on the nodes", lambda: all(place.exists() for place in places))
    wait_for("the one that ends", (tmp_path / f"{name_of(1)}.json").exists)
    started.send_signal(number)
    printed, error = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == code, error
    answer = subprocess.CompletedProcess([], code, printed, error)
    assert said_of(answer, BUSY)["fleet.interrupted"] == "interrupted before it answered"
    assert said_of(answer, 1)[""] != "unknown"
    assert "interrupted: 2 of 3 nodes gave no report" in error
    assert "Traceback" not in error
    assert all_is_gone(nodes)


def site(folder: Path, gateway: int, *behind: int) -> dict[str, str]:
    """ClusterShell's own configuration: @rack1, and through whom nodes are reached."""
    folder.mkdir()
    (folder / "groups.conf").write_text(
        "[Main]\ndefault: racks\n[racks]\nmap: test $GROUP = rack1 && echo gpu[001-003]\n"
    )
    here, to = socket.gethostname().partition(".")[0], ",".join(map(name_of, behind))
    (folder / "topology.conf").write_text(
        f"[routes]\n{here}: {name_of(gateway)}\n{name_of(gateway)}: {to}\n"
    )
    return {
        "CLUSTERSHELL_CFGDIR": f"{folder}",
        "CLUSTERSHELL_GW_PYTHON_EXECUTABLE": sys.executable,
        "CLUSTERSHELL_GW_LOG_DIR": f"{folder}",
    }


def test_groups_and_a_tree_as_the_site_has_them(nodes: Farm, launch: Path, tmp_path: Path) -> None:
    """A group's nodes but one, through a gateway."""
    environment = site(tmp_path / "site", GATEWAY, 1, 3)
    words = ("--nodes", "@rack1", "--exclude", name_of(2), "--reports", f"{tmp_path / 'reports'}")
    answer = run(*words, nodes.options, str(launch), **environment)
    found = kept(tmp_path / "reports")
    assert sorted(found) == [name_of(1), name_of(3)], answer.stderr
    assert {report["status"] for report in found.values()} <= {"pass", "warn"}
    assert "ClusterShell.Gateway" in (nodes.folder / "gateway").read_text()
    assert all_is_gone(nodes)


def test_a_gateway_that_does_not_answer(nodes: Farm, tmp_path: Path) -> None:
    """The nodes behind it are asked directly, the others as ever."""
    environment = site(tmp_path / "site", REFUSING, 1, 3)
    words = (*numbers(1, 2, 3), "--reports", f"{tmp_path / 'reports'}")
    answer = run(*words, nodes.options, **environment)
    found = kept(tmp_path / "reports")
    assert sorted(found) == [name_of(1), name_of(2), name_of(3)], answer.stderr
    assert {report["status"] for report in found.values()} <= {"pass", "warn"}


def test_a_gateway_that_is_none(nodes: Farm, tmp_path: Path) -> None:
    """It can be reached and runs no ClusterShell: its nodes are unknown, and it is said why."""
    environment = site(tmp_path / "site", SILENT, 1)
    answer = run(*numbers(1), "--json", nodes.options, **environment)
    assert "gave up" in said_of(answer, 1)["fleet.ssh"]
    assert answer.returncode == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "gpu[001-002"], "'gpu[001-002' is not a set of nodes: missing bracket"),
        (["--nodes", "@nowhere"], "'@nowhere'"),
        (["--nodes", "@none:x"], "'@none:x': ClusterShell has no group source 'none' here"),
        (["--nodes", "a[1-3]", "--exclude", "a[1-3]"], "no node is left to ask"),
        (["--nodes-file", "/nowhere"], "--nodes-file /nowhere: No such file"),
        (["--nodes", "a", "--reports", "/proc/none"], "--reports /proc/none: "),
        (["--nodes", "a", "--ssh-options", "'"], "No closing quotation"),
        (["--nodes", "a", "--remote-command", "'"], "No closing quotation"),
        (["--nodes", "a", "--connect-timeout", "60"], "leaves nothing of --timeout 60"),
        (["--nodes", "a", "/nowhere.sh"], "does not exist"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    capsys: pytest.CaptureFixture[str], words: Sequence[str], said: str
) -> None:
    """With 64 and a sentence, before any node is asked; --json is an object here too."""
    assert main(["fleet", "check", "--json", *words]) == 64
    printed = capsys.readouterr()
    assert said in printed.err
    assert said in json.loads(printed.out)["reason"]


@pytest.mark.parametrize(
    ("given", "connect"),
    [
        ([], 10),
        (["--timeout", "5"], 2),
        (["--timeout", "2"], 1),
        (["--timeout", "30", "--connect-timeout", "20"], 20),
    ],
)
def test_ssh_connects_within_what_the_timeout_leaves(
    monkeypatch: pytest.MonkeyPatch, given: list[str], connect: int
) -> None:
    asked: list[SshNodes] = []

    def noted(_launch: object, where: SshNodes, *_: object) -> int:
        asked.append(where)
        return 0

    monkeypatch.setattr("preflight.fleet.over_ssh.run_fleet_check", noted)
    assert main(["fleet", "check", "--nodes", "a", *given]) == 0
    assert [where.connect_seconds for where in asked] == [connect]


def test_nodes_of_a_file(tmp_path: Path) -> None:
    """Sets, one a line, with notes; what is excluded is left out, and the order is by number."""
    from preflight.fleet.base.node_sets import named_nodes
    from preflight.fleet.over_ssh import read_node_sets

    (tmp_path / "nodes").write_text("# the new rack\ngpu[010-011]\n\ngpu[1-2]-ib # two\nb\n")
    sets = read_node_sets(str(tmp_path / "nodes"))
    assert sets == ["gpu[010-011]", "gpu[1-2]-ib", "b"]
    assert sorted(named_nodes(sets, ["gpu011"])) == ["b", "gpu010", "gpu1-ib", "gpu2-ib"]


def test_more_at_a_time_than_files_may_be_open() -> None:
    """The limit is named, and what would go."""
    words = command("--nodes", "a[1-64]", "--fanout", "64")
    told = subprocess.run(
        ["sh", "-c", f"ulimit -n 100; exec {shlex.join(words)}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert told.returncode == 64
    assert "this shell allows 100: give --fanout 15" in told.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_on_a_terminal(nodes: Farm, quiet: bool) -> None:
    """How many have answered, on standard error, and gone at the end; --quiet has none of it."""
    mine, theirs = pty.openpty()
    told = subprocess.run(
        command(*numbers(1, 2), nodes.options, *(["--quiet"] if quiet else [])),
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=ROOT,
        timeout=4 * PATIENCE_SECONDS,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(mine, 65536):
            shown += part
    os.close(mine)
    assert told.returncode in (0, 1)
    assert b"nodes answered" not in told.stdout
    if quiet:
        assert shown == b""
    else:
        assert b"of 2 nodes answered" in shown
        # Blanks over all of it, and back to the first column.
        *_, before, blank, end = shown.split(b"\r")
        assert (blank.strip(), end) == (b"", b"")
        assert len(blank) >= len(before)
