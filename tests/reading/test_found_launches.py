"""Launches of others, which are not kept here, hold against what a reader sees in them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.reading.found_launches import FOUND, differences

# The folder in which they lie.
FOLDER = os.environ.get("MOONCAKE_PREFLIGHT_LAUNCHES", "")
NOT_YET = {"e-py-test-disagg-hicache.py": "servers that Python starts are not read"}


@pytest.mark.skipif(not FOLDER, reason="MOONCAKE_PREFLIGHT_LAUNCHES names no folder of launches")
@pytest.mark.parametrize("name", FOUND)
def test_a_launch_of_others(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name in NOT_YET:
        pytest.xfail(NOT_YET[name])
    truth, unread = FOUND[name]
    (tmp_path / "host" / "proc").mkdir(parents=True)
    code = run(["read", "--json", "--root", str(tmp_path / "host"), str(Path(FOLDER, name))])
    answer = json.loads(capsys.readouterr().out)
    if code == 64:
        assert not truth
        return
    found = [
        (p["program"], p["count"], {key: each["value"] for key, each in p["settings"].items()})
        for p in answer["processes"]
    ]
    assert differences(found, truth) == []
    assert (code == 3) is unread


def test_the_table_tells_a_program_that_is_missing_or_too_much() -> None:
    """Of the table itself: what it is held against can fail."""
    one = ("mooncake_master", 1, {"port": 1})
    assert differences([one], [("mooncake_master", 1, {"port": 1})]) == []
    assert differences([one], [("mooncake_master", 2, {})]) == ["mooncake_master {}: 1 of 2"]
    assert differences([one, one], [one]) == ["mooncake_master: 1 too many"]
    assert differences([one], [("mooncake_master", 1, {"port": 2})]) != []
