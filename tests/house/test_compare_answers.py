"""tools/compare_answers.py: what differs is told, what is allowed says why, equals are equal."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
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
# A version with one module, which answers every command alike. calls: what would leak.
PROGRAM = """
import json, sys
calls = []
def program():
    calls.append(1)
    host, launch = sys.argv[sys.argv.index("--root") + 1], sys.argv[-1]
    found = {"check": "memlock.limit", "subjects": [{"name": launch}], "have": HAVE, "text": TEXT}
    print(json.dumps({"version": VERSION, "calls": len(calls), "findings": [found]}))
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


def compare(*words: object) -> tuple[int, str, str]:
    command = [sys.executable, str(TOOL), "--jobs", "1", *(str(word) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def found(*words: object) -> tuple[int, dict[str, Any]]:
    code, out, err = compare("--json", *words)
    assert not err, err
    return code, json.loads(out)


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
    code, text, _ = compare("--old", old, "--new", new, "--keep", corpus, "--sample", 1)
    assert code == 1
    assert "old: 8 MiB of hosts/h0\n  new: 9 MiB of hosts/h0" in text
    assert "6 differences of answers, 0 of wording" in text


def test_what_an_old_tree_answered_is_kept(tmp_path: Path, old: Path, corpus: Path) -> None:
    """Of these very files: once they are changed, it is asked anew."""
    words = ("--keep", corpus, "--only", "check")
    new = version(tmp_path / "new")
    assert found("--old", old, "--new", new, *words)[0] == 0
    for kept in corpus.glob("answers/*/*"):
        text = zlib.decompress(kept.read_bytes()).replace(b"8 MiB", b"7 MiB")
        kept.write_bytes(zlib.compress(text))
    code, answer = found("--old", old, "--new", new, *words)
    assert (code, answer["differences"][0]["old"]) == (1, "7 MiB of hosts/h0")
    (old / "fake.py").write_text((old / "fake.py").read_text() + "\n")
    assert found("--old", old, "--new", new, *words)[0] == 0


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


def test_nothing_of_a_request_is_left_for_the_next(old: Path, corpus: Path) -> None:
    worker = ROOT / "tools" / "comparing" / "worker.py"
    arguments = ["check", "--root", "/", "x"]
    request = {"program": "mooncake-preflight", "arguments": arguments, "limit_seconds": 9}
    done = subprocess.run(
        [sys.executable, str(worker), str(old)],
        input=f"{json.dumps(request)}\n" * 2,
        env={"PYTHONPATH": str(old)},
        capture_output=True,
        text=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [json.loads(answer["out"])["calls"] for answer in answers] == [1, 1]
    assert [answer["exit"] for answer in answers] == [2, 2]


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


TESTS = '''
from dataclasses import dataclass, replace
import pytest

@dataclass(frozen=True)
class SyntheticHost:
    nodes: int = 1

def build_host(path, host):
    if host.nodes > 8:
        raise ValueError("too many")
    (path / "nodes").write_text(str(host.nodes))

def two() -> SyntheticHost:
    return SyntheticHost(2)

LAUNCH = "python3 -m sglang.launch_server --model-path m --tp 2"

@pytest.mark.parametrize("text", ["export A=1\\nmooncake_master --port 1\\n", "sglang is a word"])
def test_one(tmp_path, text):
    """A python3 -m sglang.launch_server in a docstring is no launch."""
    host = replace(two(), nodes=3)
    tall = LAUNCH + " --page-size 64"
    assert f"{tmp_path}: sglang serve x" in text
    other = replace(two(), nodes=len(text))
    refused = SyntheticHost(9)
'''


def test_hosts_and_launches_are_found_in_the_tests(tmp_path: Path, old: Path) -> None:
    """Constants, parameters, expressions and functions of no argument; the rest has a reason."""
    tree = version(tmp_path / "tree")
    (tree / "tests" / "launches").mkdir(parents=True)
    (tree / "tests" / "launches" / "a.sh").write_text("sglang serve m\n")
    (tree / "tests" / "__init__.py").write_text("")
    (tree / "tests" / "test_it.py").write_text(TESTS)
    (tree / "tests" / "test_not.py").write_text(
        "import pytest\npytest.skip('no', allow_module_level=True)\n"
    )
    kept = tmp_path / "kept"
    words = ("--old", old, "--new", old, "--corpus", tree, "--keep", kept, "--only", "sizing")
    code, answer = found(*words)
    assert code == 0
    index = json.loads((kept / "index.json").read_text())
    hosts = {(kept / "hosts" / pair["host"] / "nodes").read_text() for pair in index["pairs"]}
    assert hosts == {"2", "3"}
    launches = {pair["launch"]: pair["words"] for pair in index["pairs"]}
    texts = {
        " ".join(words[1:]) if words[0] == "--" else (kept / words[0]).read_text().strip()
        for words in launches.values()
    }
    server = "python3 -m sglang.launch_server --model-path m --tp 2"
    assert texts == {
        *("sglang serve m", server, f"{server} --page-size 64"),
        "export A=1\nmooncake_master --port 1",
    }
    skipped = answer["skipped"]
    assert "no" in skipped["tests.test_not"]
    assert any("too many" in reason for reason in skipped.values())
    assert "no such folder" in skipped["captures"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--new", "/nowhere"), "/nowhere: no such file or folder"),
        (("--allow", "UNEXPLAINED"), "has a reason"),
        (("--new", "EMPTY"), "cannot be run"),
        (("--sample", "-1"), "--sample -1"),
    ],
)
def test_what_cannot_be_compared_is_no_difference(
    tmp_path: Path, old: Path, corpus: Path, words: tuple[str, str], message: str
) -> None:
    (tmp_path / "allow.toml").write_text("[[difference]]\npath = 'have'\n")
    (tmp_path / "empty").mkdir()
    places = {"UNEXPLAINED": tmp_path / "allow.toml", "EMPTY": tmp_path / "empty"}
    given: list[object] = [places.get(word, word) for word in words]
    code, out, err = compare("--old", old, "--new", old, "--keep", corpus, *given)
    assert (code, out) == (2, "")
    assert message in err
