"""tools/compare_answers.py: what differs is told, what is allowed says why, equals are equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from comparing.differences import differences

from tests.paths import ROOT

TOOL = ROOT / "tools" / "compare_answers.py"
PAIRS = 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="the tool reads TOML: 3.11"),
]

PROJECT = """
[project.scripts]
mooncake-hicache-sizing = "fake:program"
mooncake-preflight = "fake:program"
"""
# A version with one module, which answers every command alike.
PROGRAM = """
import json, sys
def program():
    host, launch = sys.argv[sys.argv.index("--root") + 1], sys.argv[-1]
    found = {"check": "memlock.limit", "subjects": [{"name": launch}], "have": HAVE, "text": TEXT}
    print(json.dumps({"version": VERSION, "findings": [found]}))
    sys.exit(2)
"""


def version(
    folder: Path, have: str = "'8 MiB of ' + host", text: str = "'too little'", number: int = 1
) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    program = PROGRAM.replace("HAVE", have).replace("TEXT", text).replace("VERSION", str(number))
    (folder / "fake.py").write_text(program)
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return version(tmp_path / "old")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Hosts and launches as they are kept."""
    folder = tmp_path / "kept"
    folder.mkdir()
    pairs = [
        {"host": f"h{n}", "launch": f"l{n}", "kind": "launch", "words": [f"launches/l{n}/x.sh"]}
        for n in range(PAIRS)
    ]
    (folder / "index.json").write_text(json.dumps({"pairs": pairs, "skipped": {"it": "absent"}}))
    return folder


def found(*words: object) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, str(TOOL), "--jobs", "1", "--json", *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_equal_trees_have_no_differences(tmp_path: Path, old: Path, corpus: Path) -> None:
    new = version(tmp_path / "new", number=2)
    code, answer = found("--old", old, "--new", new, "--keep", corpus)
    assert (code, answer["differences"]) == (0, [])
    assert (answer["pairs"], answer["hosts"], answer["launches"]) == (PAIRS, PAIRS, PAIRS)
    assert answer["requests"] == PAIRS * 6
    assert answer["exit_codes_of_old"]["plan"] == {"2": PAIRS * 2}
    assert answer["skipped"] == {"it": "absent"}


def test_a_changed_number_is_one_row(tmp_path: Path, old: Path, corpus: Path) -> None:
    new = version(tmp_path / "new", "'9 MiB of ' + host")
    code, answer = found("--old", old, "--new", new, "--keep", corpus, "--only", "check")
    assert code == 1
    (row,) = answer["differences"]
    assert (row["command"], row["path"]) == ("check", "findings[memlock.limit].have")
    assert (row["old"], row["new"]) == ("8 MiB of hosts/h0", "9 MiB of hosts/h0")
    assert (row["count"], row["wording"]) == (PAIRS, False)
    assert row["example"].startswith("mooncake-preflight check --json")


def test_an_allowed_difference_says_why(tmp_path: Path, old: Path, corpus: Path) -> None:
    new = version(tmp_path / "new", "'9 MiB of ' + host")
    allow = tmp_path / "allow.toml"
    allow.write_text(
        "[[difference]]\ncommand = '^(check|fit)$'\npath = 'have$'\nnew = '^9 MiB'\n"
        "reason = 'it was read wrongly'\n"
    )
    words = ("--old", old, "--new", new, "--keep", corpus, "--allow", allow)
    code, answer = found(*words, "--only", "check", "--only", "fit")
    assert (code, answer["differences"]) == (0, [])
    assert answer["allowed"] == [{"reason": "it was read wrongly", "count": 2 * PAIRS}]
    code, answer = found(*words, "--only", "sizing")
    assert (code, answer["allowed"][0]["count"]) == (1, 0)


X, Y = [{"name": "x"}], [{"name": "y"}]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([], [{"check": "a", "subjects": X}], [("f[a]", "(absent)")]),
        (
            [{"check": "a", "subjects": X, "n": 1}],
            [{"check": "a", "subjects": Y, "n": 1}],
            [("f[a].subjects[x]", '{"name": "x"}'), ("f[a].subjects[y]", "(absent)")],
        ),
        (
            [{"check": "a", "subjects": X}, {"check": "b", "subjects": X}],
            [{"check": "b", "subjects": X}, {"check": "a", "subjects": X}],
            [("f (order)", "a x 1; b x 1")],
        ),
        (
            [{"check": "a", "subjects": X}] * 2,
            [{"check": "a", "subjects": X}],
            [("f[a]", '{"check": "a", "subjects": [{"name": "x"}]}')],
        ),
        (["p", "q"], ["q"], [("f[]", "p")]),
        ([1], [2], [("f[]", "1")]),
        ([1], [True], [("f[]", "1")]),
        ([{"n": None}], [{}], [("f[].n", "null")]),
        ([{"id": "a", "n": {"bytes": 1}}], [{"id": "a", "n": 1}], [("f[a].n", '{"bytes": 1}')]),
    ],
)
def test_where_answers_differ(
    old: list[Any], new: list[Any], expected: list[tuple[str, str]]
) -> None:
    """Entries of a list are told apart by what they are about, and not by where they stand."""
    sides = [{"exit": 0, "out": json.dumps({"f": side}), "err": ""} for side in (old, new)]
    assert [(one.path, one.old) for one in differences(*sides)] == expected
    assert list(differences(sides[0], sides[0])) == []
