"""Folding, the text at every width, and the forms that other programs read."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Consequence, Evidence, Finding, Status
from preflight.base.shell import Line
from preflight.report.to_text import report_text
from preflight.verdict.report import (
    EXIT_CODES,
    FAIL_ON,
    NPD_BYTES,
    YES_OR_NO,
    Findings,
    Report,
    error_junit,
    exit_code,
    fold,
    protocol_line,
    refusal_line,
    report,
    report_junit,
)
from tests.tables import each_row

FAIL, UNKNOWN, WARN, PASS, SKIP = Status
ANY_TEXT = st.text(max_size=60)
FINDINGS = st.builds(
    Finding,
    st.sampled_from(["a.b", "memlock.limit", "page-size-one"]),
    st.sampled_from(list(Status)),
    st.text(min_size=1, max_size=30),
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
    ANY_TEXT,
    st.lists(st.builds(Evidence, ANY_TEXT, ANY_TEXT), max_size=2).map(tuple),
    ANY_TEXT,
)


def reported(findings: list[Finding], waivers: dict[str, str] | None = None) -> Report:
    consequences = {"a.b": Consequence.DIES_LATER, "memlock.limit": Consequence.WILL_NOT_START}
    return report(
        Findings(findings, consequences.get, lambda _: (Line("run this"),)),
        waivers or {},
        None,
        "/",
    )


def plain(text: str, colour: str) -> str:
    return text


def marked(text: str, colour: str) -> str:
    return f"\x1b[{len(colour)}m{text}\x1b[0m"


# What is unknown for one reason ----------------------------------------------------------------


# Folding -------------------------------------------------------------------------------------


@each_row(
    ("subjects", "folded"),
    [
        (["host"], "host"),
        (["rank 0", "rank 1", "rank 2"], "rank 0-2"),
        (["rank 10", "rank 9", "rank 7"], "rank 7,9-10"),
        (["mlx5_0 port 1", "mlx5_1 port 1"], "mlx5_0-1 port 1"),
        (["mlx5_0 port 1", "mlx5_1 port 2"], "mlx5_0 port 1, mlx5_1 port 2"),
        (["mlx5_0", "erdma_0"], "mlx5_0, erdma_0"),
        (["a 01", "a 02"], "a 01, a 02"),  # 1-2 would name others
        (["0000:3b:00.0", "0000:3b:00.1"], "0000:3b:00.0-1"),
        (["a", "b", "c", "d", "e", "f"], "a, b, c, d and 2 more"),
    ],
)
def test_subjects_fold(subjects: list[str], folded: str) -> None:
    assert fold(subjects) == folded


@pytest.mark.slow
@given(st.lists(FINDINGS, max_size=8), st.integers(40, 140), st.integers(-1, 1))
def test_the_law_of_rows_and_pages(findings: list[Finding], width: int, verbosity: int) -> None:
    """Folding loses no finding, a page no status that wants something; no control is printed."""
    shown = reported(findings)
    for finding in findings:
        assert any(
            finding.subject in row.subjects
            and (finding.check, finding.status) == (row.finding.check, row.finding.status)
            for row in shown.rows
        )
    assert sum(shown.counts.values()) == len(findings)
    text = report_text(shown, plain, width, verbosity)
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text) is None
    lines = report_text(shown, plain, 200, 0).splitlines()
    for status in (FAIL, UNKNOWN, WARN):
        wanting = any(finding.status is status for finding in findings)
        assert any(line.startswith(f"{status.value} ") for line in lines) is wanting


@pytest.mark.slow
@given(st.lists(FINDINGS, max_size=8), FINDINGS)
def test_a_further_finding_never_makes_it_milder(findings: list[Finding], more: Finding) -> None:
    order = [PASS, WARN, UNKNOWN, FAIL]
    before, after = reported(findings).verdict, reported([*findings, more]).verdict
    if any(finding.status is not SKIP for finding in findings):
        assert order.index(after) >= order.index(before)


# Text ----------------------------------------------------------------------------------------

LONG = Finding(
    "memlock.limit",
    FAIL,
    "rank 0",
    "8.00 MiB of 64.00 GiB that the runtime would hand on",
    "240.00 GiB for eight NICs",
    "8 NICs x (28.00 GiB L2 + 2.00 GiB segment)",
    "the first registration is refused and the server ends",
    (
        Evidence(
            "/proc/self/limits", "Max locked memory         8388608              8388608  bytes"
        ),
    ),
    "raise the limit where the container is started, not in it",
)


@pytest.mark.parametrize("verbosity", [-1, 0, 1])
def test_colour_changes_nothing_but_colour(verbosity: int) -> None:
    shown = reported([LONG._replace(status=status) for status in Status])
    coloured = report_text(shown, marked, 100, verbosity)
    assert "\x1b[" in coloured
    without = re.sub(r"\x1b\[\d+m", "", coloured)
    assert without == report_text(shown, plain, 100, verbosity)


# Protocols -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "codes"),  # pass, warn, fail, unknown
    [
        ("native", (0, 1, 2, 3)),
        ("nagios", (0, 1, 2, 3)),
        ("npd", (0, 0, 1, 2)),
        ("slurm-prolog", (0, 0, 1, 0)),
        ("k8s", (0, 0, 2, 3)),
    ],
)
def test_exit_codes_by_protocol(protocol: str, codes: tuple[int, ...]) -> None:
    assert tuple(exit_code(status, protocol) for status in (PASS, WARN, FAIL, UNKNOWN)) == codes


@pytest.mark.parametrize("protocol", YES_OR_NO)
def test_fail_on_takes_in_what_is_worse(protocol: str) -> None:
    no = {
        name: {status for status in EXIT_CODES if exit_code(status, protocol, name) != 0}
        for name in FAIL_ON
    }
    assert FAIL in no["fail"] <= no["unknown"] <= no["warn"]
    assert PASS not in no["warn"]


@pytest.mark.slow
@given(st.lists(FINDINGS, max_size=8))
def test_the_law_of_forms_for_programs(findings: list[Finding]) -> None:
    """Each protocol's one line keeps its form, and JUnit is XML, whatever the host says."""
    shown = reported(findings, {"page-size-one": "known"})
    npd, nagios, slurm = (protocol_line(shown, p) for p in ("npd", "nagios", "slurm-prolog"))
    assert npd is not None
    assert nagios is not None
    assert slurm is not None
    assert len(npd.encode()) <= NPD_BYTES
    assert npd.isascii()
    assert nagios.count("|") == 1
    assert re.search(r"\|fail=\d+ unknown=\d+ warn=\d+ pass=\d+ skip=\d+ ignored=\d+$", nagios)
    assert slurm.startswith("print ")
    assert "\n" not in npd + nagios + slurm
    suites = ElementTree.fromstring(report_junit(shown))
    assert len(suites.findall(".//testcase")) == len(shown.rows)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suites.attrib[name]) == len(suites.findall(f".//{tag}"))
    assert int(suites.attrib["failures"]) == len(shown.of(FAIL))
    assert int(suites.attrib["errors"]) == len(shown.of(UNKNOWN))


@given(ANY_TEXT)
def test_refusals_keep_the_form_too(message: str) -> None:
    npd, nagios = refusal_line(message, "npd") or "", refusal_line(message, "nagios") or ""
    assert 0 < len(npd.encode()) <= NPD_BYTES
    assert "|" not in nagios
    assert nagios.startswith("MOONCAKE UNKNOWN - ")
    assert refusal_line(message, "native") is None
    suites = ElementTree.fromstring(error_junit(message))
    assert len(suites.findall(".//error")) == 1
