"""The lines of docs/howto-slurm.md on a real Slurm, whose nodes differ; and its prolog."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from preflight.fleet.base.node_sets import expand
from tests.builders.synthetic import build_host
from tests.fleet.conftest import LAUNCH, node_host
from tests.fleet.slurm_cluster import Cluster, cluster, why_not
from tests.fleet.sshd_farm import wait_for
from tests.paths import ROOT

REASON = why_not()
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

LOW_MEMLOCK = "n3"
# As the page has them: each begins with srun, and ends in fleet merge.
LINES = re.findall(
    r"^srun .*(?:\\\n.*)*fleet merge.*$", (ROOT / "docs/howto-slurm.md").read_text(), re.MULTILINE
)


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


def test_the_page_has_two_lines() -> None:
    assert len(LINES) == 2, LINES


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
