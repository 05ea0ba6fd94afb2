"""The table of SGLang's releases: which row a version gets, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

import pytest

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
from tests.tables import each_row


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("text", ["", "latest", "0.5", "0.5.x", "0.5.2.3", "٠.٥.٢"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not an SGLang version: write"):
        parse_version(text)


@pytest.mark.parametrize("text", ["0.4.10", "0.5.1.post3"])
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
    # A row that changes nothing says nothing.
    assert all(one[1:] != other[1:] for one, other in pairwise(RELEASES))


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
