"""Every name that a release offers has a row that says what it touches, and is read accordingly."""

from __future__ import annotations

import importlib
import re
from collections import Counter

import pytest

from preflight.engines.programs.known_variables import known_variables
from preflight.engines.programs.mooncake_flags import flag_table
from preflight.engines.programs.sglang_argument_tables import argument_names
from preflight.processes.unread import name_rows, row_of, without_row
from tests.paths import ROOT

STATES = ("modelled", "named", "harmless")
OFFERED = {
    "argument": {*argument_names()},
    "flag": {name for flags in flag_table().programs.values() for name in flags},
    "variable": {*known_variables()},
}
# Rows of what the tables of known names do not have: of vLLM and LMCache.
VLLMS = ("offload_backend", "mm_processor_cache_gb", "MC_TE_", "VLLM_", "MOONCAKE_")


@pytest.mark.parametrize("kind", OFFERED)
def test_each_offered_name_has_a_row(kind: str) -> None:
    assert without_row(kind, OFFERED[kind]) == []
    assert without_row(kind, ("not_yet_released", *OFFERED[kind])) == ["not_yet_released"]


def test_each_row_is_of_a_name_once_and_says_where_it_was_read() -> None:
    rows = name_rows()
    assert [one for one, times in Counter(row[:2] for row in rows).items() if times > 1] == []
    assert {row.state for row in rows} == {*STATES}
    assert [row for row in rows if not row.what or not row.source] == []
    whole = {(row.kind, row.name) for row in rows if "*" not in row.name}
    offered = {(kind, name) for kind, names in OFFERED.items() for name in names}
    assert [name for _, name in whole - offered if not name.startswith(VLLMS)] == []
    used = {row_of(*one) for one in offered}
    assert [row.name for row in rows if "*" in row.name and row not in used] == []


def test_adding_a_release_lists_its_names_without_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    add_release = importlib.import_module("add_release")
    add_release.say_without_row({"flag": ["port", "new_pool"], "variable": ["MC_NEW_POOL"]})
    said = capsys.readouterr().out.split("\n")
    assert said[2:4] == ["  flag new_pool", "  variable MC_NEW_POOL"]


def test_what_is_said_to_be_read_stands_in_the_code() -> None:
    files = [*(ROOT / "preflight").rglob("*.py"), *(ROOT / "checks").rglob("*.py")]
    files.append(ROOT / "preflight" / "engines" / "tables" / "mooncake_variables.json")
    words = {w for file in files for w in re.findall(r"\w+", file.read_text().replace("-", "_"))}
    assert [r.name for r in name_rows() if r.state == "modelled" and r.name not in words] == []


def test_the_documented_counts() -> None:
    page = (ROOT / "docs" / "read.md").read_text()
    for kind, title in (
        ("argument", "arguments of SGLang"),
        ("flag", "flags of mooncake_master and mooncake_client"),
        ("variable", "variables"),
    ):
        rows = (row_of(kind, name) for name in OFFERED[kind])
        found = Counter(row.state for row in rows if row is not None)
        counts = " | ".join(str(found[state]) for state in STATES)
        assert f"| {title} | {len(OFFERED[kind])} | {counts} |" in page
