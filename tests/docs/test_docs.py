"""Every id that a user can meet has its page or line, and the pages are what the rules declare."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.framework.finding import Consequence, Status
from preflight.cli.main import run
from preflight.launches.source import notices
from preflight.server_logs.patterns import read_patterns
from preflight.verdict.catalogue import as_text, catalogue, problem_page
from tests.paths import ROOT

CALL = re.compile(r"\b(SourceNote|Note|Recommendation|note|only_note|only)\(")
ID = re.compile(r"-?[a-z]+\d?(?:-[a-z]+)*")


def test_the_index_of_the_rules_names_each_page() -> None:
    """A page that it leaves out is not found on a forge."""
    folder = ROOT / "preflight" / "launch_problems" / "rules"
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    sources = "".join(path.read_text() for path in folder.glob("*.py"))
    assert {f"{topic}.md" for topic in re.findall(r'Problems\("(\w+)\.md"\)', sources)} == pages
    linked = re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text())
    assert sorted(linked) == sorted(pages)


def said_in(module: Path) -> Iterator[str]:
    """Each id that a module gives a notice; one that has a product in front begins with a dash."""
    text = module.read_text()
    if not CALL.search(text):
        return
    tree = ast.parse(text)
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else []
            for name, value in zip(node.targets[0].elts, values, strict=False):
                given.setdefault(ast.unparse(name), []).append(value)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            given.setdefault(ast.unparse(node.target.elts[0]), []).append(node.iter)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and CALL.search(f"{ast.unparse(node.func)}("):
            first = node.args[0]
            named = given.get(first.id, []) if isinstance(first, ast.Name) else [first]
            for part in (one for each in named for one in ast.walk(each)):
                if isinstance(part, ast.Constant) and ID.fullmatch(str(part.value)):
                    yield str(part.value)


@pytest.mark.slow
def test_every_id_that_an_output_prints_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """By the command: checks, rules, records, lines of logs, and the notices of the code itself."""
    every = catalogue()
    records = [one.id for one in every.advisories]
    lines = [one.id for one in read_patterns() if one.cause]
    assert min(map(len, (every.ids, records, lines, notices()))) > 20
    for id_ in {*every.ids, *records, *lines, *notices()}:
        assert run(["explain", id_]) == 0, id_
        out = capsys.readouterr().out
        # The page of an id, or the one known line that has it.
        page = f"{id_.removeprefix('advisory.')}\n\n"
        assert out.lower().startswith(page.lower()) or f": {id_} (" in out.split("\n")[2], out


@pytest.mark.slow
def test_the_notices_that_are_explained_are_those_of_the_code() -> None:
    said = {id_ for module in sorted((ROOT / "preflight").rglob("*.py")) for id_ in said_in(module)}
    ends = tuple(id_ for id_ in said if id_[0] == "-")
    assert len(ends) == 2
    assert {id_ for id_ in said if id_ not in ends} == {
        id_ for id_ in notices() if not id_.endswith(ends)
    }


def test_a_page_says_what_comes_of_a_status_that_its_check_gives() -> None:
    """No fail is told of where none is ever found, and no consequence of what only is unknown."""
    headings = {
        Status.FAIL: "when it fails",
        Status.WARN: "what it warns of",
        Status.UNKNOWN: "when it is unknown",
    }
    seen = set()
    every = catalogue()
    for check in (*every.host, *every.launch, *every.fleet):
        given = {status for status, _ in check.page.outcomes}
        worst = next(status for status in headings if status in given)
        seen.add(worst)
        page = as_text(problem_page(check), 10_000)
        assert [heading for heading in headings.values() if f"\n{heading}: " in page] == [
            headings[worst]
        ]
        told = [one for one in Consequence if re.search(rf"(: |, or ){one.value}(\n|, or )", page)]
        assert set(told) == (set() if worst is Status.UNKNOWN else {*check.page.consequences})
    assert seen == set(headings)


NEEDS_ROOT = re.compile(
    r"(?<!sudo )\b(?:sysctl -[wp] |modprobe [a-z]|ip link set|mount -o|systemctl restart)[^`]"
)
# What says that a command is not to be typed here, or what it is about.
NOT_TO_TYPE = re.compile(
    r"sysctl -w and a write below /sys last until|^(?:find|regex|example|\s*#).*$", re.MULTILINE
)


def test_a_command_that_needs_root_begins_with_sudo_in_every_text() -> None:
    """As in To do of check; docs/check.md has the rule. ``plan`` and ``apply`` are run as root."""
    texts = [*(ROOT / "checks").rglob("*.md"), *(ROOT / "preflight").rglob("*.md")]
    texts += [*(ROOT / "preflight" / "server_logs").glob("*.toml"), *(ROOT / "docs").glob("*.md")]
    assert len(texts) > 100
    found = {}
    for path in texts:
        text = NOT_TO_TYPE.sub(
            "", re.sub(r"(?m)^(?:find|regex|example|\s*#).*$", "", path.read_text())
        )
        bare = NEEDS_ROOT.findall(text)
        if bare:
            found[path.name] = bare
    assert found == {}
