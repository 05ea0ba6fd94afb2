"""What ``check --only`` leaves out is not even loaded, and what it keeps says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from checks.host_snapshot.described import Description
from checks.run_checks.runner import CHECK_MODULES, every_check, page_ids
from preflight.command_inputs.launch_words import Chosen, LaunchWords
from preflight.launch_problems.advisories.records import advisories, record_ids
from preflight.launch_problems.rules.launch_rules import RULES
from preflight.verdict.answer import check_launch
from preflight.verdict.catalogue import catalogue, judged_ids, launch_ids, launch_problems
from tests.builders.examples import some
from tests.builders.synthetic import PATIENCE_SECONDS

EXAMPLE = "docs/examples/launch.sh"
# Huge pages that the host lacks: settings, which the refused memory layout of the second refuses.
HUGE = "export MC_STORE_USE_HUGEPAGE=1\n"
ON_PAGES = HUGE + Path(EXAMPLE).read_text()
REFUSED = ON_PAGES.replace("--hicache-mem-layout page_first", "--hicache-mem-layout none_such")
# Host checks whose answers refuse settings of other checks.
DECISIVE = ("hugetlb.reservation", "hugetlb.cgroup-limit", "memory.host", "gpu.count")


def test_pages_tell_all_ids_before_anything_is_loaded() -> None:
    for module in CHECK_MODULES:
        declared = {problem.id for problem in import_module(module).CHECKS.problems}
        assert declared
        assert declared <= {*page_ids((module,))}, module
    assert sorted(page_ids()) == sorted(problem.id for problem in every_check())
    assert {*launch_ids()} == {*RULES, *(problem.id for problem in launch_problems())}
    assert {*record_ids()} == {"launch.advisories", *(each.check for each in advisories())}
    elsewhere = {each.id for each in catalogue().fleet if not each.id.startswith("measure.")}
    assert {*judged_ids()} == {*catalogue().ids} - elsewhere


@pytest.mark.parametrize("text", [ON_PAGES, REFUSED], ids=["settings", "settings-refused"])
def test_one_check_finds_what_it_finds_among_all(text: str, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(text)
    root = Description("2tb", "8xH800", "8xmlx5", "2").root
    words = LaunchWords((str(script),))
    every = check_launch(words, root, PATIENCE_SECONDS).report.rows
    refused = {row.finding.check for row in every if "correct the launch" in row.finding.advice}
    mended = {row.finding.check for row in every if row.finding.settings}
    assert "hugetlb.shortage" in (refused if text == REFUSED else mended)
    for id_ in {*refused, *mended, *some((row.finding.check for row in every), 12)}:
        chosen = Chosen(only=(id_, *DECISIVE))
        rows = check_launch(words, root, PATIENCE_SECONDS, chosen=chosen).report.rows
        assert [row for row in rows if row.finding.check == id_] == [
            row for row in every if row.finding.check == id_
        ]


@pytest.mark.slow
def test_one_check_of_pools_loads_no_other_topic_s_checks_and_no_rule() -> None:
    program = (
        "import sys, json\nfrom preflight.cli.main import run\n"
        f"run(['check', '--root', 'demo:h800', '--only', 'hugetlb.shortage', '{EXAMPLE}'])\n"
        "print(json.dumps([*sys.modules]))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(shown.stdout.splitlines()[-1]))
    # Adding up what a launch takes is in the module of the checks of memory.
    asked = {"checks.hugetlb.pool_checks", "checks.memory.judge"}
    assert loaded & {*CHECK_MODULES} == asked
    assert not [name for name in loaded if ".launch_problems.rules" in name]
    assert not loaded & {"preflight.verdict.launch_checks", "preflight.verdict.store_keys"}
