"""All rules together: declared once, each with an example, and the words of its page hold."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.releases.sglang import sglang_release
from preflight.engines.sglang.model import well_known_model
from preflight.engines.sglang.model_geometry import ModelGeometry
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.launch_rules import RULE_SETS, RULES
from preflight.launch_problems.rules.rules import Rule, Severity, Versions, read_page
from preflight.launches.launch_files import read_source
from preflight.needs.launch_sizing import size_launch
from preflight.processes.processes import LaunchOptions
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.builders.launch_text import HICACHE, MASTER, SERVER, SERVICE, STORE, understood
from tests.builders.rule_examples import Example, prove
from tests.launch_problems.rules import (
    test_rules_consumers,
    test_rules_hicache,
    test_rules_memory,
    test_rules_programs,
    test_rules_store,
    test_rules_tier_use,
    test_rules_variables,
)
from tests.launch_problems.rules.test_rules_consumers import TRAPS
from tests.launch_problems.rules.test_rules_memory import UNEQUAL
from tests.paths import ROOT
from tests.tables import each_row

RULES_FOLDER = ROOT / "preflight/launch_problems/rules"
ITEMS = ["what follows", "what to do", "read or seen in"]
EXAMPLES: tuple[Example, ...] = (
    *(*test_rules_store.EXAMPLES, *test_rules_hicache.EXAMPLES),
    *(*test_rules_variables.EXAMPLES, *test_rules_programs.EXAMPLES),
    *(*test_rules_consumers.EXAMPLES, *test_rules_tier_use.EXAMPLES),
)


@each_row("example", EXAMPLES)
def test_a_rule_finds_what_it_declares(example: Example) -> None:
    """It speaks of the wrong launch, and is silent where the same launch is written right."""
    prove(example)


def test_every_rule_has_an_example() -> None:
    """No rule is declared whose finding was never seen."""
    shown = {example.id for example in EXAMPLES}
    shown |= {example.id for example in test_rules_memory.EXAMPLES}
    shown |= set().union(*test_rules_tier_use.SILENT.values()) | test_rules_tier_use.BY_RELEASE
    shown |= {trap.id for trap in TRAPS}
    # Its page has the words before and after: test_rule_pages.py.
    shown |= {rule.id for rule in RULES.values() if rule.before}
    # Found when the pools are computed: tests/engines/sglang/test_source_pools.py shows it. Of a
    # Compose file: tests/launch_problems/rules/test_rules_transfer.py.
    assert shown | {"host-pools-refused", "service-misdirected"} == set(RULES)


def test_each_section_has_its_function_and_stands_once() -> None:
    """A section that nothing checks would promise what is never found."""
    checked = [
        rule.id for rules in RULE_SETS for checks in rules.checks.values() for rule, _ in checks
    ]
    assert len(set(checked)) == len(checked)
    assert {*checked, "host-pools-refused"} == set(RULES)
    assert sum(len(rules.page) for rules in RULE_SETS) == len(RULES)
    for rule in RULES.values():
        assert not rule.finds.endswith(".")


SECTION = """# Topic

## a-rule

**warn**: a `--flag` that
nothing reads

- what follows: nothing
- what to do: drop
  it
- read or seen in: a.cpp
"""


def test_a_page_is_read_as_it_is_written() -> None:
    """Lines are joined, and backticks are for the reader of the page."""
    (rule,) = read_page(SECTION).values()
    assert rule.severity is Severity.WARN
    assert (rule.id, rule.finds) == ("a-rule", "a --flag that nothing reads")
    assert (rule.consequence, rule.remedy, rule.source) == ("nothing", "drop it", "a.cpp")
    assert (rule.before, rule.after) == ("", "")
    (shown,) = read_page(SECTION + "- before: `--flag`\n- after: leave it out\n").values()
    assert (shown.source, shown.before, shown.after) == ("a.cpp", "--flag", "leave it out")


@each_row("page", sorted(RULES_FOLDER.glob("*.md")))
def test_each_section_of_a_page_has_its_items(page: Path) -> None:
    """Each id once, what it finds, and three items, or five with the words before and after."""
    sections = page.read_text().split("\n## ")[1:]
    ids = [section.partition("\n")[0] for section in sections]
    assert len(ids) == len(set(ids))
    for section in sections:
        head, *items = section.split("\n- ")
        assert re.match(r".*\n\n?\*\*(fail|dies|corrupts|unused|warn|note)\*\*: \S", head), section
        names = [item.partition(": ")[0] for item in items]
        assert names in (ITEMS, [*ITEMS, "before", "after"]), section


SERVICE_NEEDS = {"MOONCAKE_LOCAL_HOSTNAME": "a", "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE"}
FOLDER = {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "/ssd"}
OFFLOADS = "mooncake_client --enable_offload=true"
PREFILL = f"{SERVER} --disaggregation-mode prefill"
ROUTER = "python3 -m sglang_router.launch_router --pd-disaggregation"
NAMED = "mooncake_client --host=10.0.0.2:12345"
LEAVE_OUT = "leave it out"
RELEASES = (("0.5.23", "0.3.14"), ("0.5.18", "0.3.11.post1"))
# Mended by another release or size, by nothing, or by what is no word of a launch; or of Compose.
WITHOUT = set(
    """
    consumer-misread consumer-release decode-host-pool decode-offload-hashes-differ
    decode-offload-unread draft-on-top eagle-l3-unread gate-blind-to-hugepages
    host-pools-refused indexer-on-top lookup-socket-shared mooncake-too-old
    offload-folder-shared pd-registration-silent pin-result-ignored prefetch-budget-small
    segment-times-dp service-misdirected store-file-read-differently write-back-stores-nothing
    """.split()
)


class Launch(NamedTuple):
    """What the words are written into: a command, its environment, and what runs beside it."""

    command: str
    environment: Mapping[str, str] = {}
    beside: tuple[str | tuple[str, Mapping[str, str]], ...] = ()


LAUNCHES = (
    Launch(STORE, MASTER),
    Launch(HICACHE),
    Launch(SERVER),
    Launch(STORE),
    Launch("mooncake_client"),
    Launch("mooncake_master"),
    Launch(SERVICE, {**MASTER, **SERVICE_NEEDS}),
    Launch(OFFLOADS, FOLDER),
    Launch("mooncake_client", {}, ("mooncake_master --memory_allocator=cachelib",)),
    Launch("", {}, (OFFLOADS,)),
    Launch("", {}, ("mooncake_master",)),
    Launch("", {}, (NAMED, f"{NAMED} --metadata_server=etcd://10.0.0.1:2379")),
    Launch("", {}, ("mooncake_client",)),
    Launch(STORE, MASTER, ("mooncake_client",)),
    Launch("", FOLDER, ((OFFLOADS, FOLDER),)),
    Launch("", {}, ((SERVICE, MASTER),)),
    Launch(f"{STORE} --model-path other", MASTER, ((f"{STORE} --served-model-name x", MASTER),)),
    Launch(f"{SERVER} --disaggregation-mode decode", {}, (PREFILL,)),
    Launch(ROUTER, {}, (PREFILL, f"{SERVER} --disaggregation-mode decode --port 30001")),
)


def geometry(server: SglangServer) -> ModelGeometry | Unknown:
    name = str(server.value("model_path"))
    if name == "unequal":
        return UNEQUAL
    known = well_known_model(name)
    return known if isinstance(known, Unknown) else known.geometry


def holds(rule: Rule, launch: Launch, text: str) -> bool:
    """Whether the rule finds something once ``text`` is written into the launch."""
    words, environment = shlex.split(text), dict(launch.environment)
    while words and (given := re.match(r"([A-Za-z_]\w*)=", words[0])):
        environment[given[1]] = words.pop(0)[given.end() :]
    # Words that begin with a program are a command of their own.
    own = bool(words) and not words[0].startswith(("-", "$"))
    line = shlex.join(words) if own else f"{launch.command} {shlex.join(words)}"
    processes = understood(*launch.beside, (line, environment))
    for rules in RULE_SETS:
        for one, check in rules.checks["launch"]:
            if one is rule:
                return any(True for _ in check(processes))
        for one, of_release in rules.checks["released"]:
            if one is rule:
                releases = [mooncake_release(version) for _, version in RELEASES]
                return any(True for release in releases for _ in of_release(processes, release))
        for one, of_server in rules.checks["memory"]:
            if one is rule:
                servers = [process.server for process in processes if process.server]
                return any(True for each in servers for run in runs(each) for _ in of_server(*run))
    return False


def runs(server: SglangServer) -> Iterator[tuple[SglangServer, Versions]]:
    """The server with its model, on the releases."""
    for sglang, mooncake in RELEASES:
        versions = Versions(geometry(server), sglang_release(sglang), mooncake_release(mooncake))
        yield server, versions


@each_row("rule", [one for one in RULES.values() if one.before])
def test_the_words_after_mend_what_the_words_before_do(rule: Rule) -> None:
    """In one of the ordinary launches at least."""
    after = "" if rule.after == LEAVE_OUT else rule.after
    assert any(
        holds(rule, launch, rule.before) and not holds(rule, launch, after) for launch in LAUNCHES
    )


def test_every_rule_that_words_can_mend_shows_them() -> None:
    """The others are named here, so that a new rule is not forgotten."""
    assert {rule.id for rule in RULES.values() if not rule.before} == WITHOUT


RIGHT = """\
export MOONCAKE_MASTER=10.0.0.1:50051 MOONCAKE_LOCAL_HOSTNAME=10.0.0.2
export MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb MOONCAKE_DEVICE=mlx5_0
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --page-size 64 \\
    --enable-hierarchical-cache --hicache-ratio 2 --hicache-mem-layout page_first \\
    --hicache-io-backend kernel --hicache-storage-backend mooncake \\
    --hicache-storage-prefetch-policy timeout --mooncake-ib-device mlx5_0
"""


def test_a_correct_launch_says_nothing(tmp_path: Path) -> None:
    """So that no rule is one that always speaks."""
    nics, gpus = {"mlx5_0": 0, "mlx5_1": 0}, (0, 0)
    host = Host({2 * MIB: HostPool(200000)}, memory_bytes=1024 * GIB, nics=nics, gpus=gpus)
    root = Root(str(host.write(tmp_path / "host")))
    script = tmp_path / "launch.sh"
    script.write_text(RIGHT)
    options = LaunchOptions(mooncake_version="0.3.14", sglang_version="0.5.23", gpu_bytes=80 * GIB)
    sizing = size_launch(read_source(str(script), {}), "launch.sh", options, root, root.text)
    assert sizing.shown is not None
    assert (sizing.inputs.findings, sizing.shown.inputs.notes) == ((), ())
