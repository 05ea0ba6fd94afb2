"""``mooncake-preflight explain`` with words and with a log: what it prints, and how it ends."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.cli.main import run
from preflight.server_logs.by_words import QueryAnswer, answer_query, line_texts, rank_by_words
from preflight.server_logs.explain import (
    LogReading,
    explanations_object,
    explanations_text,
    read_log,
)
from preflight.server_logs.patterns import Stage, read_patterns
from preflight.server_logs.search import Bounded, read_blocks
from tests.builders.examples import some
from tests.paths import ROOT
from tests.valid import valid

Patch = pytest.MonkeyPatch
Out = pytest.CaptureFixture[str]
KNOWN = [each for each in read_patterns() if each.cause]
SCHEMA = json.loads((ROOT / "preflight/report/schemas/explain-log-v1.schema.json").read_text())


def first(found: QueryAnswer) -> str:
    return found.lines[0].pattern if found.lines else ""


@pytest.mark.slow
def test_a_known_line_alone_is_found() -> None:
    found = {pattern.id: first(answer_query(pattern.example, {})) for pattern in KNOWN}
    assert {asked: answer for asked, answer in found.items() if asked != answer} == {}


@pytest.mark.slow
def test_four_words_of_a_line_are_enough() -> None:
    """The right line first, in 95 of 100 parts; those that two lines share name both."""
    draw = random.Random(1)
    texts = line_texts(KNOWN)
    assert len(KNOWN) >= 250
    drawn = some(KNOWN, 5)
    right = wrong = 0
    for pattern in drawn:
        words = pattern.example.split()
        count = draw.randint(4, max(4, min(8, len(words))))
        start = draw.randint(0, max(0, len(words) - count))
        part = " ".join(words[start : start + count])
        whole = [id_ for id_, share in rank_by_words(part, texts) if share > 0.999]
        assert pattern.id in whole, part
        if len(whole) > 1:
            continue
        if first(answer_query(part, {})) == pattern.id:
            right += 1
        else:
            wrong += 1
    assert right > 0.75 * len(drawn)
    assert wrong <= 0.05 * (right + wrong)


@pytest.mark.slow
def test_a_line_is_found_in_the_log_around_it() -> None:
    """And it stands first, before what a healthy server prints."""
    around = (ROOT / "tests/data/logs/healthy-sglang.log").read_text().splitlines()
    before, behind = around[:40], around[40:80]
    for pattern in [each for each in KNOWN if each.stage is not Stage.HARMLESS]:
        found = read_log([*before, pattern.example, *behind]).explanations
        assert [each.pattern for each in found][:1] == [pattern.id], pattern.id


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("server killed oom", "runtime.oom-killed"),
        ("huge pages not enough", "mooncake.l2-hugepages"),
        ("Cannot allocate memory [12]", "mooncake.register-enomem"),
        ("huge pages not used", "mooncake.l2-hugepages"),
        ("memlock too low", "mooncake.register-enomem"),
        ("pod evicted", "runtime.evicted"),
        ("connection to master refused", "mooncake.master-refuses"),
        ("libibverbs missing", "library.provider"),
        ("registration failed memlock", "mooncake.register-enomem"),
        ("/dev/shm too small", "runtime.shm"),
        ("GID not found", "mooncake.gid-none"),
        ("CUDA version mismatch", "mooncake.version"),
        ("etcd not reachable", "mooncake.etcd-master"),
        ("cannot connect to master", "mooncake.master-connect"),
        ("disk full offload", "mooncake.offload-disk"),
    ],
)
def test_a_symptom_in_plain_words_is_found(words: str, expected: str) -> None:
    assert expected in [each.pattern for each in answer_query(words, {}).lines[:3]]


def test_a_status_that_is_asked_for_is_the_one_that_is_explained() -> None:
    # Too little memlock is what mostly stops a registration.
    assert first(answer_query("Failed to register memory", {})) == "mooncake.register-enomem"
    assert first(answer_query("HTTP 404", {})) == "mooncake.metadata-path"
    assert first(answer_query("HTTP 502", {})) == "mooncake.metadata-http"


def test_a_quoted_line_says_nothing_of_the_log_that_it_stood_in() -> None:
    bus_error = answer_query("Bus error", {}).lines[0]
    assert (bus_error.pattern, bus_error.decided) == ("process.sigbus", "")
    assert read_log(["Bus error"]).explanations[0].decided  # of a whole log it does
    own = answer_query(
        "E1121 07:41:24.1 4907 a.cpp:1] Failed to create QP: Cannot allocate memory [12]", {}
    )
    assert own.lines[0].decided.startswith("errno 12")  # that is in the line


# Which of it is so here -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "check", "found"),
    [
        (["Failed to register memory"], "memlock.limit", "fail"),
        ([str(ROOT / "tests/data/logs/hugepages-l2.log")], "hugetlb.shortage", "fail"),
        (["memlock.limit"], "memlock.limit", "fail"),
        (["hugetlb.cgroup-limit"], "hugetlb.cgroup-limit", "pass"),
    ],
)
def test_with_a_host_its_checks_say_which_it_is(
    words: list[str], check: str, found: str, capsys: Out
) -> None:
    """The made host ships with a launch; check is asked for the ids."""
    run(["check", "--root", "demo:h800", "--only", check, "--json"])
    alone = json.loads(capsys.readouterr().out)["findings"]
    code = run(["explain", *words])
    capsys.readouterr()
    here = ["--root", "demo:h800", "--timeout", "60"]
    assert run(["explain", *words, *here]) == code
    text = capsys.readouterr().out
    assert "launch.sh" in text
    assert words == [check] or f"{check} {found}" in text.replace("\n" + " " * 15, " ")
    assert run(["explain", *words, *here, "--json"]) == code
    answer = json.loads(capsys.readouterr().out)
    valid(answer, SCHEMA)
    assert answer["host"] == "demo:h800"
    assert [one for one in answer["findings"] if one["check"] == check] == alone
    assert {one["status"] for one in alone} == {found}


@pytest.mark.slow
def test_a_launch_is_judged_where_the_user_is(tmp_path: Path, capsys: Out) -> None:
    launch = tmp_path / "mine.sh"
    launch.write_text("python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --dp 0\n")
    assert run(["explain", "values-refused", "--launch", str(launch)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mine.sh will not start on this host" in said
    assert run(["explain", "segment-times-dp", "--launch", str(launch)]) == 0
    assert f"Here: {launch} has nothing of this." in capsys.readouterr().out
    assert run(["explain", "segment-times-dp", "--here"]) == 0  # no launch was looked at
    assert "Here: it is about a launch: give it with --launch FILE." in capsys.readouterr().out
    assert run(["explain", "mp-2026-0006"]) == 0  # as it is typed
    assert run(["explain", "memlock.limit", "--root", "/no/such/host"]) == 64
    assert run(["explain", "memlock.limit", "--launch", "no-such.sh"]) == 64
    capsys.readouterr()
    assert run(["explain", "memlock.limit", "--here"]) == 0
    assert "(1 skip)" in capsys.readouterr().out  # no launch, so nothing to lock
    assert run(["explain", "--index", "--here"]) == 64
    assert run(["explain", "fleet.master", "--here"]) == 0  # found between nodes, never on one


def test_words_give_lines_checks_and_the_next_command(capsys: Out) -> None:
    assert run(["explain", "Failed", "to", "register", "memory"]) == 0
    out = capsys.readouterr().out
    assert "mooncake.register-enomem" in out
    assert "mooncake-preflight check --only memlock.limit" in out
    assert run(["explain", "memlock"]) == 0
    assert "memlock.limit " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["memlock.limt"], "did you mean memlock.limit?"),
        (["no-such-server.log"], "there is no such file"),
        (["zzz", "qqq"], "no known line, check or rule has these words. What ended the server may"),
        ([" "], "give the ID of a check"),
        (["--log", "x", "memlock"], "give one of them"),
        (["--log", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["--log", "/dev/zero"], "a device, and no log"),
        (["--log", "."], "a folder"),
        (["memlock.limit", "--gpu-memory", "80gb"], "give --launch FILE"),
        (["--root", "demo:h800"], "a launch and a host go with those"),
        (["--index", "memlock.limit"], "--index is of every known line"),
        (["--index", "--log", "-"], "--index is of every known line"),
    ],
)
def test_what_is_nothing_is_refused(words: list[str], said: str, capsys: Out) -> None:
    assert run(["explain", *words]) == 64
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_list_is_an_object_too_and_fits(capsys: Out, monkeypatch: Patch) -> None:
    assert run(["explain", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["answer"]["checks"]
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {row["check"] for row in rows} == {line.split()[0] for line in lines if line[0] != " "}
    assert max(len(line) for line in lines) <= 80


# The index -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_index_has_every_known_line_once_in_alphabetical_order(capsys: Out) -> None:
    assert run(["explain", "--index", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    rows = found["answer"]["explanations"]
    assert sorted(row["pattern"] for row in rows) == sorted(each.id for each in KNOWN)
    letters = ["".join(c for c in row["excerpt"].lower() if c.isalpha())[:3] for row in rows]
    first = [one for one in letters if len(one) == 3]
    assert sum(a <= b for a, b in itertools.pairwise(first)) > 0.95 * len(first)
    assert not any(row["excerpt"].startswith(("E1", "W1", "I1", "F1")) for row in rows)


@pytest.mark.slow
def test_the_index_is_readable_at_80_columns(capsys: Out, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["explain", "--index"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120  # a path or an expression that has no place to break
    assert sum(len(line) > 80 for line in lines) < 10


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (
            "Failed to get GID index for mlx5_3",
            "Similar, and perhaps another case; names and numbers are examples:",
        ),
        ("mooncake.gid-query", "One known line is like this; names and numbers are examples:"),
        ("bus error (core dumped) on rank 6", "One known line is like this:"),
    ],
)
def test_another_cases_names_and_numbers_are_not_taken_for_this_ones(
    words: str, first: str, capsys: Out
) -> None:
    """What is explained is an example where no pattern matches the words."""
    assert run(["explain", words]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(first)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a", "kernel.oom-cgroup"),
        ("ibv_reg_mr failed: Cannot allocate memory", "start.nccl-register"),
    ],
)
def test_a_part_of_a_line_is_found_though_one_word(words: str, says: str, capsys: Out) -> None:
    assert run(["explain", words]) == 0
    out = capsys.readouterr().out
    assert f"1. similar: {says} (" in out
    assert "root cause" not in out
    assert "3. similar" not in out


LOGS = ROOT / "tests/data/logs"
COMMAND = [sys.executable, "-m", "preflight.cli.main", "explain"]


def explain(*arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=text, capture_output=True, timeout=120, cwd=ROOT, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(("log", "code"), [("hugepages-l2.log", 2), ("healthy-sglang.log", 0)])
def test_a_log_from_standard_input_and_from_a_file_are_alike(log: str, code: int) -> None:
    path = LOGS / log
    piped, named = explain(text=path.read_bytes()), explain("--log", str(path))
    assert (piped.returncode, named.returncode) == (code, code)
    assert piped.stdout == named.stdout
    assert piped.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "a folder: give one log of it"),
        (Path(sys.executable).read_bytes()[:1_000_000], "a binary file, and no log"),
        (gzip.compress(b"Bus error\n"), "packed: zcat {path} | mooncake-preflight explain"),
    ],
    ids=["folder", "binary", "gzip"],
)
def test_what_is_no_text_is_named_as_such(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.mkdir() if content is None else path.write_bytes(content)
    done = explain(str(path))
    assert done.returncode == 64
    assert f"{path}: {said.format(path=path)}\n" in done.stderr.decode()


@pytest.mark.slow
def test_a_log_with_a_hole_or_some_wrong_bytes_is_read(tmp_path: Path) -> None:
    """logrotate's copytruncate leaves NUL up to where the server writes on."""
    path = tmp_path / "server.log"
    path.write_bytes(b"one\n" + b"\0" * 5_000_000 + b"\xff\x1b[31mBus error\x1b[0m (core dumped)\n")
    assert explain(str(path)).returncode == 2


@pytest.mark.slow
def test_what_has_no_end_is_refused_on_standard_input_too() -> None:
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            COMMAND, stdin=endless, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 64
    assert "standard input: a device, and no log" in done.stderr


@given(st.binary(max_size=40), st.integers(1, 50))
@pytest.mark.slow
def test_a_log_is_read_up_to_its_bound_and_says_so(content: bytes, most: int) -> None:
    bounded = Bounded(io.BytesIO(content), most)
    read = content[:most].replace(b"\0", b"")
    assert "".join(read_blocks(bounded)) == read.decode("utf-8", "replace")
    assert bounded.cut == (len(content) > most)


@pytest.mark.slow
def test_a_log_that_goes_on_is_said_in_both_forms() -> None:
    reading = LogReading(3, [], whole=False)
    text = explanations_text(reading, lambda text, _: text, 60)
    assert "Only the first 16 GiB of the log were read" in text
    assert max(map(len, text.splitlines())) <= 60
    assert explanations_object(reading)["whole"] is False
