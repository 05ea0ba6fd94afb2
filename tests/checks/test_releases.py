"""The tables of releases: rows of a version, who shares a master, what upstream has open."""

from __future__ import annotations

import importlib
import sys
from itertools import combinations, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from checks.releases import mooncake
from checks.releases.mooncake import work_together
from checks.releases.open_changes import OPEN_CHANGES, OpenChange, open_changes
from checks.releases.sglang import (
    NEWEST_KNOWN,
    RELEASES,
    DraftPool,
    HybridSize,
    Indexer,
    SegmentDivisor,
    newer_than_known,
    parse_version,
    sglang_release,
)
from preflight.needs.chosen_releases import choose_mooncake, choose_sglang
from tests.paths import ROOT
from tests.tables import each_row


@each_row(
    ("text", "parsed"),
    [
        ("0.5.23", (0, 5, 23, 0)),
        (" v0.5.5.post3 ", (0, 5, 5, 3)),
        ("0.5.6post2", (0, 5, 6, 2)),
        ("0.5.10rc0", (0, 5, 10, 0)),
        ("0.5.23+cu130", (0, 5, 23, 0)),
    ],
)
def test_versions(text: str, parsed: tuple[int, int, int, int]) -> None:
    assert parse_version(text) == parsed


@each_row("text", ["", "latest", "0.5", "0.5.x", "0.5.2.3", "٠.٥.٢"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not an SGLang version: write"):
        parse_version(text)


@each_row("text", ["0.4.10", "0.5.1.post3"])
def test_older_than_the_table(text: str) -> None:
    with pytest.raises(ValueError, match=r"older than 0\.5\.2"):
        sglang_release(text)


def test_newer_than_the_table() -> None:
    assert sglang_release("0.6.0") is RELEASES[-1]
    assert newer_than_known("0.6.0")
    assert not newer_than_known(NEWEST_KNOWN)


def test_rows_are_in_order() -> None:
    firsts = [row.first for row in RELEASES]
    assert firsts == sorted(set(firsts))
    # A row that changes nothing says nothing, but for the newest: that release was compared.
    assert all(one[1:] != other[1:] for one, other in pairwise(RELEASES[:-1]))


# Each line: the last version with the old behaviour, the first with the new one.
CHANGES = [
    ("0.5.2", "0.5.3", "segment_divisor", SegmentDivisor.ONE, SegmentDivisor.TP),
    ("0.5.18", "0.5.19", "segment_divisor", SegmentDivisor.TP, SegmentDivisor.TP_PP),
    ("0.5.4.post1", "0.5.4.post2", "pinned_power_of_two", True, False),
    ("0.5.5.post2", "0.5.5.post3", "extra_page", False, True),
    ("0.5.5.post3", "0.5.6", "spread_layers", False, True),
    ("0.5.8", "0.5.9", "indexer", Indexer.NONE, Indexer.INSIDE_PER_LAYER),
    ("0.5.9", "0.5.10", "indexer", Indexer.INSIDE_PER_LAYER, Indexer.INSIDE),
    ("0.5.10.post1", "0.5.11", "indexer", Indexer.INSIDE, Indexer.ON_TOP),
    ("0.5.12", "0.5.13", "indexer_name", "NSA", "DSA"),
    ("0.5.21", "0.5.22", "compact_index", False, True),
    ("0.5.9", "0.5.10", "binds_numa", False, True),
    ("0.5.11", "0.5.12", "sliding_pools", False, True),
    ("0.5.16", "0.5.17", "hybrid_size", HybridSize.EACH, HybridSize.SHARED),
    ("0.5.12", "0.5.13", "hugepage_environment", False, True),
    ("0.5.12", "0.5.13", "store.protocol", "tcp", "rdma"),
    ("0.5.13", "0.5.14", "default_layout", "layer_first", "page_first"),
    ("0.5.13", "0.5.14", "asymmetric_heads", False, True),
    ("0.5.13", "0.5.14", "binds_within_cpus", False, True),
    ("0.5.14", "0.5.15", "must_exceed_device", True, False),
    ("0.5.14", "0.5.15", "stages_share_tokens", False, True),
    ("0.5.10", "0.5.11", "draft", DraftPool.NONE, DraftPool.OWN_PAGE),
    ("0.5.22", "0.5.23", "draft", DraftPool.OWN_PAGE, DraftPool.EXACT),
    ("0.5.17", "0.5.18", "packed_drafts", False, True),
    ("0.5.17", "0.5.18", "decode_ratio", None, 1.0),
    ("0.5.18", "0.5.19", "decode_ratio", 1.0, 0.2),
    ("0.5.18", "0.5.19", "ranks_share_memory", False, True),
    ("0.5.20", "0.5.21", "cgroup_headroom", False, True),
    ("0.5.20", "0.5.21", "auto_size", False, True),
]


@each_row(("last", "first", "field", "old", "new"), CHANGES)
def test_changes(last: str, first: str, field: str, old: object, new: object) -> None:
    assert attrgetter(field)(sglang_release(last)) == old
    assert attrgetter(field)(sglang_release(first)) == new


@each_row(
    ("client", "master", "known"),
    [
        ("0.3.13.post1", "0.3.14", True),
        ("0.3.9", "0.3.10", True),
        ("0.3.10", "0.3.10.post2", False),
        ("0.3.8", "0.3.14", False),
        ("0.3.14", "0.3.14", True),
        ("0.3.99", "0.3.99", True),
        ("0.3.99", "0.3.14", None),
        ("0.3.6", "0.3.7", None),
    ],
)
def test_two_releases(client: str, master: str, known: bool | None) -> None:
    assert work_together(client, master) is known
    assert work_together(master, client) is known


def test_no_release_is_in_two_groups() -> None:
    assert not [
        one & other
        for one, other in combinations({row.together for row in mooncake.RELEASES}, 2)
        if one & other
    ]


@pytest.fixture(scope="module")
def add_release() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("add_release")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_only_a_release_that_is_newer_than_known_may_have_them() -> None:
    for choose, program, newest in (
        (choose_mooncake, "mooncake", mooncake.NEWEST_KNOWN),
        (choose_sglang, "sglang", NEWEST_KNOWN),
    ):
        assert choose(newest)[2] == ()
        (note,) = choose("0.99.0")[2]
        rows = list(open_changes(program))
        assert note.id == f"{program}-newer"
        assert rows
        assert [one for one in rows if f"{one.changes} ({one.pulls[0]})" not in note.text] == []


@pytest.mark.parametrize("change", OPEN_CHANGES, ids=lambda one: one.pulls[0])
def test_the_mark_is_found_in_a_wheel_that_has_it(
    change: OpenChange, add_release: Any, tmp_path: Path
) -> None:
    assert add_release.found_in(change, tmp_path) == ("not in" if change.marks else "read it")
    for number, (pattern, text) in enumerate(change.marks):
        folder = tmp_path / str(number)
        file = folder / pattern.replace("**/*", "a/b").replace("*", "master")
        file.parent.mkdir(parents=True)
        file.write_text("something else")
        assert add_release.found_in(change, folder) == "not in"
        file.write_text(f"... {text.upper()} ...")
        assert add_release.found_in(change, folder) == "in"
