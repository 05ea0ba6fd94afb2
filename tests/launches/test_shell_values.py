"""Values in a script that nobody writes there: sums, placeholders of a guide, words of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.root import Root
from preflight.command_inputs.written_launch import host_words
from preflight.launches.shell_script import read_script
from tests.tables import each_row


@each_row(
    ("sums", "word"),
    [
        *(
            (sums, "512")
            for sums in (
                "if (( OPEN % SET != 0 )); then echo no; exit 2; fi", 'let "OTHER = OPEN + SET"',
                "(( OPEN <= SET || SET >= OPEN )) || echo no", "N=$((OPEN + SET))",
                "for ((i = SET; i < OPEN; i++)); do echo $i; done", "(( STEPS[0] > OPEN ))",
            )
        ),
        *(
            (sums, "not known")
            for sums in (
                "(( SET = OPEN + 1 ))", "(( OPEN + SET++ ))", "(( OPEN, --SET ))",
                "(( SET <<= OPEN ))", "N=$((SET *= OPEN))", "(( STEPS[0] = OPEN ))",
                "for ((SET = OPEN; SET < 9; SET++)); do echo; done",
            )
        ),
    ],
)  # fmt: skip
def test_a_sum_that_is_not_known_leaves_what_it_only_reads(sums: str, word: str) -> None:
    """Nobody sets OPEN."""
    shown = "${STEPS[0]}" if "STEPS" in sums else "$SET"
    text = f'SET=512\nSTEPS=(512 2)\n{sums}\nserve "{shown}"'
    last = read_script(text, "launch.sh", {}).commands[-1].words[-1]
    assert ("not known" if last.unresolved else last.text) == word


def words(text: str) -> list[tuple[str, tuple[str, ...]]]:
    reading = read_script(text, "launch.sh", {})
    return [(word.text, word.unresolved) for word in reading.commands[-1].words[1:]]


@each_row(
    ("word", "name"),
    [
        ("<model_path>\n", "<model_path>"),
        ("--host=<machine-ip>\n", "<machine-ip>"),
        ("<ip>:5000 --tp 8\n", "<ip>"),
        ("--dist-init-addr=<node0 ip>:20000\n", "<node0 ip>"),
        ('"<your_ip>"\n', "<your_ip>"),
        ("'<your prefill ip>'\n", "<your prefill ip>"),
        ('"< your models dir >"\n', "< your models dir >"),
        ('--nic="<NIC_NAME>"\n', "<NIC_NAME>"),
    ],
)
def test_a_placeholder_is_not_set(word: str, name: str) -> None:
    found = words(f"serve {word}")[0]
    assert found[1] == (name,)
    assert found[0] == word.partition(" --tp")[0].strip().replace('"', "").replace("'", "")


@pytest.mark.parametrize("word", ["<think>", "<tool_call>", "<|im_end|>", "<secret>", "a <path> b"])
def test_what_a_program_gets_in_brackets(word: str) -> None:
    assert words(f'serve --stop "{word}"\n')[1] == (word, ())


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
