"""What is printed: words that a shell reads back, and text that a terminal shows as it is."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Fill
from preflight.base.output import painter, shown
from preflight.base.shell import (
    append,
    comment,
    is_hidden,
    line,
    posix_assignment,
    quote,
    visible,
    write,
)
from tests.builders.examples import fewer

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def ran(script: str, shell: str = "bash") -> str:
    done = subprocess.run([shell, "-c", script], capture_output=True, check=True)
    return done.stdout.decode()


@pytest.mark.slow
@fewer(20)
@given(st.lists(WORDS, max_size=4))
def test_words_are_read_back_by_bash(words: list[str]) -> None:
    """On one line, on which nothing is hidden."""
    said = line(["printf", "%s\\0", *words, "end"])
    assert said.isprintable()
    assert ran(said).split("\0")[:-1] == [*words, "end"]


@pytest.mark.slow
@fewer(20)
@given(WORDS)
def test_an_assignment_is_read_back_by_any_shell(value: str) -> None:
    said = posix_assignment("MC_X", value)
    assert not any(map(is_hidden, said))
    assert ran(f"{said}\nprintf '%s.' \"$MC_X\"", "sh") == f"{value}."


@given(WORDS)
def test_a_comment_is_one_line_that_no_shell_runs(text: str) -> None:
    said = comment(text)
    assert said.startswith("# ")
    assert len(said.splitlines()) == 1
    assert not any(map(is_hidden, said))


def test_what_only_the_reader_knows_is_filled_in_where_it_is_typed() -> None:
    assert line(("chown", Fill.USER_ID, "/srv/my data"), "sudo ") == (
        "sudo chown $(id -u) '/srv/my data'"
    )


@pytest.mark.slow
def test_a_file_is_written_and_added_to(tmp_path: object) -> None:
    place = f"{tmp_path}/a b"
    ran(write("1 2", place))
    ran(append(("x $(y)",), place))
    ran(append(("[z]", "q"), place))
    with open(place) as file:
        assert file.read() == "1 2\nx $(y)\n[z]\nq\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain, ü, 文\tand\nlines", "plain, ü, 文\tand\nlines"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("user\u202etxt", "user\\u202etxt"),
        ("line\u2028end", "line\\u2028end"),
        ("half \udc80", "half \\udc80"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, said: str) -> None:
    assert shown(text) == said
    assert visible(text.replace("\n", " ").replace("\t", " ")) == said.replace("\n", " ").replace(
        "\t", " "
    )


def test_own_colours_stay_where_they_are_asked_for() -> None:
    assert shown(painter("always")("FAIL", "red")) == "\x1b[31m\x1b[1mFAIL\x1b[0m"
    assert painter("never")("FAIL", "red") == "FAIL"
    # What hides text, moves the cursor or is coloured by somebody else is text.
    assert shown("\x1b[8mhidden\x1b[2K\x1b[31m") == "\\x1b[8mhidden\\x1b[2K\\x1b[31m"


def test_words_without_need_stay_as_they_are() -> None:
    assert quote("vm.nr_hugepages=5") == "vm.nr_hugepages=5"
