"""What is printed: words that a shell reads back, and text that a terminal shows as it is."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Fill
from preflight.base.one_line import shortened, with_last_name, with_short_paths
from preflight.base.output import painter, terminal_text
from preflight.base.shell import append, comment, is_hidden, line, posix_assignment, visible, write
from tests.builders.examples import fewer
from tests.tables import each_row

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


@each_row(
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
    assert terminal_text(text) == said
    blanks = str.maketrans("\n\t", "  ")
    assert visible(text.translate(blanks)) == said.translate(blanks)


def test_own_colours_stay_where_they_are_asked_for() -> None:
    assert terminal_text(painter("always")("FAIL", "red")) == "\x1b[31m\x1b[1mFAIL\x1b[0m"
    assert painter("never")("FAIL", "red") == "FAIL"
    # What hides text, moves the cursor or is coloured by somebody else is text.
    assert terminal_text("\x1b[8mhidden\x1b[2K\x1b[31m") == "\\x1b[8mhidden\\x1b[2K\\x1b[31m"


def test_a_shortened_text_ends_with_a_whole_word_where_it_has_one() -> None:
    assert shortened("need 120000 pages", 17) == "need 120000 pages"
    assert shortened("need 120000 pages", 16) == "need 120000 ..."
    assert shortened("need 120000 pages", 12) == "need ..."
    assert shortened("120000", 5) == "12..."


def test_a_long_path_keeps_its_end_and_what_stands_around_it() -> None:
    text = "server (/srv/production/prefill/v3/launch.sh:4): http://10.0.0.1:8080/a is not known"
    assert with_short_paths(text, 60) == text
    assert (
        with_short_paths(text, 24)
        == "server (.../v3/launch.sh:4): http://10.0.0.1:8080/a is not known"
    )
    assert with_short_paths("a/b " * 9, 4) == "a/b " * 9


@given(st.text(alphabet="ab/ (", max_size=60), st.integers(4, 30))
def test_a_text_with_short_paths_has_none_that_is_longer(text: str, most: int) -> None:
    found = with_short_paths(text, most)
    assert all(len(word) <= most for word in found.replace("(", " ").split() if "/" in word)
    assert found == text or len(found) < len(text)


def test_a_path_that_is_known_is_called_by_its_last_name() -> None:
    text = "/srv/a/launch.sh:4 rank 0: /srv/a/launch.sh.old, ./srv/a/launch.sh, (/srv/a/launch.sh)"
    assert (
        with_last_name(text, "/srv/a/launch.sh")
        == "launch.sh:4 rank 0: /srv/a/launch.sh.old, ./srv/a/launch.sh, (launch.sh)"
    )
    assert with_last_name("launch.sh:4", "launch.sh") == "launch.sh:4"
    assert with_last_name("a/b/", "a/b/") == "a/b/"
