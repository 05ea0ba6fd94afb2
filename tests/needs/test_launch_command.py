"""The command on launches as users have them: a script, a command line, an env file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.framework.root import Root
from preflight.command_inputs.written_launch import read_launch
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.needs.test_sizing_command import SCHEMA, Ran, run
from tests.valid import valid

SCRIPT = """#!/bin/bash
# Qwen3-14B on two GPUs
export MOONCAKE_MASTER=127.0.0.1:50051
export MC_STORE_USE_HUGEPAGE=1 MC_GID_INDX=3
mooncake_master --enable_http_metadata_server=true &
python3 -m sglang.launch_server \\
    --model-path Qwen/Qwen3-14B \\
    --tp 2 --page-size 64 \\
    --enable-hierarchical-cache --hicache-size 30 \\
    --hicache-storage-backend mooncake
"""
PAGES = 2 * (14308 + 1024 + 8)  # L2, half of the default 4 GiB, the local buffer


@pytest.fixture
def host(tmp_path: Path) -> Path:
    pool = HostPool(total=PAGES)
    return Host({2 * MIB: pool}, memory_bytes=512 * GIB).write(tmp_path / "host")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT)
    return path


def checked(ran: Ran) -> dict[str, object]:
    parsed: dict[str, object] = json.loads(ran.out)
    valid(parsed, SCHEMA)
    assert parsed["exit_code"] == ran.code
    return parsed


def test_a_model_that_is_not_known_is_no_plain_fits(script: Path, host: Path) -> None:
    """What an index or a draft pool would take comes on top of --hicache-size."""
    text = SCRIPT.replace("MC_STORE_USE_HUGEPAGE=1 ", "")
    script.write_text(text.replace("Qwen/Qwen3-14B", "/models/own"))
    ran = run([str(script), "--mooncake-version", "0.3.13.post1"], root=host)
    assert ran.code == 3
    assert "whether an index or draft pool comes on top" in " ".join(ran.out.split())
    assert "--model-config" in ran.out.split("\n\n")[0]


def test_a_command_line_with_this_environment(host: Path) -> None:
    words = (
        "-- python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --page-size 64 "
        "--enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake"
    )
    environment = {"MOONCAKE_MASTER": "a:1", "MC_STORE_USE_HUGEPAGE": "1"}
    arguments = ["--json", "--mooncake-version", "0.3.13.post1", "--root", str(host)]
    got = checked(run([*arguments, *words.split()], environment))
    assert got["status"] == "fits"
    exact = got["exact"]
    assert isinstance(exact, dict)
    assert exact["hugetlb"][0]["need_pages"] == PAGES


def test_what_is_not_known_is_named(script: Path, host: Path) -> None:
    script.write_text(SCRIPT.replace("--tp 2", "--tp $TP"))
    got = checked(run([str(script), "--json"], root=host))
    assert (got["status"], got["exit_code"]) == ("error", 3)
    assert "TP is not set" in str(got["error"])
    assert run([str(script)], root=host).code == 3


def test_nothing_is_executed(script: Path, host: Path, tmp_path: Path) -> None:
    flag = tmp_path / "executed"
    script.write_text(f"touch {flag}\nX=$(touch {flag})\n`touch {flag}`\n{SCRIPT}")
    run([str(script)], root=host)
    assert not flag.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["/no/such/launch.sh"], "/no/such/launch.sh"),
        (["--env-file", "/no/such.env", "SCRIPT"], "/no/such.env"),
        (["SCRIPT", "--sglang-version", "new"], "--sglang-version 'new'"),
        (["SCRIPT", "--rank-numa-nodes", "0"], "the number of nodes (1) is not that of the ranks"),
        (["SCRIPT", "--tp-size", "4"], "--tp-size beside a launch"),
        (["EMPTY"], "starts no program"),
        (["SCRIPT", "EMPTY"], "empty.sh would be ignored: give one launch at a time"),
    ],
)
def test_usage_errors(
    arguments: list[str], says: str, script: Path, host: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.sh"
    empty.write_text("# nothing\n")
    named = {"SCRIPT": str(script), "EMPTY": str(empty)}
    words = [named.get(word, word) for word in arguments]
    ran = run(words, root=host)
    assert (ran.code, ran.out) == (64, "")
    assert says in ran.err
    as_json = run([*words, "--json"], root=host)
    assert checked(as_json)["status"] == "error"


@pytest.mark.parametrize("word", ["mooncake_master", "{}/bin/mooncake_client"])
def test_a_program_that_needs_no_argument_is_a_command(tmp_path: Path, word: str) -> None:
    """Where a wheel put it, it is a short Python script, which is no launch."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mooncake_client").write_text("#!/usr/bin/python3\nimport sys\n")
    launch = read_launch((word.format(tmp_path),), (), {}, Root(str(tmp_path)))
    (command,) = launch.reading.commands
    assert command.words[0].text == word.format(tmp_path)


def test_a_launch_without_hicache_and_mooncake_has_no_empty_tables(
    tmp_path: Path, host: Path
) -> None:
    """Only what was understood of it is left to show; beside a server that maps, it is a line."""
    plain = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2\n"
    path = tmp_path / "launch.sh"
    path.write_text(plain)
    ran = run([str(path)], root=host)
    assert ran.code == 0
    assert "it keeps no KV cache in this host's memory" in " ".join(ran.out.split())
    assert not [
        head for head in ("What is mapped", "all processes", "documented") if head in ran.out
    ]
    assert "Qwen/Qwen3-14B" in ran.out
    path.write_text(f"{SCRIPT.rstrip()} &\n{plain.replace('--tp', '--port 30001 --tp')}")
    ran = run([str(path)], root=host)
    assert "What is mapped" in ran.out
    assert f"{path}:11 rank 0 to 1: each: nothing" in " ".join(ran.out.split())


def test_a_verdict_is_never_followed_by_another(script: Path, host: Path) -> None:
    """What decides here is SGLang's own refusal; the huge pages suffice."""
    script.write_text(SCRIPT.replace("export MOONCAKE_MASTER=127.0.0.1:50051", ""))
    ran = run([str(script), "--mooncake-version", "0.3.13.post1"], root=host)
    assert ran.out.startswith("WILL NOT START: SGLang: ")
    assert "\n  Of its huge pages: every mapping that is asked for gets its huge pages" in ran.out
    assert "FITS" not in ran.out
