"""What launches ask their host is known from it, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.root import Root
from preflight.inputs.written_launch import host_words
from preflight.launches.shell_script import read_script


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("$(hostname)", "node-1.site"), ("$(hostname -s)", "node-1"), ("$(nproc)", "6"),
        ("$(nvidia-smi -L | wc -l)", "2"), ("$(nvidia-smi --list-gpus 2>/dev/null | wc -l)", "2"),
        ("$((2 * $(nproc)))", "12"), ("$(hostname -I)", "$(hostname -I)"),
    ],
)  # fmt: skip
def test_the_few_substitutions_that_everybody_writes(
    tmp_path: Path, written: str, word: str
) -> None:
    for name, text in (
        ("proc/sys/kernel/hostname", "node-1.site\n"),
        ("sys/devices/system/cpu/online", "0-3,8-9\n"),
        ("proc/driver/nvidia/gpus/0000:01:00.0/information", ""),
        ("proc/driver/nvidia/gpus/0000:02:00.0/information", ""),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    words = host_words(Root(str(tmp_path)))
    reading = read_script(f"x {written}", "a.sh", {}, host_words=words)
    assert reading.commands[0].words[1].text == word


def test_a_host_that_does_not_say_leaves_it_open(tmp_path: Path) -> None:
    words = host_words(Root(str(tmp_path)))
    assert [words(text) for text in ("hostname", "nproc", "nvidia-smi -L | wc -l")] == [None] * 3
