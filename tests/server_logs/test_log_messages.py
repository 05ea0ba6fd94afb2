"""The tool that says which messages of a release the tables know."""

from __future__ import annotations

import sys
from pathlib import Path

import add_release
import log_messages
import pytest

Out = pytest.CaptureFixture[str]
PYTHON = """
def f(x):
    logger.info("Failed to be an error")
    logger.warning("Write page to storage: %s pages failed.", x)
    raise ValueError(f"--frobnicate {x} has " + "no meaning here")
"""


def test_a_message_is_known_left_out_or_new(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mooncake"
    folder.mkdir()
    (folder / "a.py").write_text(PYTHON.replace("--frobnicate", "the ibgda"))
    (folder / "store.so").write_bytes(
        b"\0Failed to open segment \0/usr/lib/x failed\0_ZN8mooncake\0ok then all\0{} failed to x\0"
        b"Cannot frob the whatsit\0"
    )
    monkeypatch.setattr(sys, "argv", ["log_messages.py", "mooncake", str(tmp_path), "--all"])
    assert log_messages.main() == 1
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines() if "\t" in line]
    said = {text: why for why, _, text in rows}
    assert len(said) == 4  # sentences of faults, with gaps for values
    assert said["Write page to storage: .. pages failed."] == "known"
    assert said["Failed to open segment"] == "known"
    assert said["the ibgda .. has no meaning here"].startswith("tensors and experts")
    assert said["Cannot frob the whatsit"] == "new"


def test_what_is_left_out_has_a_reason_and_new_words_are_in_no_rule() -> None:
    """A release that prints what no other did is reported, whichever file has it."""
    left_out = log_messages.LeftOut()
    assert all(why for _, why in left_out.rules)
    assert all(left_out.texts.values())
    for name in ("mooncake/engine.so", "mooncake/mooncake_master", "mooncake/_store.so"):
        assert not left_out.why(name, "Failed to warble the frobnitz of the peer")
    for name in ("managers/cache_controller.py", "mem_cache/storage/mooncake_store/store.py"):
        assert not left_out.why(f"sglang/srt/{name}", "The frobnitz cannot be warbled: ..")


def test_a_made_up_release_is_reported_by_add_release(tmp_path: Path, capsys: Out) -> None:
    folder = tmp_path / "sglang/srt/managers"
    folder.mkdir(parents=True)
    (folder / "cache_controller.py").write_text('raise ValueError("The frobnitz is not warbled")')
    add_release.say_messages("sglang", tmp_path)
    assert "cache_controller.py: The frobnitz is not warbled" in capsys.readouterr().out
