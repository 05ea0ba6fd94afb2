"""What a sum does to the variables in it, also where nobody knows what it comes to."""

from __future__ import annotations

from preflight.launches.shell_script import read_script
from tests.tables import each_row

# In front of each SET is 512 and STEPS an array of two; nobody sets OPEN.
BEFORE = "SET=512\nSTEPS=(1 2)\n"


def last_word(text: str) -> str:
    reading = read_script(BEFORE + text, "launch.sh", {})
    word = reading.commands[-1].words[-1]
    return "not known" if word.unresolved else word.text


@each_row(
    ("sums", "word"),
    [
        ("if (( OPEN % SET != 0 )); then echo no; exit 2; fi\n", "512"),
        ("(( OPEN == SET )) && echo same\n", "512"),
        ("(( OPEN <= SET || SET >= OPEN )) || echo no\n", "512"),
        ("if (( OPEN > (SET + 1) * 2 )); then echo no; fi\n", "512"),
        ("(( OTHER = OPEN + SET ))\n", "512"),
        ('let "OTHER = OPEN + SET"\n', "512"),
        ("N=$((OPEN + SET))\n", "512"),
        ("for ((i = SET; i < OPEN; i++)); do echo $i; done\n", "512"),
        ("(( SET = OPEN + 1 ))\n", "not known"),
        ("(( SET += OPEN ))\n", "not known"),
        ("(( OPEN + SET++ ))\n", "not known"),
        ("(( OPEN, --SET ))\n", "not known"),
        ("(( SET <<= OPEN ))\n", "not known"),
        ('let "SET = OPEN * 2"\n', "not known"),
        ("N=$((SET *= OPEN))\n", "not known"),
        ("(( SET = $(cat f) ))\n", "not known"),
        ("for ((SET = OPEN; SET < 9; SET++)); do echo; done\n", "not known"),
    ],
)
def test_a_sum_that_is_not_known_leaves_what_it_only_reads(sums: str, word: str) -> None:
    assert last_word(sums + 'serve "$SET"') == word


def test_a_sum_that_is_not_known_leaves_no_element_that_it_may_set() -> None:
    assert last_word('(( STEPS[0] = OPEN ))\nserve "${STEPS[0]}"') == "not known"
    assert last_word('(( STEPS[0] > OPEN ))\nserve "${STEPS[0]}"') == "1"
