"""What ``check --json`` printed, in files, folders, logs and pipes; what is no report is named."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from preflight.base.envelope import envelope
from preflight.fleet.merge.answer import fleet_object, fleet_text
from preflight.fleet.merge.fleet import Fleet
from preflight.fleet.merge.to_html import fleet_page
from preflight.fleet.reports import sources
from preflight.fleet.reports.reading import read_reports
from preflight.fleet.reports.rows import NodeRow, Trouble, Unusable
from preflight.fleet.reports.sources import FoundReport as Found
from preflight.fleet.reports.sources import reports_in, reports_of
from tests.fleet.merge_fleets import (
    Report,
    document,
    fleet_reports,
    line,
    merge,
    report_of,
)
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/fleet-v1.schema.json").read_text())
GOOD = report_of("gpu001", 0)
WRITTEN = line(GOOD)
INDENTED = json.dumps(document(GOOD), indent=2)

Case = tuple[str | bytes, Trouble, str]


def read(content: str | bytes, source: str = "gpu001.json") -> NodeRow | Unusable:
    written = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    found = read_reports(reports_in(source, written))
    every: list[NodeRow | Unusable] = [*found.rows, *found.unusable]
    (one,) = every
    return one


def with_field(place: str, value: Any) -> str:
    """The good report with one field set: ``answer.machine.rails.0.port``; DELETED removes it."""
    report = document(GOOD)
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
MACHINE = "answer.machine"

NO_REPORTS: list[Case] = [
    (WRITTEN[:5000], Trouble.TRUNCATED, "5000 bytes"),
    ("", Trouble.EMPTY, "nothing in it"),
    ("\0" * 9000, Trouble.FOREIGN, "no text"),
    (b"\x7fELF\x02\x01\xff" * 900, Trouble.FOREIGN, "no text"),
    ("Permission denied (publickey).", Trouble.FOREIGN, "Permission denied"),
    ('{"schema": "somebody/else/v1"}', Trouble.FOREIGN, "somebody/else/v1"),
    ('{"schema": "mooncake-preflight/plan/v1"}', Trouble.FOREIGN, "another command"),
    ('{"schema": "mooncake-preflight/check/v1", "findings": []}', Trouble.OTHER_SCHEMA, "check/v1"),
    ('{"schema": "mooncake-preflight/check/v99", "answer": {}}', Trouble.OTHER_SCHEMA, "check/v99"),
    ('{"schema": "mooncake-preflight/check/v10", "answer": {}}', Trouble.OTHER_SCHEMA, "check/v10"),
    (WRITTEN.replace('"port":1', '"port":NaN', 1), Trouble.NOT_JSON, "NaN"),
    (WRITTEN.replace('"port":1', f'"port":{"9" * 5000}', 1), Trouble.NOT_JSON, "digits"),
    ('{"schema": "mooncake-preflight/x", "a": ' + "[" * DEEP, Trouble.TOO_DEEP, "levels"),
    (with_field(f"{MACHINE}.name", "a b"), Trouble.NO_NAME, "'a b'"),
    (with_field(f"{MACHINE}.name", "g" * 300), Trouble.NO_NAME, "names no host"),
    (with_field("findings", DELETED), Trouble.WRONG, "it has no findings"),
    (with_field("findings", {}), Trouble.WRONG, "findings is an object"),
    (with_field("findings.0", 7), Trouble.WRONG, "findings[0] is 7"),
    (with_field("findings.0.subjects", []), Trouble.WRONG, "subjects is empty"),
    (with_field("findings.0.status", "bad"), Trouble.WRONG, "status is 'bad'"),
    (with_field("status", "great"), Trouble.WRONG, "status is 'great'"),
    (with_field(f"{MACHINE}.facts.kernel", 1.5), Trouble.WRONG, "'kernel' is a number"),
    (with_field(f"{MACHINE}.facts.kernel", 10**30), Trouble.WRONG, "bits"),
    (with_field(f"{MACHINE}.read_unix_seconds", -1), Trouble.WRONG, "read_unix_seconds is -1"),
    (with_field(f"{MACHINE}.read_unix_seconds", True), Trouble.WRONG, "is true"),
    (with_field(f"{MACHINE}.rails", {}), Trouble.WRONG, "rails is an object"),
]


@each_row(("content", "trouble", "said"), NO_REPORTS)
def test_what_is_no_report_is_named_with_its_reason(
    content: str | bytes, trouble: Trouble, said: str
) -> None:
    found = read(content)
    assert isinstance(found, Unusable)
    assert (found.trouble, said in found.reason) == (trouble, True), found
    assert found.name in ("gpu001", "")


@each_row(
    "content",
    [
        WRITTEN,
        f"\ufeff{WRITTEN}",
        INDENTED,
        f"{WRITTEN} trailing",
        f"Welcome!\n{INDENTED}\nsee you",
        with_field("more", {"of": "a later version"}),
        with_field(f"{MACHINE}.share", None),
        with_field(f"{MACHINE}.rails", {"unknown": "no verbs"}),
        with_field(f"{MACHINE}.share.segment_bytes", {"unknown": "read from a file"}),
    ],
)
def test_a_report_is_taken_whatever_stands_around_it(content: str) -> None:
    found = read(content)
    assert isinstance(found, NodeRow)
    assert (found.name, found.status, found.whole) == ("gpu001", "warn", True)


@each_row(
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
    said = any(each.check == "fleet.no-verdict" for each in found.findings)
    assert said is (status == "unknown")


def test_an_answer_without_its_machine_goes_by_its_files_name(tmp_path: Path) -> None:
    """Its findings count; drift of such a node is not known."""
    bare = document(GOOD)
    del bare["answer"]["machine"]
    (tmp_path / "gpu007.json").write_text(json.dumps(bare, indent=2))
    fleet = merge([str(tmp_path)], None)
    assert [(node.name, node.status) for node in fleet.nodes] == [("gpu007", "warn")]
    assert [one.finding.check for one in fleet.findings] == ["page-size-one"]
    (tmp_path / "two.jsonl").write_text(f"{json.dumps(bare)}\n{json.dumps(bare)}\n")
    lost = merge([str(tmp_path / "two.jsonl")], None).unusable
    assert [(one.trouble, one.times) for one in lost] == [(Trouble.NO_NAME, 2)]


def as_srun_labels_it(reports: list[Report], seed: int) -> str:
    """As srun --label prints tasks side by side: cut after 1024 bytes, in any order of tasks."""
    left = {}
    for number, report in enumerate(reports):
        pieces = ["slurm: a prolog's word"]
        for one in json.dumps(document(report), indent=2).split("\n"):
            pieces += [one[at : at + 1024] for at in range(0, len(one) or 1, 1024)]
        left[number] = pieces
    choose, lines = random.Random(seed), []
    while left:
        task = choose.choice(list(left))
        lines.append(f"{task:>2}: {left[task].pop(0)}")
        if not left[task]:
            del left[task]
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(2))
def test_the_pieces_of_tasks_that_srun_labels_are_joined(seed: int, tmp_path: Path) -> None:
    reports = fleet_reports("gpu[001-004]")
    reports[3]["findings"][0]["text"] = "x" * 3000
    (tmp_path / "out").write_text(as_srun_labels_it(reports, seed))
    fleet = merge([str(tmp_path / "out")], None)
    assert [node.name for node in fleet.nodes] == [report["node"] for report in reports]
    assert (fleet.reports, fleet.unusable) == (4, ())


def test_a_folder_is_its_files_in_order_at_any_depth(tmp_path: Path) -> None:
    for name, number in (("b.json", 2), ("a.json", 1), ("sub/c.json.gz", 3), (".hidden", 4)):
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        content = line(report_of(f"gpu{number}", number)).encode()
        place.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "void").mkdir()
    found = list(reports_of([str(tmp_path), str(tmp_path / "void"), "nul\0name"]))
    assert {one.line for one in found} == {0}
    rows = [one if isinstance(one, Unusable) else one.document["answer"] for one in found]
    told = [row.trouble if isinstance(row, Unusable) else row["machine"]["name"] for row in rows]
    bad = Trouble.UNREADABLE
    assert told == ["gpu1", "gpu2", bad, "gpu3", Trouble.EMPTY, bad]


def test_gzip_that_ends_early_gives_what_it_holds_and_says_so(tmp_path: Path) -> None:
    lines = "".join(f"{line(report)}\n" for report in fleet_reports("gpu[01-64]"))
    packed = gzip.compress(lines.encode())
    place = tmp_path / "cut.gz"
    place.write_bytes(packed[: len(packed) * 9 // 10])
    *whole, broken, last = reports_of([str(place)])
    assert isinstance(last, Unusable)
    assert (last.trouble, "gzip" in last.reason) == (Trouble.TRUNCATED, True)
    assert isinstance(broken, Unusable)
    assert len(whole) >= 1
    assert all(isinstance(one, Found) for one in whole)
    place.write_bytes(b"\x1f\x8bno gzip at all")
    assert [one.trouble for one in reports_of([str(place)]) if isinstance(one, Unusable)] == [
        Trouble.UNREADABLE
    ]
    place.write_bytes(gzip.compress(lines.encode()) + gzip.compress(WRITTEN.encode()))
    assert len(list(reports_of([str(place)]))) == 65


def test_a_text_larger_than_any_fleets_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "LARGEST_TEXT_BYTES", 10_000)
    (tmp_path / "file").write_text("x" * 3_000_000)
    last = list(reports_of([str(tmp_path / "file")]))[-1]
    assert isinstance(last, Unusable)
    assert last.trouble is Trouble.TOO_LARGE


def shown(fleet: Fleet) -> None:
    """Each form of the answer can be made, and the object is as its schema says."""
    written = envelope(
        "fleet", fleet.exit_code, fleet_object(fleet), word=fleet.verdict, command="x"
    )
    valid(json.loads(json.dumps(written)), SCHEMA)
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
    for name in ("passes", "rails", "findings"):
        report[name] = report[name][:2]
    facts = ("kernel", "limit.memlock", "rdma.devices", "mlx5_0:1.rate", "wheel.mooncake")
    report["facts"] = {name: report["facts"][name] for name in facts}
    report["launch"]["services"] = [["advertised", "10.0.0.1", True]]
    found = document(report)
    read = ("machine", "hosts", "services", "ports")
    found["answer"] = {name: found["answer"][name] for name in read}
    for row in found["findings"]:
        for name in ("evidence", "settings", "actions"):
            row.pop(name)
    return found


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
    shown(fleet)
