"""``fleet merge`` as users and schedulers meet it: text, lists, JSON, page, exit codes."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preflight.base.usage_error import UsageError
from preflight.cli.main import run
from preflight.fleet.merge.command import AnswerOptions, prepare
from tests.fleet.merge_fleets import (
    Change,
    Report,
    altered,
    document,
    every,
    fails,
    fleet_reports,
    line,
    write_lines,
)
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/fleet-v1.schema.json").read_text())
CUT = '{"schema": "mooncake-preflight/check/v2", "version": "1"'
GOLDEN = ROOT / "tests/fleet/merge_64_nodes.txt"

Merge = Callable[..., tuple[int, str, str]]


@pytest.fixture
def merge(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Merge:
    """Runs the command; returns exit code, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "96")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: object) -> tuple[int, str, str]:
        code = run(["fleet", "merge", *map(str, words)])
        return code, *capsys.readouterr()

    return call


def quiet(report: Report) -> None:
    """Nothing but passes."""
    report.update(findings=[], status="pass")


def _lesser(report: Report) -> None:
    report["facts"] |= {f"mlx5_{at}.firmware": "28.38.1900" for at in range(8)}
    report["launch"]["segment_bytes"] = 32 << 30


def _narrow(report: Report) -> None:
    report["facts"] |= {"kernel": "5.15.0-91-generic"}
    report["facts"] |= {f"mlx5_{at}:1.mtu_bytes": 1024 for at in range(8)}
    for rail in report["rails"]:
        rail["mtu_bytes"] = 1024


def odd_fleet() -> list[Report]:
    """64 nodes: one whose memlock is too low, one of another delivery, one with another switch."""
    odd: dict[str, Change] = {"gpu017": fails, "gpu033": _lesser, "gpu050": _narrow}
    reports = fleet_reports("gpu[001-064]", odd)
    for report in reports:
        report["passes"] = [["gpu.driver", "host", "570.124.06"], ["rdma.port", "mlx5_0-7", ""]]
    return reports


def test_sixty_four_nodes_with_three_odd_ones(
    merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole text: one screen, the odd nodes first, every list of nodes folded."""
    lines = [line(report) for report in odd_fleet()]
    lines += [lines[3], lines[63][:1500]]
    del lines[63]
    monkeypatch.chdir(tmp_path)
    Path("reports.jsonl").write_text("".join(f"{each}\n" for each in lines))
    code, out, err = merge("--expect", "gpu[001-064]", "reports.jsonl")
    assert (code, err) == (2, "")
    assert out == GOLDEN.read_text()
    assert max(map(len, out.splitlines())) <= 96
    assert len(out.splitlines()) < 60


@pytest.mark.parametrize(
    ("change", "more", "code"),
    [
        (None, "", 0),
        (altered(kernel="5.15.0"), "", 1),
        (fails, "", 2),
        (None, CUT, 3),
        (fails, CUT, 2),
        (altered(kernel="5.15.0"), CUT, 3),
        (fails, "a line of a log", 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    change: Change | None, more: str, code: int, merge: Merge, tmp_path: Path
) -> None:
    reports = every(quiet)
    if change is not None:
        change(reports[2])
    place = tmp_path / "all.jsonl"
    place.write_text("".join(f"{line(each)}\n" for each in reports) + more)
    found, out, _ = merge(place)
    assert found == code
    word = {0: "PASS", 1: "WARN", 2: "FAIL", 3: "UNKNOWN"}[code]
    assert re.match(rf"{word}: of [45] nodes ", out)
    assert merge("-q", place)[1] == out.splitlines()[0] + "\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--list", "failing"], "gpu[017,050,065-066]\n"),
        (["--list", "failing", "--list-format", "lines"], "gpu017\ngpu050\ngpu065\ngpu066\n"),
        (["--list", "passing"], "gpu[001-016,018-049,051-064]\n"),
    ],
)
def test_lists_are_what_schedulers_read_and_nothing_else(
    options: list[str], expected: str, merge: Merge, tmp_path: Path
) -> None:
    """Every node that is known or expected is in one of both lists."""
    place = write_lines(tmp_path / "all.jsonl", odd_fleet())
    assert merge("--expect", "gpu[001-066]", *options, place) == (2, expected, "")
    whole = write_lines(tmp_path / "whole.jsonl", every(quiet))
    assert ("passing" in options) is bool(merge(*options, whole)[1])


def test_the_object_is_as_its_schema_says_and_holds_every_finding(
    merge: Merge, tmp_path: Path
) -> None:
    reports = odd_fleet()
    place = write_lines(tmp_path / "all.jsonl", reports)
    code, out, _ = merge("--json", "--expect", "gpu[001-065]", place)
    found = json.loads(out)
    valid(found, SCHEMA)
    assert (code, found["exit_code"], found["status"]) == (2, 2, "fail")
    ids = {one["check"] for one in found["findings"]}
    assert ids >= {check for check, _, _ in reports[0]["passes"]}
    assert ids >= {row["check"] for report in reports for row in report["findings"]}
    assert {one["fact"] for one in found["answer"]["drift"]} == {
        "kernel",
        "mlx5_0-7.firmware",
        "mlx5_0-7:1.mtu_bytes",
    }
    assert found["answer"]["pool"]["total_bytes"] == (63 * 64 + 32) << 30
    counts = [
        found["answer"]["by_status"][status]["count"]
        for status in ("fail", "unknown", "warn", "pass")
    ]
    assert sum(counts) == found["answer"]["nodes"] == 65


def test_every_form_of_input_gives_the_same_answer(
    merge: Merge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file a node, JSON lines, indented objects one after another, a list, standard input."""
    reports = odd_fleet()[14:20]
    folder = tmp_path / "folder"
    folder.mkdir()
    for report in reports:
        (folder / f"{report['node']}.json").write_text(line(report))
    indented = tmp_path / "indented"
    indented.write_text("\n".join(json.dumps(document(report), indent=2) for report in reports))
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(list(map(document, reports)), indent=1))
    lines = Path(write_lines(tmp_path / "all.jsonl", reports))
    answers = [merge("--json", place) for place in (folder, indented, listed, lines)]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.read_bytes())))
    answers.append(merge("--json", "-"))
    assert {code for code, _, _ in answers} == {2}
    assert {out for _, out, _ in answers} == {answers[0][1]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "REPORTS"),
        (["--expect", "gpu[1-", __file__], "not a set of nodes"),
        (["--list", "failing", "--json", "x"], "--list prints nodes alone"),
        (["--format", "html", "--json", "x"], "both take standard output"),
        (
            ["--format", "html", "--output", "/nowhere/page.html", __file__],
            "No such file or directory",
        ),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(words: list[str], said: str, merge: Merge) -> None:
    code, _, err = merge(*words)
    assert code == 64
    assert said in err
    assert "Traceback" not in err


def test_a_path_that_is_not_there_is_named_and_fatal_only_alone(
    merge: Merge, tmp_path: Path
) -> None:
    place = write_lines(tmp_path / "all.jsonl", every(quiet))
    code, out, _ = merge(place, tmp_path / "missing.json")
    assert code == 3
    assert "missing.json: cannot be read: No such file or directory" in " ".join(out.split())
    code, out, err = merge(tmp_path / "missing", tmp_path / "too")
    assert (code, out, "no such file or folder" in err) == (64, "", True)
    assert run(["fleet", "rails", str(tmp_path / "missing")]) == 64


@pytest.mark.slow
def test_the_page_shows_every_node_and_runs_nothing_of_theirs(merge: Merge, tmp_path: Path) -> None:
    reports: list[Report] = odd_fleet()
    evil = "<script>alert(1)</script>\x1b[31m"
    reports[5]["findings"][0] |= {"text": evil, "have": evil}
    reports[6]["facts"]["kernel"] = evil
    place = write_lines(tmp_path / "all.jsonl", reports)
    page = tmp_path / "page.html"
    assert merge("--format", "html", "--output", page, place)[0] == 2
    written: Any = page.read_text()
    assert "<script>alert" not in written
    assert "\x1b" not in written
    assert all(f">{report['node']}<" in written for report in reports)
    assert 'class="sortable"' in written
    for words in ((), ("-q",), ("-v",)):  # a whole document, that no text follows
        code, printed = merge("--format", "html", *words, place)[:2]
        assert (code, printed.startswith("<!DOCTYPE html>")) == (2, True)
        assert printed.endswith("</html>\n")


def test_what_moves_the_cursor_is_written_out(merge: Merge, tmp_path: Path) -> None:
    reports = every(quiet)
    reports[1]["facts"]["kernel"] = "6.8\x1b[2J\n\u202e"
    reports[1]["launch"]["masters"] = ["\x1b]0;x:1"]
    place = write_lines(tmp_path / "all.jsonl", reports)
    _, out, _ = merge("-v", place)
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


def test_a_page_that_cannot_be_written_is_said_before_a_node_is_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "none/page.html")
    with pytest.raises(UsageError, match=f"--output {path}: No such file"):
        prepare(AnswerOptions(None, [("html", path)], "never", 0))
    assert not (tmp_path / "none").exists()
    page = str(tmp_path / "page.html")
    prepare(AnswerOptions(str(tmp_path / "made"), [("html", page)], "never", 0))
    assert (tmp_path / "made").is_dir()
