"""Each record of a known problem is whole, has its edges where it says, and is OSV."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from checks.framework.unknown import Unknown
from preflight.launch_problems.advisories import judge
from preflight.launch_problems.advisories.records import (
    PRODUCTS,
    SEVERITIES,
    Advisory,
    Affected,
    Range,
    advisories,
    as_osv,
    condition_text,
    expression,
    holds,
    in_ranges,
)
from preflight.server_logs.patterns import read_patterns
from preflight.verdict.catalogue import catalogue
from tests.paths import ROOT
from tests.tables import each_row

RECORDS = advisories()
FILES = sorted((ROOT / "preflight/launch_problems/advisories").glob("*.json"))
# Releases that there are, the oldest first: of wheels as PyPI has them, of others those at an edge.
RELEASES = {
    "mooncake": "0.3.0 0.3.1 0.3.4 0.3.4.post1 0.3.4.post2 0.3.5 0.3.6 0.3.6.post1 0.3.7 "
    "0.3.7.post1 0.3.7.post2 0.3.8 0.3.8.post1 0.3.9 0.3.10 0.3.10.post1 0.3.10.post2 "
    "0.3.11 0.3.11.post1 0.3.12 0.3.12.post1 0.3.13 0.3.13.post1 0.3.14",
    "sglang": "0.5.2 0.5.3 0.5.3.post1 0.5.3.post2 0.5.3.post3 0.5.4 0.5.4.post1 0.5.4.post2 "
    "0.5.4.post3 0.5.5 0.5.5.post1 0.5.5.post2 0.5.5.post3 0.5.6 0.5.6.post1 "
    "0.5.6.post2 0.5.7 0.5.8 0.5.8.post1 0.5.9 0.5.10 0.5.10.post1 0.5.11 0.5.12 "
    "0.5.12.post1 0.5.13 0.5.13.post1 0.5.14 0.5.15 0.5.15.post1 0.5.16 0.5.17 0.5.18 "
    "0.5.19 0.5.20 0.5.21 0.5.22 0.5.23",
    "vllm": "0.7.2 0.29.0",
    "lmcache": "0.3.4",
    "nixl": "0.10.0",
    "kernel": "5.13 5.15.10 7.0.0-31 7.0.0-1019",
    "rdma-core": "50 51",
    "nvidia-driver": "580",
    "gpu-operator": "26.3.0",
}


def releases(product: str) -> list[str]:
    return RELEASES["mooncake" if product.startswith("mooncake") else product].split()


@each_row("one", RECORDS)
def test_a_range_begins_and_ends_at_releases_that_there_are(one: Advisory) -> None:
    """So a mistyped one is found; the first is affected, and the one that mends it is not."""
    for affected in one.affected:
        known = releases(affected.product)
        for span in affected.ranges:
            ends = {span.introduced, span.fixed, span.last} - {"0", ""}
            assert ends <= {*known}, affected.product
            alone = Affected(affected.product, (span,))
            first = known[0] if span.introduced == "0" else span.introduced
            assert in_ranges(alone, first) is True
            assert not span.last or in_ranges(alone, span.last) is True
            assert not span.fixed or in_ranges(alone, span.fixed) is False


def test_there_are_many_and_each_has_its_own_number() -> None:
    assert [one.id for one in RECORDS] == [f"MP-2026-{n:04d}" for n in range(1, len(RECORDS) + 1)]
    assert len(RECORDS) >= 60
    assert len({one.summary for one in RECORDS}) == len(RECORDS)


@each_row("one", RECORDS)
def test_a_record_names_only_what_there_is(one: Advisory) -> None:
    own = json.loads((FILES[0].parent / f"{one.id}.json").read_text())["database_specific"]
    asked = {test["fact"] for test in _conditions(own.get("when", {})) if "fact" in test}
    assert {name for name in asked if not name.startswith(("env.", "flag."))} <= judge.FACTS.keys()
    assert set(one.covered_by) <= set(catalogue().ids)
    assert set(one.log) <= {pattern.id for pattern in read_patterns()}
    assert one.references
    for kind, url in one.references:
        assert url.startswith("https://")
        assert (kind == "FIX") <= ("/pull/" in url)
    for text in (one.summary, one.details, one.seen, one.remedy):
        assert " ".join(text.split()) == text
    # What only a person has said does not stop a launch.
    assert not (one.grave and one.evidence == ("reported",))


@each_row(
    ("product", "introduced", "fixed", "version", "affected"),
    [
        ("mooncake", "0.3.12", "0.3.13", "0.3.12.post1", True),
        ("mooncake", "0.3.12", "0.3.13", "0.3.13rc1", True),
        ("mooncake", "0.3.12", "0.3.13", "0.3.12+cu128", True),
        ("mooncake", "0.3.12", "0.3.13", "0.3.13+git1a2b3c4", False),
        ("sglang", "0.5.9", "0.5.10", "0.5.10.post1", False),
        ("sglang", "0.5.9", "0.5.10", "v0.5.9", True),
        ("kernel", "5.13", "5.15.10", "5.15.9-generic", True),
        ("kernel", "5.13", "5.15.10", "5.4.0-200-generic", False),
        ("rdma-core", "0", "51", "51mlnx1-1", False),
        ("nvidia-driver", "580", "", "575.57.08", False),
        ("nvidia-driver", "580", "", "595.71.05", True),
    ],
)
def test_versions_as_they_are_spelt(
    product: str, introduced: str, fixed: str, version: str, affected: bool
) -> None:
    assert in_ranges(Affected(product, (Range(introduced, fixed),)), version) is affected


@pytest.mark.parametrize(("product", "text"), [("mooncake", "main"), ("kernel", "linux")])
def test_what_is_no_version_is_unknown(product: str, text: str) -> None:
    assert isinstance(in_ranges(Affected(product, (Range("0", "9"),)), text), Unknown)


WHY = Unknown("not read")
FACTS: dict[str, Any] = {
    "yes": True,
    "none": None,
    "unknown": WHY,
    "two": 2,
    "text": "page_first",
    "list": ["a", "b"],
    "nics": frozenset(("mlx5_core", "erdma")),
    "no-nics": frozenset(),
    "mooncake": "0.3.10",
}


@each_row(
    ("condition", "result"),
    [
        ({"fact": "yes", "is": True}, True),
        ({"fact": "yes", "is": 1}, False),
        ({"fact": "none", "is": ""}, False),
        ({"fact": "none", "given": False}, True),
        ({"fact": "list", "given": True}, True),
        ({"fact": "two", "at_least": 2}, True),
        ({"fact": "two", "below": 2}, False),
        ({"fact": "text", "at_least": 2}, None),  # a flag whose value was no number
        ({"fact": "text", "is": ["layer_first", "page_first"]}, True),
        ({"fact": "text", "matches": "^page"}, True),
        ({"fact": "nics", "is": "erdma"}, True),
        ({"fact": "no-nics", "is": "erdma"}, False),
        ({"fact": "mooncake", "at_least": "0.3.9"}, True),
        ({"fact": "mooncake", "below": "0.3.10.post1"}, True),
        ({"fact": "unknown", "is": 1}, None),
        ({"not": {"fact": "unknown", "is": 1}}, None),
        ({"all": [{"fact": "unknown", "is": 1}, {"fact": "two", "is": 3}]}, False),
        ({"all": [{"fact": "unknown", "is": 1}, {"fact": "two", "is": 2}]}, None),
        ({"any": [{"fact": "unknown", "is": 1}, {"fact": "two", "is": 2}]}, True),
        ({"any": [{"fact": "unknown", "is": 1}, {"fact": "two", "is": 3}]}, None),
    ],
)
def test_a_condition_has_three_values(condition: Any, result: bool | None) -> None:
    found = holds(expression(condition), FACTS.__getitem__)
    assert (None if isinstance(found, Unknown) else found) is result


def test_a_condition_in_words() -> None:
    table = {"all": [{"fact": "a", "is": True}, {"not": {"fact": "b", "at_least": 2}}]}
    assert condition_text(expression(table)) == "a and (not (b at least 2))"


KEYS = {"id", "summary", "details", "modified", "affected", "references", "database_specific"}
OWN_KEYS = {"severity", "evidence", "seen", "remedy"}
MORE_KEYS = {"when", "log", "lines", "covered_by", "arises", "command"}
EVIDENCE = {"reproduced", "read in code", "maintainer's word", "reported"}
REFERENCES = {"ADVISORY", "ARTICLE", "DISCUSSION", "EVIDENCE", "FIX", "REPORT", "WEB"}
EVENTS = {("introduced",), ("introduced", "fixed"), ("introduced", "last_affected")}
OPS = {"is", "at_least", "below", "matches", "given"}


def _conditions(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield table
    parts = table.get("all", table.get("any", [table["not"]] if "not" in table else []))
    for part in parts:
        yield from _conditions(part)


@each_row("path", FILES)
def test_a_record_has_what_a_record_may_have(path: Path) -> None:
    """Nothing of it is looked at again where it is read."""
    table = json.loads(path.read_text())
    own = table["database_specific"]
    assert table["id"] == path.stem
    assert re.fullmatch(r"MP-20\d\d-\d{4}", table["id"])
    assert set(table) == KEYS
    assert OWN_KEYS <= set(own) <= OWN_KEYS | MORE_KEYS
    assert own["severity"] in SEVERITIES
    assert own["evidence"]
    assert set(own["evidence"]) <= EVIDENCE
    assert ("reproduced" in own["evidence"]) == bool(own.get("command"))
    assert {row["type"] for row in table["references"]} <= REFERENCES
    assert table["summary"]
    assert own["seen"]
    assert own["remedy"]
    assert table["affected"]
    for row in table["affected"]:
        assert set(row) == {"package", "events"}
        assert row["package"] in PRODUCTS
        kinds = [kind for event in row["events"] for kind in event]
        assert all(len(event) == 1 for event in row["events"])
        ranges = " ".join(kinds).replace(" introduced", "|introduced").split("|")
        assert {tuple(one.split()) for one in ranges} <= EVENTS
    for condition in _conditions(own["when"]) if "when" in own else ():
        if "fact" in condition:
            (op,) = set(condition) - {"fact"}
            assert op in OPS
            assert op != "matches" or re.compile(condition["matches"])
        else:
            ((op, parts),) = condition.items()
            assert op in ("all", "any", "not")
            assert parts


@each_row("one", RECORDS)
def test_the_export_is_osv(one: Advisory) -> None:
    schema = json.loads((ROOT / "tests/data/osv/schema.json").read_text())
    found = as_osv(one)
    jsonschema.Draft202012Validator(schema).validate(found)
    names = {each["package"]["name"] for each in found["affected"]}
    assert names == {name for each in one.affected for name in PRODUCTS[each.product][1]}
