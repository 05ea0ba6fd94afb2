"""What a guide leaves to its reader is not set, however it is written; other words stand."""

from __future__ import annotations

import pytest

from preflight.launches.shell_script import read_script
from tests.tables import each_row


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


def test_the_elements_of_an_array_that_a_reader_fills_in() -> None:
    text = "P_IP=('<your prefill ip1>' '<your prefill ip2>')\nserve --host ${P_IP[1]} --port 1\n"
    assert words(text)[1:3] == [("<your prefill ip2>", ("<your prefill ip2>",)), ("--port", ())]


@pytest.mark.parametrize("word", ["<think>", "<tool_call>", "<|im_end|>", "<secret>", "a <path> b"])
def test_what_a_program_gets_in_brackets(word: str) -> None:
    assert words(f'serve --stop "{word}"\n')[1] == (word, ())


def test_files_to_read_and_to_write_are_no_words() -> None:
    assert words("serve a <in >out\n") == [("a", ())]
    assert words("serve a <in>out\n") == [("a", ())]
