"""Texts that are no report, or not a whole one: named, counted, never merged, never fatal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checks.base.unknown import Unknown
from preflight.base.envelope import envelope
from preflight.fleet.merge.answer import facts_text, fleet_object, fleet_text, verdict_text
from preflight.fleet.merge.command import merge
from preflight.fleet.merge.fleet import Fleet
from preflight.fleet.merge.to_html import fleet_page
from preflight.fleet.node.report import absent
from preflight.fleet.remote.reply import SSH
from preflight.fleet.reports.reading import ReportReader
from preflight.fleet.reports.rows import NodeRow, Trouble, Unusable
from preflight.fleet.reports.sources import Text
from tests.fleet.merge_fleets import Report, fleet_reports, line, produced_report, report_of
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/schemas/fleet-v1.schema.json").read_text())
GOOD = report_of("gpu001", 0)
WRITTEN = line(GOOD)


Case = tuple[str | bytes, Trouble, str]


def read(content: str | bytes, source: str = "gpu001.json", at: int = 0) -> NodeRow | Unusable:
    written = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    (found,) = ReportReader().read(Text(source, at, written))
    return found


def with_field(place: str, value: Any) -> str:
    """The good report with one field set: ``rails.0.port``; DELETED removes it."""
    report = report_of("gpu001", 0)
    *way, name = place.split(".")
    inner: Any = report
    for step in way:
        inner = inner[int(step) if step.isdecimal() else step]
    if value is DELETED:
        del inner[name]
    else:
        inner[int(name) if name.isdecimal() else name] = value
    return json.dumps(report)


DELETED = object()
DEEP = 100_000


NO_REPORTS: list[Case] = [
    (WRITTEN[:5000], Trouble.TRUNCATED, "5000 bytes"),
    (WRITTEN[:-1], Trouble.TRUNCATED, "within the report"),
    (WRITTEN[: WRITTEN.index("}") + 1], Trouble.TRUNCATED, "within the report"),
    ("{", Trouble.TRUNCATED, "1 bytes"),
    ("\0" * 9000, Trouble.BINARY, "NUL"),
    (WRITTEN + "\0", Trouble.BINARY, "NUL"),
    (WRITTEN.encode("utf-16"), Trouble.BINARY, "NUL"),
    (b"\x7fELF\x02\x01\xff" * 900, Trouble.BINARY, "no UTF-8"),
    (WRITTEN.encode().replace(b"pass", b"p\xe9ss", 1), Trouble.BINARY, "no UTF-8, at byte"),
    ("Permission denied (publickey).", Trouble.NOT_JSON, "Permission denied"),
    (f"{WRITTEN} trailing", Trouble.NOT_JSON, "Extra data"),
    (WRITTEN.replace('"port":1', '"port":NaN', 1), Trouble.NOT_JSON, "NaN"),
    (WRITTEN.replace('"port":1', '"port":-Infinity', 1), Trouble.NOT_JSON, "-Infinity"),
    (WRITTEN.replace('"port":1', f'"port":{"9" * 5000}', 1), Trouble.NOT_JSON, "digits"),
    ("[" * DEEP + "]" * DEEP, Trouble.TOO_DEEP, "levels"),
    ("{}", Trouble.FOREIGN, "no schema"),
    ('{"kind": "Pod"}', Trouble.FOREIGN, "no schema"),
    ('{"schema": "somebody/else/v1"}', Trouble.FOREIGN, "somebody/else/v1"),
    ('{"schema": 7}', Trouble.FOREIGN, "schema 7"),
    ('{"schema": "mooncake-preflight/plan/v1"}', Trouble.FOREIGN, "another command"),
    ("7", Trouble.FOREIGN, "a number"),
    ("null", Trouble.FOREIGN, "null"),
    ("[[]]", Trouble.FOREIGN, "a list"),
    ('{"schema": "mooncake-preflight/node/v0"}', Trouble.OTHER_SCHEMA, "node/v0"),
    ('{"schema": "mooncake-preflight/check/v2"}', Trouble.OTHER_SCHEMA, "reads"),
    (with_field("node", "a b"), Trouble.NO_NAME, "'a b'"),
    (with_field("node", "gpu\x1b[31m"), Trouble.NO_NAME, "names no host"),
    (with_field("node", "g" * 300), Trouble.NO_NAME, "names no host"),
    (with_field("node", 7), Trouble.WRONG, "node is 7, not a text"),
    (with_field("findings", DELETED), Trouble.WRONG, "it has no findings"),
    (with_field("findings", {}), Trouble.WRONG, "findings is an object"),
    (with_field("findings.0", 7), Trouble.WRONG, "findings[0] is a number"),
    (with_field("findings.0.check", None), Trouble.WRONG, "check is null"),
    (with_field("findings.0.check", DELETED), Trouble.WRONG, "findings[0] has no check"),
    (with_field("findings.0.subjects", []), Trouble.WRONG, "subjects is empty"),
    (with_field("findings.0.subjects", ["a", 1]), Trouble.WRONG, "findings[0]"),
    (with_field("findings.0.have", ["a"]), Trouble.WRONG, "findings[0]"),
    (with_field("findings.0.status", "bad"), Trouble.WRONG, "status is 'bad'"),
    (with_field("findings.0.ignored", 1), Trouble.WRONG, "ignored is 1, not a text"),
    (with_field("passes.3", "abc"), Trouble.WRONG, "passes[3]"),
    (with_field("passes.3", ["a", "b"]), Trouble.WRONG, "passes[3]"),
    (with_field("passes.3", [["a"], "b", "c"]), Trouble.WRONG, "passes[3]"),
    (with_field("facts", []), Trouble.WRONG, "facts is a list"),
    (with_field("facts.kernel", ["6.8"]), Trouble.WRONG, "'kernel' is a list"),
    (with_field("facts.kernel", 1.5), Trouble.WRONG, "'kernel' is a number"),
    (with_field("facts.kernel", 10**30), Trouble.WRONG, "bits"),
    (with_field("unknown_facts", {"kernel": None}), Trouble.WRONG, "is null, not a text"),
    (with_field("status", "great"), Trouble.WRONG, "status is 'great'"),
    (with_field("made_unix_seconds", -1), Trouble.WRONG, "made_unix_seconds is -1"),
    (with_field("made_unix_seconds", True), Trouble.WRONG, "made_unix_seconds is true"),
    (with_field("made_unix_seconds", 1e3), Trouble.WRONG, "made_unix_seconds"),
    (with_field("rails", 7), Trouble.WRONG, "rails is a number"),
    (with_field("rails", {}), Trouble.WRONG, "rails does not say why"),
    (with_field("rails.0", 7), Trouble.WRONG, "rails[0] is a number"),
    (with_field("rails.0.port", "1"), Trouble.WRONG, "rails[0]: port"),
    (with_field("rails.0.used", "yes"), Trouble.WRONG, "rails[0]: used"),
    (with_field("rails.0.mtu_bytes", "4096"), Trouble.WRONG, "rails[0]: mtu_bytes"),
    (with_field("rails.0.addresses", [1]), Trouble.WRONG, "rails[0]: addresses"),
    (with_field("routes", [["a"]]), Trouble.WRONG, "routes[0]"),
    (with_field("launch", "sh"), Trouble.WRONG, "launch is a text"),
    (with_field("launch.segment_bytes", -1), Trouble.WRONG, "segment_bytes is -1"),
    (with_field("launch.segment_bytes", True), Trouble.WRONG, "segment_bytes is true"),
    (with_field("launch.ports", [["HTTP port", 99999]]), Trouble.WRONG, "99999: not a port"),
    (with_field("launch.services", [1]), Trouble.WRONG, "services[0]"),
]


@pytest.mark.parametrize(
    ("content", "trouble", "said"), NO_REPORTS, ids=[said for _, _, said in NO_REPORTS]
)
def test_what_is_no_report_is_named_with_its_reason(
    content: str | bytes, trouble: Trouble, said: str
) -> None:
    found = read(content)
    assert isinstance(found, Unusable)
    assert found.trouble is trouble
    assert said in found.reason
    assert found.node in ("gpu001", "")


@pytest.mark.parametrize(
    "content",
    [
        WRITTEN,
        f"\ufeff{WRITTEN}",
        json.dumps(GOOD, indent=2),
        with_field("more", {"of": "a later version"}),
        with_field("launch", None),
        with_field("rails", {"unknown": "no verbs"}),
        with_field("launch.segment_bytes", {"unknown": "read from a file"}),
    ],
)
def test_a_report_is_taken_whatever_it_has_besides(content: str) -> None:
    found = read(content)
    assert isinstance(found, NodeRow)
    assert (found.node, found.status, found.whole) == ("gpu001", "warn", True)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"status": "pass"}, "warn"),
        ({"status": "pass", "findings": []}, "pass"),
        ({"status": "pass", "findings": [], "passes": []}, "unknown"),
        ({"status": "fail", "findings": []}, "fail"),
        ({"status": "error", "error": "usage: no such file", "findings": []}, "unknown"),
    ],
)
def test_a_verdict_is_no_better_than_what_it_rests_on(change: Report, status: str) -> None:
    found = read(line({**GOOD, **change}))
    assert isinstance(found, NodeRow)
    assert found.status == status


def test_what_fleet_node_prints_is_taken_whole() -> None:
    """The report that the producer makes of a synthetic host, with every key that it has."""
    report = produced_report()
    reading = ReportReader()
    (found,) = reading.read(Text("gpu001.json", 0, line(report).encode()))
    assert isinstance(found, NodeRow)
    assert (found.node, found.status, found.host) == ("base-node", report["status"], "base-node")
    assert len(found.findings) == len(report["findings"]) + len(report["passes"])
    assert len(found.facts) == len(report["facts"]) + 1  # the program's version is one more
    assert not isinstance(found.rails, Unknown)
    assert [rail.device for rail in found.rails] == [f"mlx5_{at}" for at in range(8)]
    assert found.launch is not None
    assert found.launch.segment_bytes == 64 << 30


def test_what_nodes_say_of_themselves_is_folded() -> None:
    """Two nodes whose words differ in their own names alone say the same."""
    reading = ReportReader()
    rows: list[NodeRow | Unusable] = []
    for node in ("gpu001", "gpu002"):
        report = report_of(node, 1)
        text = f"ssh {node}: timed out; {node}.example is not {node}"
        report["findings"] = [{**GOOD["findings"][0], "subjects": [node], "text": text}]
        report["passes"] = [["service.address", f"{node}", f"{node} is 10.0.0.1"]]
        rows += reading.read(Text("lines", 1, line(report).encode()))
    first, second = rows
    assert isinstance(first, NodeRow)
    assert isinstance(second, NodeRow)
    texts = {one.text for one in (*first.findings, *second.findings)}
    assert "ssh the node: timed out; gpu001.example is not the node" in texts
    subjects = {one.subject for one in (*first.findings, *second.findings)}
    assert subjects == {"the node"}


def row_of_check(check: str, status: str = "fail") -> dict[str, Any]:
    """A finding as ``check --json`` prints it."""
    have = {"value": 8388608, "unit": "bytes", "text": "8.00 MiB"}
    one = {"kind": "process", "name": "rank 0", "ranks": [0]}
    row = {"check": check, "status": status, "subjects": [one], "have": have, "need": None}
    return {**row, "text": "so it is", "ignored": None}


def test_an_answer_of_check_goes_by_its_files_name(tmp_path: Path) -> None:
    """``check --json > gpu007.json``: its findings count; drift of such a node is not known."""
    rows = [row_of_check("memlock.limit"), row_of_check("rdma.any", "skip")]
    reason = "it will not start"
    answer = envelope("check", 2, {"findings": rows}, word="fail", reason=reason, command="check")
    (tmp_path / "gpu007.json").write_text(json.dumps(answer, indent=2))
    fleet = merge([str(tmp_path)], None)
    assert [(node.name, node.status) for node in fleet.nodes] == [("gpu007", "fail")]
    (one,) = fleet.findings
    assert (one.finding.check, one.finding.subject) == ("memlock.limit", "rank 0")
    assert (one.finding.have, one.finding.need) == ("8.00 MiB", "")
    assert "gpu007: answers of check --json, which have no facts" in facts_text(fleet)
    (tmp_path / "two.jsonl").write_text(f"{json.dumps(answer)}\n{json.dumps(answer)}\n")
    lost = merge([str(tmp_path / "two.jsonl")], None).unusable
    assert [(one.trouble, one.times) for one in lost] == [(Trouble.NO_NAME, 2)]
    (tmp_path / "two.jsonl").unlink()
    # Without a verdict, and what is none of its rows.
    (tmp_path / "gpu007.json").write_text(json.dumps({**answer, "status": "error"}))
    (one,) = merge([str(tmp_path)], None).findings
    assert (one.finding.check, one.finding.text) == ("fleet.no-verdict", reason)
    broken = {**answer, "findings": [{"subjects": [[]], "have": 1}, 2]}
    (tmp_path / "gpu007.json").write_text(json.dumps(broken))
    assert merge([str(tmp_path)], None).unusable[0].trouble is Trouble.WRONG


def test_what_stands_for_a_report_is_no_report_read(tmp_path: Path) -> None:
    """Whether a node has two of them, or one beside its own report."""
    away = [absent("gpu002", SSH, "no route"), absent("gpu002", SSH, "no route")]
    place = tmp_path / "all.jsonl"
    lines = [line(one) for one in (*fleet_reports("gpu001"), *away, absent("gpu001", SSH, "late"))]
    place.write_text("".join(f"{each}\n" for each in lines))
    fleet = merge([str(place)], None)
    assert fleet.reports == 1
    assert "(1 report read, " in verdict_text(fleet)


def test_every_text_is_counted_once(tmp_path: Path) -> None:
    """Reports read, repeated and not usable add up to the texts that were given."""
    good = fleet_reports("gpu[001-003]")
    lines = [line(report) for report in good]
    lines += [lines[0], lines[1][:700], "a log line", "another", '{"kind":"Pod"}', "{}"]
    place = tmp_path / "all.jsonl"
    place.write_text("".join(f"{each}\n" for each in lines))
    fleet = merge([str(place)], None)
    assert fleet.reports == 4
    assert dict(fleet.repeats) == {"gpu001": 1}
    counted = [(one.trouble, one.line, one.node, one.times) for one in fleet.unusable]
    assert counted == [
        (Trouble.TRUNCATED, 5, "gpu002", 1),
        (Trouble.NOT_JSON, 6, "", 2),
        (Trouble.FOREIGN, 8, "", 2),
    ]
    assert fleet.verdict == "unknown"


def shown(fleet: Fleet) -> None:
    """Each form of the answer can be made, and the object is as its schema says."""
    whole = envelope("fleet", 0, fleet_object(fleet), word=fleet.verdict, command="fleet merge")
    valid(json.loads(json.dumps(whole)), SCHEMA)
    for verbosity in (-1, 0, 1):
        assert "\x1b" not in fleet_text(fleet, lambda text, _: text, 80, verbosity)
    assert fleet_page(fleet).startswith("<!DOCTYPE html>")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["pass", "fail", "error", "\ud800", "\x1b[2J", "mlx5_0", "127.0.0.1:1", "::"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def _small() -> Report:
    """Few of each, so that a change hits every kind of field often."""
    report = report_of("gpu002", 1)
    for name in ("passes", "rails", "routes", "findings"):
        report[name] = report[name][:2]
    facts = ("kernel", "limit.memlock", "rdma.devices", "mlx5_0:1.rate", "wheel.mooncake")
    report["facts"] = {name: report["facts"][name] for name in facts}
    report["launch"]["services"] = [["advertised", "10.0.0.1", True]]
    return report


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything in ``value``."""
    keys = range(len(value)) if isinstance(value, list) else list(value)
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A report with some fields replaced, removed or moved in, or some bytes changed."""
    report = _small()
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(_places(report)))
        if draw(st.booleans()) or isinstance(container, list):
            container[key] = draw(JSON)
        else:
            del container[key]
        if not report:
            break
    written = bytearray(json.dumps(report).encode())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(written)))
        written[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(written[: draw(st.integers(0, len(written)) | st.just(len(written)))])


@pytest.mark.slow
@given(st.lists(mutated(), min_size=1, max_size=3))
@example([b"\0", b"{}", b""])
def test_no_bytes_are_fatal_and_the_good_report_beside_them_is_read(texts: list[bytes]) -> None:
    """Law: whatever lies beside it, gpu001 has its own verdict, and every form can be printed."""
    stream = io.TextIOWrapper(io.BytesIO(b"\n".join([*texts, WRITTEN.encode()])))
    before, sys.stdin = sys.stdin, stream
    try:
        fleet = merge(["-"], None)
    finally:
        sys.stdin = before
    rows = [node.row for node in fleet.nodes if node.name == "gpu001"]
    assert any(row is not None and row.whole for row in rows)
    assert fleet.reports + sum(one.times for one in fleet.unusable) >= 1
    shown(fleet)


def test_a_report_may_be_as_large_as_a_node_makes_it() -> None:
    """Thousands of findings are read; sentences that no program of ours writes are cut."""
    report = report_of("gpu001", 0)
    row = report["findings"][0]
    report["findings"] = [{**row, "subjects": [f"rank {at}"]} for at in range(5000)]
    report["findings"][0]["text"] = "x" * 100_000
    reading = ReportReader()
    (found,) = reading.read(Text("gpu001.json", 0, line(report).encode()))
    assert isinstance(found, NodeRow)
    assert len(found.findings) == 5000 + len(report["passes"])
    assert max(len(one.text) for one in found.findings) == 4000
