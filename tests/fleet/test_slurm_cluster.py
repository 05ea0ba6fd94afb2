"""The lines of docs/howto-slurm.md on a real Slurm, whose nodes differ; and its prolog.

Slurm is Debian's, on one machine: a controller, and a slurmd for each node, which goes by its own
name and port (``slurmd -N``), with its own munged beside it. What a node is, the program finds out
from ``SLURMD_NODENAME``: a synthetic machine of that name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.fleet.base.node_sets import expand
from tests.builders.synthetic import build_host
from tests.fleet.conftest import LAUNCH, node_host
from tests.fleet.sshd_farm import PATIENCE_SECONDS, wait_for
from tests.paths import ROOT

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "srun", "salloc", "sinfo", "scontrol")

CONFIG = """\
ClusterName=preflight
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
Prolog={folder}/prolog.sh
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
ReturnToService=2
MessageTimeout=5
KillWait=2
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# The program as a node has it. $PLACE holds, for each node, its machine, and what it does before.
TOOL = """\
#!/bin/sh
PLACE={folder}
test ! -r "$PLACE/before-$SLURMD_NODENAME" || . "$PLACE/before-$SLURMD_NODENAME"
export PYTHONPATH={root}
case $1 in
check) shift; set -- check --root "$PLACE/$SLURMD_NODENAME" "$@" ;;
esac
exec {python} -m preflight.cli.main "$@"
"""


def why_not() -> str | None:
    """Why no cluster can be run here, or None."""
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "runs daemons of Slurm: set MOONCAKE_PREFLIGHT_REAL=1 to allow it"
    if os.geteuid() != 0:
        return "needs root, for slurmd"
    # Debian has daemons where a user's own PATH may not look.
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install slurmctld slurmd slurm-client munge)"
    return None


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"


class Cluster:
    """Nodes by name. ``tool``: the program on its nodes."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder = folder
        self.nodes = tuple(nodes)
        self.tool = folder / "tool.sh"
        self.launch = folder / "prolog-launch.sh"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM")}
        config = {"SLURM_CONF": f"{self.folder}/slurm.conf", "TMPDIR": f"{self.folder}/temporary"}
        path = f"{self.folder}/bin:{_path()}"
        return {**kept, **config, "PATH": path, "PYTHONPATH": str(ROOT)}

    def start(self) -> None:
        (self.folder / "temporary").mkdir()
        (self.folder / "state").mkdir()
        ports = _free_ports(len(self.nodes) + 1)
        text = CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            ports=ports,
            nodes=f"{self.nodes[0][:-1]}[1-{len(self.nodes)}]",
            first=f"[{ports[1]}",
            last=f"{ports[-1]}]",
        )
        (self.folder / "slurm.conf").write_text(text)
        self.tool.write_text(TOOL.format(folder=self.folder, root=ROOT, python=sys.executable))
        example = (ROOT / "docs/examples/slurm-prolog.sh").read_text()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "mooncake-preflight").symlink_to(self.tool)
        example = _with(example, "PATH=", f"{programs}:/usr/bin:/bin")
        (self.folder / "prolog.sh").write_text(_with(example, "LAUNCH=", str(self.launch)))
        for script in (self.tool, self.folder / "prolog.sh"):
            script.chmod(0o755)
        key = self.folder / "munge.key"
        subprocess.run(["mungekey", "-c", "-k", str(key)], check=True, env=self.environment)
        socket_ = f"--socket={self.folder}/munge.socket"
        # --force: the folder's parents belong to whoever runs the tests.
        names = (
            f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")
        )
        self._start("munged", "--foreground", "--force", socket_, *names)
        wait_for("munged", lambda: (self.folder / "munge.socket").exists())
        self._start("slurmctld", "-D", "-f", f"{self.folder}/slurm.conf")
        for node in self.nodes:
            self.start_node(node)
        wait_for("the nodes", lambda: all(state == "idle" for state, _ in self.states().values()))

    def start_node(self, node: str) -> None:
        (self.folder / f"spool-{node}").mkdir(exist_ok=True)
        self._start("slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf", called=node)

    def kill_node(self, node: str) -> None:
        """As a machine that loses power: nobody is told."""
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def states(self) -> Mapping[str, tuple[str, str]]:
        """Node -> state, reason."""
        done = self.run("sinfo", "-N", "-h", "-o", "%N|%T|%E")
        rows = [line.split("|", 2) for line in done.stdout.splitlines()]
        return {node: (state, reason) for node, state, reason in rows} or {"": ("", "")}

    def settle(self) -> None:
        """Until no job is left, and every node that answers is free."""

        def settled() -> bool:
            busy = ("allocated", "completing", "mixed")
            return not any(state.rstrip("*") in busy for state, _ in self.states().values())

        wait_for("jobs to end", settled)

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            env={**self.environment, **more},
            cwd=self.folder,
            check=False,
        )

    def stop(self) -> None:
        """End the jobs, then the daemons, whatever of them was started."""
        running = list(self._processes.values())
        try:
            self.run("scancel", "--user=root")
            self.settle()
        finally:
            for process in reversed(running):
                process.terminate()
            try:
                wait_for("the daemons", lambda: all(p.poll() is not None for p in running))
            finally:
                for process in running:
                    process.kill()
                    process.wait()

    def _start(self, name: str, *words: str, called: str = "") -> None:
        with (self.folder / f"{called or name}.out").open("ab") as log:
            path = shutil.which(name, path=_path()) or name
            self._processes[called or name] = subprocess.Popen(
                [path, *words], stdout=log, stderr=log, env=self.environment
            )


@contextmanager
def cluster(folder: Path, count: int) -> Iterator[Cluster]:
    """``n1`` and on."""
    made = Cluster(folder, [f"n{number}" for number in range(1, count + 1)])
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _with(script: str, name: str, value: str) -> str:
    """A shell script with another value of a variable that it sets."""
    lines = [f"{name}{value}" if line.startswith(name) else line for line in script.splitlines()]
    assert f"{name}{value}" in lines
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    """That many in a row, below those that the kernel gives to anybody."""
    for first in range(20000, 32000, count):
        taken = []
        try:
            for port in range(first, first + count):
                taken.append(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        else:
            return list(range(first, first + count))
        finally:
            for one in taken:
                one.close()
    raise RuntimeError("no ports are free")


REASON = why_not()
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

LOW_MEMLOCK = "n3"
# As the page has them: each begins with srun, and ends in fleet merge.
LINES = re.findall(
    r"^srun .*(?:\\\n.*)*fleet merge.*$", (ROOT / "docs/howto-slurm.md").read_text(), re.MULTILINE
)
assert len(LINES) == 2, LINES


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """n1 to n4; n3 has a memlock limit that no launch can live with."""
    folder = tmp_path_factory.mktemp("slurm")
    for number in range(1, 5):
        host = node_host(number)
        if f"n{number}" == LOW_MEMLOCK:
            host = replace(host, uid=1000, capabilities=0, memlock=("8388608", "8388608"))
        build_host(folder / f"n{number}", host)
    with cluster(folder, 4) as made:
        (folder / "launch.sh").write_text(LAUNCH)
        (folder / "reports").mkdir()
        yield made


@pytest.fixture(autouse=True)
def _free(slurm: Cluster) -> None:
    slurm.settle()


def ask(slurm: Cluster, nodes: str, line: str) -> tuple[int, dict[str, Any]]:
    """Run a line of the page inside a job; its exit code, and the answer as JSON."""
    script = line.replace("fleet merge", "fleet merge --json")
    count = len(expand(nodes))
    job = ("salloc", "--quiet", f"--nodelist={nodes}", f"--nodes={count}", f"--ntasks={count}")
    done = slurm.run(*job, "bash", "-c", script)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("line", LINES)
def test_every_node_says_what_it_is(slurm: Cluster, line: str) -> None:
    """Whole, each under its node's name, and the one that is broken is named."""
    code, answer = ask(slurm, "n[1-4]", line)
    assert code == 2
    by_status = {key: one["set"] for key, one in answer["answer"]["by_status"].items()}
    assert (by_status["fail"], by_status["unknown"]) == (LOW_MEMLOCK, "")
    assert answer["answer"]["reports"]["read"] == 4
    failed = [one for one in answer["findings"] if one["status"] == "fail"]
    assert [(one["check"], one["nodes"]["set"]) for one in failed] == [
        ("memlock.limit", LOW_MEMLOCK)
    ]


def test_a_node_that_dies_is_named(slurm: Cluster) -> None:
    """Slurm ends the step of all where one node is gone: whoever gave no report is unknown."""
    slurm.kill_node("n4")
    try:
        code, answer = ask(slurm, "n[1-2,4]", LINES[0])
    finally:
        slurm.start_node("n4")
    missing = [one for one in answer["findings"] if one["check"] == "fleet.report"]
    assert "n4" in expand(missing[0]["nodes"]["set"])
    assert (code, answer["status"]) == (3, "unknown")
    wait_for("n4", lambda: slurm.states()["n4"][0] == "idle")


def test_the_prolog_of_the_examples_drains_with_the_finding(slurm: Cluster) -> None:
    slurm.launch.write_text(LAUNCH)
    try:
        job = slurm.run("srun", "--nodelist=n[1,3]", "--kill-on-bad-exit=0", "true")
        assert "prolog failed" in job.stderr
        wait_for("the node to be drained", lambda: slurm.states()["n3"][0] == "drained")
        reason = slurm.states()["n3"][1]
        assert reason.startswith("mooncake-preflight: fail: memlock.limit"), reason
        assert slurm.states()["n1"][0] in ("idle", "completing")
    finally:
        slurm.launch.unlink()
        slurm.run("scontrol", "update", "nodename=n3", "state=resume")
