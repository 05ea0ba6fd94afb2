"""Every check is declared as its page, ``list`` and the runner need it, and every module is run."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from checks.framework.finding import Status
from checks.framework.needs import LaunchNeeds
from checks.run_checks.facts import READERS, Facts, read_facts
from checks.run_checks.runner import every_check, judge
from preflight.command_inputs.host_source import open_host, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.launch_problems.rules.launch_rules import RULES
from preflight.verdict.catalogue import FLEET_CHECKS
from preflight.verdict.pages import LAUNCH_CHECKS
from tests.builders.synthetic import build_host, erdma_host, gpu_host, limited_container, plain_host
from tests.paths import ROOT

CHECKS = list(every_check())
HOSTS = {"gpu": gpu_host, "erdma": erdma_host, "container": limited_container, "plain": plain_host}
WORDS = LaunchWords(
    tuple(
        "MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=127.0.0.1:1 MOONCAKE_PROTOCOL=rdma python3 -m "
        "sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --enable-hierarchical-cache "
        "--hicache-size 4 --hicache-storage-backend mooncake".split()
    )
)


def test_every_module_of_checks_is_run() -> None:
    """A file that nobody lists would be a check that never fails."""
    run = {check.id for check, _ in CHECKS}
    files = sorted((ROOT / "checks").glob("**/*_checks.py"))
    assert len(files) > 7
    for file in files:
        for check, _ in import_module(f"checks.{file.parent.name}.{file.stem}").CHECKS.checks:
            assert check.id in run


def test_ids_are_unique_over_checks_and_rules() -> None:
    declared = [*(check for check, _ in CHECKS), *LAUNCH_CHECKS, *FLEET_CHECKS]
    ids = [*(check.id for check in declared), *RULES]
    assert len(ids) == len(set(ids))


def test_a_declaration_is_whole() -> None:
    for check in [*(check for check, _ in CHECKS), *LAUNCH_CHECKS, *FLEET_CHECKS]:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*", check.id)
        assert check.page.asks.endswith("?"), check.id
        shortest = min(len(check.page.why), len(check.page.remedy), len(check.page.source))
        assert shortest > 3, check.id
        assert set(check.topics) <= set(READERS), check.id
        statuses = [status for status, _ in check.page.outcomes]
        assert len(statuses) == len(set(statuses)) > 0, check.id


@pytest.fixture(scope="module", params=["this machine", *HOSTS])
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Facts, LaunchNeeds]:
    """All facts of a host, and what a launch needs of it."""
    root = "/"
    if request.param != "this machine":
        root = str(build_host(tmp_path_factory.mktemp("host") / "root", HOSTS[request.param]()))
    opened = open_host(root)
    sized = size_and_needs(WORDS, opened)
    assert sized is not None
    return read_facts(opened.root, sized.needs), sized.needs


@pytest.mark.slow
@pytest.mark.parametrize("launch", [True, False])
def test_a_check_finds_what_it_declares(launch: bool, host: tuple[Facts, LaunchNeeds]) -> None:
    """Its id, a status that its page explains, a reason where one is due, from its own topics."""
    facts, needs = host
    given = needs if launch else None
    for check, judge_one in CHECKS:
        found = judge(facts, given, [(check, judge_one)])
        own = Facts({topic: facts.topic(topic) for topic in check.topics})
        assert judge(own, given, [(check, judge_one)]) == found
        for finding in found:
            assert finding.check == check.id
            assert finding.subject, finding
            assert finding.status in {status for status, _ in check.page.outcomes}, finding
            assert "defect of this check" not in finding.text
            if finding.status in (Status.SKIP, Status.UNKNOWN):
                assert finding.text, finding
            if finding.status in (Status.FAIL, Status.WARN):
                assert finding.text or finding.advice, finding
