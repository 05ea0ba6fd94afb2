"""The recorded host that ships: ``--root demo:h800``, with the launch that it is to run."""

from __future__ import annotations

import json

import pytest

from checks.capture.capture import CaptureError, open_root
from preflight.cli.main import run
from preflight.cli.sizing import run as run_sizing
from tests.paths import ROOT


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    assert run(["check", "--root", "demo:h800", "--json", "--timeout", "600"]) == 2
    found: dict[str, set[str]] = {}
    for each in json.loads(capsys.readouterr().out)["findings"]:
        found.setdefault(each["status"], set()).add(each["check"])
    return found


def test_it_has_the_faults_that_the_tour_tells_of_and_nothing_unread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unknown: a check reads what was not recorded; tools/write_demo_host.py records it anew."""
    found = findings(capsys)
    assert found["fail"] == {"memlock.limit", "hugetlb.shortage", "hugetlb.node-shortage"}
    assert found["warn"] == {"hugetlb.after-reboot"}
    assert "unknown" not in found


def test_sizing_takes_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--tp-size 8 --hicache-size 30gb --global-segment-size 64gb --root demo:h800"
    assert run_sizing(flags.split()) == 2
    assert "2 MiB pages on node 1" in capsys.readouterr().out


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(CaptureError, match=r"demo:h900: no such recorded host: .* demo:h800"):
        open_root("demo:h900")
    with pytest.raises(CaptureError, match="no such recorded host"):
        open_root("demo:../demo/h800")


def test_it_is_small_and_goes_with_the_wheel() -> None:
    path = ROOT / "checks" / "capture" / "demo" / "h800.tar.gz"
    assert path.stat().st_size < 50_000
    assert "capture/demo/*.tar.gz" in (ROOT / "pyproject.toml").read_text()
