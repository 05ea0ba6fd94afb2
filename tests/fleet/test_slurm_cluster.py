"""``fleet run`` on a real Slurm: nodes that differ, die, hang and are drained by the prolog."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders.synthetic import build_host
from tests.fleet.conftest import LAUNCH, node_host
from tests.fleet.slurm_cluster import Cluster, cluster, wait_for, why_not
from tests.paths import ROOT
from tests.valid import valid

REASON = why_not()
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

SCHEMA = json.loads((ROOT / "preflight/schemas/node-v1.schema.json").read_text())
LOW_MEMLOCK = "n3"

Json = dict[str, Any]


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
        yield made


@pytest.fixture(autouse=True)
def _free(slurm: Cluster) -> Iterator[None]:
    """Each test finds free nodes, and leaves nothing in their temporary folder."""
    slurm.settle()
    yield
    for place in slurm.folder.glob("before-*"):
        place.unlink()
    wait_for("folders to go", lambda: not list((slurm.folder / "temporary").iterdir()))


def words(slurm: Cluster, *more: str) -> list[str]:
    launch = slurm.folder / "launch.sh"
    launch.write_text(LAUNCH)
    command = [sys.executable, "-m", "preflight.cli.main", "fleet", "run"]
    return [*command, f"--remote-command={slurm.tool}", *more, str(launch)]


def run(slurm: Cluster, *more: str) -> tuple[int, dict[str, Json], str]:
    """Exit code, reports by node, and what was printed."""
    kept = slurm.folder / f"reports-{time.monotonic_ns()}"
    done = slurm.run(*words(slurm, f"--reports={kept}", *more))
    assert "Traceback" not in done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in kept.iterdir()}
    for report in found.values():
        valid(report, SCHEMA)
    return done.returncode, found, done.stdout + done.stderr


def found_in(report: Json) -> dict[str, str]:
    return {finding["check"]: finding["text"] for finding in report["findings"]}


def before(slurm: Cluster, node: str, script: str) -> None:
    """What the program does first on a node."""
    (slurm.folder / f"before-{node}").write_text(script)


def test_every_node_says_what_it_is(slurm: Cluster) -> None:
    """Reports longer than what srun puts on a line come whole, each under its node's name."""
    code, reports, said = run(slurm, "--nodes", "n[1-4]")
    assert sorted(reports) == ["n1", "n2", "n3", "n4"], said
    for node, report in reports.items():
        assert len(json.dumps(report)) > 4096
        address = f"10.0.0.{node[1:]}/24"
        assert report["rails"][0]["addresses"] == [address]
        failed = "memlock.limit" in found_in(report)
        assert failed is (node == LOW_MEMLOCK), found_in(report)
    assert code == 2
    assert "memlock.limit on n3" in said


def test_inside_of_a_job_its_nodes_are_asked(slurm: Cluster) -> None:
    """Beside a step that holds all of them."""
    kept = slurm.folder / "reports-allocation"
    inner = words(slurm, f"--reports={kept}")
    busy = ["sh", "-c", 'srun sleep 1000 & "$@"; code=$?; kill $!; exit $code', "sh"]
    done = slurm.run("salloc", "--quiet", "--nodelist=n[1-2]", *busy, *inner)
    assert sorted(path.stem for path in kept.iterdir()) == ["n1", "n2"], done.stderr
    assert done.returncode in (0, 1), done.stdout + done.stderr


def test_a_task_of_a_step_does_not_start_steps(slurm: Cluster) -> None:
    done = slurm.run("srun", "--nodelist=n1", *words(slurm))
    assert "is a task of step" in done.stderr
    assert "Exited with exit code 64" in done.stderr


def test_a_node_that_dies_does_not_take_the_others_along(slurm: Cluster) -> None:
    """srun ends all tasks when one slurmd does not answer: those it ended are asked again."""
    slurm.kill_node("n4")
    try:
        code, reports, said = run(slurm, "--nodes", "n[1-4]")
    finally:
        slurm.start_node("n4")
    assert "Slurm starts nothing there" in found_in(reports["n4"])["fleet.slurm"]
    for node in ("n1", "n2"):
        assert reports[node]["status"] in ("pass", "warn"), found_in(reports[node])
    assert "memlock.limit" in found_in(reports["n3"])
    assert code == 2, said
    wait_for("n4", lambda: slurm.states()["n4"][0] == "idle")


def test_a_node_that_hangs_is_given_up(slurm: Cluster) -> None:
    """Its program is ended there, and what it made is gone."""
    mark = slurm.folder / "hanging"
    before(slurm, "n2", f"echo $$ > {mark}; sleep 1000\n")
    code, reports, said = run(slurm, "--nodes", "n[1-2]", "--timeout", "6")
    assert found_in(reports["n2"]) == {
        "fleet.timeout": "its task ran, and no report came within 6 s"
    }
    assert reports["n1"]["status"] in ("pass", "warn"), found_in(reports["n1"])
    assert code == 3, said
    assert not Path(f"/proc/{mark.read_text().strip()}").exists()


def test_a_signal_ends_the_step(slurm: Cluster) -> None:
    """Nothing is left running, and those that had answered are told of."""
    mark = slurm.folder / "waiting"
    before(slurm, "n2", f"echo $$ > {mark}; sleep 1000\n")
    process = subprocess.Popen(
        words(slurm, "--nodes", "n[1-2]"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=slurm.environment,
    )
    wait_for("the task", lambda: mark.exists() and mark.read_text().strip() != "")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "fleet.interrupted on n" in output
    assert not Path(f"/proc/{mark.read_text().strip()}").exists()
    slurm.settle()


def test_the_prolog_of_the_examples_drains_with_the_finding(slurm: Cluster) -> None:
    """And fleet run then says so of the node, and asks the others."""
    slurm.launch.write_text(LAUNCH)
    try:
        job = slurm.run("srun", "--nodelist=n[1,3]", "--kill-on-bad-exit=0", "true")
        assert "prolog failed" in job.stderr
        wait_for("the node to be drained", lambda: slurm.states()["n3"][0] == "drained")
        reason = slurm.states()["n3"][1]
        assert reason.startswith("mooncake-preflight: fail: memlock.limit"), reason
        assert slurm.states()["n1"][0] in ("idle", "completing")
        code, reports, _ = run(slurm, "--nodes", "n[1-3]")
    finally:
        slurm.launch.unlink()
        slurm.run("scontrol", "update", "nodename=n3", "state=resume")
    text = found_in(reports["n3"])["fleet.slurm"]
    assert text == f"Slurm gives it no job: drained: {reason}"
    assert reports["n1"]["status"] in ("pass", "warn")
    assert code == 3


def test_a_busy_node_keeps_nobody_else_waiting(slurm: Cluster) -> None:
    other = subprocess.Popen(
        ["srun", "--nodelist=n2", "sleep", "1000"], env=slurm.environment, stderr=subprocess.DEVNULL
    )
    try:
        wait_for("the job", lambda: slurm.states()["n2"][0] == "allocated")
        _, reports, said = run(slurm, "--nodes", "n[1-2]", "--queue-timeout", "2")
    finally:
        other.terminate()
        other.wait()
    assert "no job there within 2 s" in found_in(reports["n2"])["fleet.slurm"], said
    assert reports["n1"]["status"] in ("pass", "warn")


def test_the_program_is_carried_to_nodes_that_have_none(slurm: Cluster) -> None:
    """The machine is this one then: only that a verdict comes is told."""
    options = ["--remote-command=no-such-program", f"--remote-python={sys.executable}"]
    _, reports, said = run(slurm, "--nodes", "n[1-2]", *options)
    assert {report["launch"]["source"] for report in reports.values()} == {"launch.sh"}, said
    _, reports, _ = run(slurm, "--nodes", "n1", "--carry=never", *options)
    assert "the program is not on the node" in found_in(reports["n1"])["fleet.tool"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--nodes", "n[1-9]"], "no node of Slurm is called n[5-9]"),
        ([], "give --nodes 'gpu[001-064]'"),
        (["--nodes", "n1", "--srun-options=--no-such"], "unrecognized option '--no-such'"),
        (["--nodes", "n1", "--srun-options=--partition=none"], "Invalid partition name"),
    ],
)
def test_what_slurm_refuses_is_a_usage_error(slurm: Cluster, more: list[str], said: str) -> None:
    done = slurm.run(*words(slurm, *more))
    assert done.returncode == 64
    assert said in done.stderr
