"""Apply on this machine: real huge pages, and the checks' own verdict before and after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.framework.finding import Status
from checks.framework.needs import LaunchNeeds
from checks.framework.root import Root
from checks.hugetlb.pool_checks import CHECKS
from checks.run_checks.facts import read_facts
from checks.run_checks.runner import judge
from preflight.host_tuning.apply import Consent, Machine, apply_plan, undo_changes
from preflight.host_tuning.plan import plan
from preflight.host_tuning.records import Plan
from preflight.host_tuning.undo import Writer
from tests.builders.plans import anywhere, launch, on_nodes, rank

POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
KEPT = (POOL, Path("/proc/sys/vm/max_map_count"))
YES = Consent(yes=True)
SHORTAGES = ("hugetlb.shortage", "hugetlb.node-shortage")


def why_not() -> str:
    if not (os.environ.get("CI") or os.environ.get("MOONCAKE_PREFLIGHT_REAL")):
        return "sets vm.nr_hugepages: set MOONCAKE_PREFLIGHT_REAL=1 to allow it"
    if os.geteuid() != 0 or not os.access(POOL, os.W_OK):
        return "needs root and a pool of 2 MiB pages that can be set"
    return ""


pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Machine]:
    """This machine, as it was when the test is over."""
    before = [path.read_text() for path in KEPT]
    try:
        yield Machine(Root(), Writer(), str(tmp_path / "state"))
    finally:
        for path, value in zip(KEPT, before, strict=True):
            path.write_text(value)
        assert [path.read_text() for path in KEPT] == before


def needs_of(pages: int, node: int | None) -> LaunchNeeds:
    spots = anywhere(pages) if node is None else on_nodes(pages)
    return launch(spots, rank(0, rdma=None, node=node))


def plan_here(needs: LaunchNeeds) -> Plan:
    return plan(needs, read_facts(Root(), needs), [])


def verdicts(needs: LaunchNeeds) -> set[Status]:
    facts = read_facts(Root(), needs, topics=("hugetlb",))
    checks = [check for check in CHECKS.problems if check.id in SHORTAGES]
    return {finding.status for finding in judge(facts, needs, checks)} - {Status.SKIP}


@pytest.mark.parametrize("node", [None, 0])
def test_after_apply_the_check_passes_and_a_second_one_changes_nothing(
    node: int | None, here: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = int(POOL.read_text())
    needs = needs_of(before + 5, node)
    if node is not None and not Path("/sys/devices/system/node/node0/hugepages").exists():
        pytest.skip("this kernel shows no pools of nodes")
    assert verdicts(needs) == {Status.FAIL}
    assert apply_plan(plan_here(needs), (), here, YES) == 0
    assert verdicts(needs) == {Status.PASS}
    capsys.readouterr()
    assert apply_plan(plan_here(needs), (), here, YES) == 0
    assert "nothing to change" in capsys.readouterr().out
    assert undo_changes(here, YES) == 0
    assert int(POOL.read_text()) == before


def test_pages_that_a_process_has_mapped_stay_with_it_when_it_is_undone(here: Machine) -> None:
    import mmap

    before = int(POOL.read_text())
    assert apply_plan(plan_here(needs_of(before + 4, None)), (), here, YES) == 0
    huge = getattr(mmap, "MAP_HUGETLB", 0x40000)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | huge
    # Two more pages than were there, whatever other tests have in the pool.
    last = (before + 1) << 21
    with mmap.mmap(-1, (before + 2) << 21, flags=flags) as mapped:
        mapped[0] = mapped[last] = 1
        assert undo_changes(here, YES) == 1
        assert int(POOL.read_text()) == before + 2
        assert mapped[0] == mapped[last] == 1
    assert undo_changes(here, YES) == 0
    assert int(POOL.read_text()) == before
