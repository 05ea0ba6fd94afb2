"""What upstream has open is a row each, in no release yet, and looked for in the next one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from checks.releases.mooncake import NEWEST_KNOWN as NEWEST_MOONCAKE
from checks.releases.open_changes import OPEN_CHANGES, OpenChange, open_changes
from checks.releases.sglang import NEWEST_KNOWN as NEWEST_SGLANG
from preflight.sizing.chosen_releases import choose_mooncake, choose_sglang
from tests.paths import ROOT


@pytest.fixture(scope="module")
def add_release() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module("add_release")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_only_a_release_that_is_newer_than_known_may_have_them() -> None:
    for choose, program, newest, newer in (
        (choose_mooncake, "mooncake", NEWEST_MOONCAKE, "0.99.0"),
        (choose_sglang, "sglang", NEWEST_SGLANG, "0.99.0"),
    ):
        assert choose(newest)[2] == ()
        (note,) = choose(newer)[2]
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
