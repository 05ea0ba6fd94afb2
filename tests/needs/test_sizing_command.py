"""The command as users and scripts meet it: exit codes, streams, the JSON contract, the advice."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from preflight.cli.sizing import run as run_sizing
from tests.builders.hosts import GIB, MIB, Host, HostPool
from tests.paths import ROOT
from tests.valid import valid

SCHEMA = json.loads((ROOT / "preflight/report/schemas/sizing-v1.schema.json").read_text())
QUICK_START = (
    "--tp-size 4 --hicache-size 64gb --global-segment-size 8gb --arena-pool-size 56gb "
    "--available-hugetlb 512gb"
)
SMALL = "--tp-size 1 --hicache-size 20mb --global-segment-size 64mb"  # 10 + 8 + 32 pages

COMMAND = (sys.executable, "-m", "preflight.cli.sizing")


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(
    arguments: str | list[str],
    environment: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> Ran:
    """The command, with no Mooncake or SGLang setting but those given."""
    words = arguments.split() if isinstance(arguments, str) else arguments
    if root is not None:
        words = [*words, "--root", str(root)]
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(
            ("MC_", "MOONCAKE_", "SGLANG_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "_MOON")
        )
    }
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, {**clean, **(environment or {})}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = run_sizing(words)
        except SystemExit as end:  # as shell completion ends
            code = int(end.code or 0)
    said = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ran(code, *said)


def answer(
    arguments: str, environment: Mapping[str, str] | None = None, root: Path | None = None
) -> dict[str, Any]:
    """The JSON answer, valid by the published schema, its exit code that of the process."""
    ran = run(f"{arguments} --json", environment, root)
    parsed: dict[str, Any] = json.loads(ran.out)
    valid(parsed, SCHEMA)
    assert parsed["exit_code"] == ran.code
    return parsed


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """One node, 60 free pages of 100."""
    return Host({2 * MIB: HostPool(total=100, free=60), GIB: HostPool()}).write(tmp_path)


# The quick start -----------------------------------------------------------------------------


def test_quick_start_as_json(host: Path) -> None:
    got = answer(QUICK_START, root=host)
    assert (got["status"], got["rule"]) == ("fits", "exact")
    (pool,) = got["exact"]["hugetlb"]
    assert pool["page_size_bytes"] == 2 * MIB
    assert pool["need_pages"] == pool["taken_pages"] == 4 * (32768 + 28672)
    assert pool["available_pages"] == 262144
    documented = got["documented"]
    assert documented["status"] == "clean_arena_budget_available"
    assert documented["clean_arena_total_bytes"] == 512 * GIB
    assert len(got["exact"]["processes"]) == 4
    what = [
        (a["what"], a["backing"], a["pages"]) for a in got["exact"]["processes"][0]["allocations"]
    ]
    assert what == [
        ("L2 host pool", "memfd_hugetlb", 32768),
        ("arena", "hugetlb", 28672),
        ("local buffer", "arena", 0),
        ("global segment", "arena", 0),
    ]


def test_quick_start_on_nics_of_two_nodes(host: Path) -> None:
    """The arena then serves only the local buffers, and the segment is split over the nodes."""
    got = answer(f"{QUICK_START} --nic-numa-nodes 0,1 --mooncake-version 0.3.13.post1", root=host)
    (pool,) = got["exact"]["hugetlb"]
    # A rank: L2 32768, arena 28672, and its 2 GiB of segment as 512 pages on each node. One that
    # is bound to a node must see the other node's 512 pages free there too, for a moment.
    assert [share["node"] for share in pool["nodes"]] == [0, 1]
    each = 2 * (32768 + 28672) + 4 * 512
    assert [share["need_pages"] for share in pool["nodes"]] == [each + 512, each + 512]
    assert pool["need_pages"] == 2 * each
    drop = next(r for r in got["recommendations"] if r["id"] == "drop-arena")
    assert "neither does the segment" in drop["text"]


# Verdicts and exit codes ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "arguments", "status"),
    [
        (HostPool(total=50), "", "fits"),
        (HostPool(total=49), "", "fails"),
        (HostPool(total=100, free=60, reserved=10), "", "fits"),
        (HostPool(total=100, free=60, reserved=11), "", "fails"),  # held by, or promised to others
        (HostPool(total=40, surplus=20, overcommit=30), "", "fits"),
        (HostPool(total=39, surplus=20, overcommit=30), "", "fails"),
        (HostPool(total=200), "--arena-pool-size 100mb", "fits"),
        (HostPool(total=59), "--arena-pool-size 100mb", "falls_back"),
        (HostPool(total=49), "--arena-pool-size 100mb", "fails"),
        (HostPool(total=0), "--no-use-hugepage", "fits"),
        (HostPool(total=0), "--no-use-hugepage --arena-pool-size 1gb", "falls_back"),
        (HostPool(total=10), "--mooncake-version 0.3.8", "falls_back"),
        (HostPool(total=50), "--mooncake-version 0.3.10 --arena-pool-size 90mb", "falls_back"),
        (HostPool(total=0), "--available-hugetlb 100mb", "fits"),
        (HostPool(total=900), "--available-hugetlb 99mb", "fails"),
    ],
)
def test_verdict(pool: HostPool, arguments: str, status: str, tmp_path: Path) -> None:
    root = Host({2 * MIB: pool}).write(tmp_path)
    got = answer(f"{SMALL} --protocol tcp {arguments}", root=root)
    assert got["status"] == status
    assert got["exit_code"] == {"fits": 0, "falls_back": 1, "fails": 2}[status]


def test_an_unreadable_pool_is_unknown_and_no_pass(host: Path) -> None:
    free = host / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
    free.write_text("what?\n")
    got = answer(f"{SMALL} --protocol tcp", root=host)
    assert (got["status"], got["exit_code"]) == ("unknown", 3)
    assert "not a number: 'what?'" in got["exact"]["reason"]


def test_reservations_on_two_nodes_leave_it_unknown(tmp_path: Path) -> None:
    """Reserved pages sit on no node until they are touched: enough, or a bus error."""
    pool = HostPool(nodes={0: (30, 30), 1: (30, 30)}, reserved=15)
    root = Host({2 * MIB: pool}, nodes=(0, 1), nics={"a": 0, "b": 1}).write(tmp_path)
    launch = (
        "--tp-size 1 --hicache-size 0 --segment-scope process --global-segment-size 80mb "
        "--local-buffer-size 0"
    )
    got = answer(launch, root=root)
    assert (got["status"], got["exit_code"]) == ("unknown", 3)
    assert got["exact"]["hugetlb"][0]["nodes"][0]["available_unknown"] == "between 15 and 30"


# Inputs --------------------------------------------------------------------------------------


def test_every_input_says_where_it_came_from(tmp_path: Path) -> None:
    root = Host(
        {2 * MIB: HostPool(nodes={0: (900, 900), 1: (900, 900)})},
        nodes=(0, 1),
        nics={"mlx5_0": 0, "mlx5_1": 1, "mlx5_2": None},
        gpus=(0, 0, 1, 1),
    ).write(tmp_path)
    environment = {
        "MC_STORE_USE_HUGEPAGE": "0",
        "MC_MMAP_ARENA_POOL_SIZE": "64mb",
        "MOONCAKE_PROTOCOL": "rdma",
    }
    got = answer(
        "--tp-size 4 --hicache-size 20mb --global-segment-size 256mb --mooncake-version 0.3.13",
        environment,
        root,
    )
    inputs = got["inputs"]
    assert inputs["use_hugepage"] == {"value": True, "origin": "environment, MC_STORE_USE_HUGEPAGE"}
    assert inputs["arena_pool_bytes"]["value"] == 64 * MIB
    assert inputs["arena_pool_bytes"]["origin"].startswith("environment")
    assert inputs["protocol"] == {"value": "rdma", "origin": "environment, MOONCAKE_PROTOCOL"}
    assert inputs["nic_numa_nodes"] == {"value": [0, 1], "origin": "this host's RDMA devices"}
    assert inputs["rank_numa_nodes"]["value"] == [0, 0, 1, 1]
    assert "GPUs" in inputs["rank_numa_nodes"]["origin"]
    assert {note["id"] for note in got["notes"]} == {"hugepage-switch-is-presence"}


@pytest.mark.parametrize(
    ("more", "status", "noted"),
    [
        ("", "fits", True),
        ("--sglang-version 0.5.23", "fits", True),  # Mooncake is assumed, and may be 0.3.14
        ("--mooncake-version 0.3.14", "fits", True),  # no SGLang is installed here
        ("--mooncake-version 0.3.14 --sglang-version 0.5.21", "unknown", False),
        ("--mooncake-version 0.3.14 --sglang-version 0.5.20", "fits", False),
        ("--mooncake-version 0.3.13.post1 --sglang-version 0.5.23", "fits", False),
        ("--mooncake-version 0.3.13.post1", "fits", False),
        # Not ranks of SGLang.
        (
            "--mooncake-version 0.3.14 --sglang-version 0.5.23 --segment-scope process",
            "fits",
            False,
        ),
    ],
)
def test_a_start_that_the_model_decides_is_no_fit(
    more: str, status: str, noted: bool, tmp_path: Path
) -> None:
    """Mooncake 0.3.14 takes no K and V apart on huge pages; flags do not tell whether there are."""
    Host({2 * MIB: HostPool(100)}).write(tmp_path)
    ran = run(f"{SMALL} --protocol tcp {more} --json", root=tmp_path)
    answer = json.loads(ran.out)
    valid(answer, SCHEMA)
    assert answer["status"] == status
    assert ran.code == (3 if status == "unknown" else 0)
    assert ("overlap" in ran.out) is noted
    if status == "unknown":
        assert "Mooncake 0.3.14 refuses V where L2 is on huge pages" in answer["exact"]["reason"]


def test_the_same_without_huge_pages_or_with_too_few(tmp_path: Path) -> None:
    """On regular pages there is nothing to refuse, and what fails for pages fails first."""
    known = "--mooncake-version 0.3.14 --sglang-version 0.5.23 --protocol tcp"
    Host({2 * MIB: HostPool(20)}).write(tmp_path)
    assert run(f"{SMALL} {known}", root=tmp_path).out.startswith("WILL NOT START")
    assert run(f"{SMALL} {known} --no-use-hugepage", root=tmp_path).out.startswith("FITS")


# Errors --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--tp-size 0", "--tp-size 0: must be 1 or more"),
        ("--tp-size x", "'x' is not a valid integer"),
        ("--tp-size 2000", "1024 at most"),
        ("--hicache-size 64", "64gb for 64 GiB. SGLang's own --hicache-size 64 is 64 x 10^9 bytes"),
        ("--hicache-size 64", "64000000000b"),
        ("--global-segment-size 4294967296", "4294967296b for 4294967296 bytes"),
        ("--hicache-size 0", "to SGLang 0 means 'not set'"),
        ("--hugepage-size 4mb", "2 MiB in place of any other"),
        ("--hugepage-size 0", "this Mooncake maps pages of"),
        ("--hugepage-size 512mb --mooncake-version 0.3.14", "this kernel has 2 MiB, 1 GiB"),
        ("--nic-numa-nodes 0;1", "write 0,1 or none"),
        ("--nic-numa-nodes 0-99999999", "write 0,1 or none"),
        ("--rank-numa-nodes 0,1", "the number of nodes (2) is not that of the ranks (1)"),
        ("--mooncake-version latest", "'latest' is not a Mooncake version"),
        (
            "--mooncake-version 0.4",
            "'0.4' is not a Mooncake version: write all three numbers, as 0",
        ),
        ("--mooncake-version=", "--mooncake-version '': give a version, or leave the option out"),
        ("--sglang-version latest", "--sglang-version 'latest' is not an SGLang version"),
        ("--protocol ib", "'ib' is not one of"),
        ("--no-such-flag", "--no-such-flag"),
        ("surprise", "--tp-size beside a launch, which says it itself"),
        ("--explain", "--explain is for a launch"),
    ],
)
def test_usage_errors_exit_64_on_standard_error(arguments: str, says: str, host: Path) -> None:
    ran = run(f"{SMALL} {arguments}", root=host)
    assert (ran.code, ran.out) == (64, "")
    assert says in ran.err
    as_json = run(f"{SMALL} {arguments} --json", root=host)
    parsed = json.loads(as_json.out)
    valid(parsed, SCHEMA)
    assert (as_json.code, parsed["status"], parsed["exit_code"]) == (64, "error", 64)
    assert says in parsed["error"]
    assert says in as_json.err


def test_missing_flags_are_a_usage_error() -> None:
    ran = run("--tp-size 4")
    assert (ran.code, ran.out) == (64, "")
    assert "--hicache-size" in ran.err


@pytest.mark.slow
def test_bytes_that_are_no_text_are_an_error_and_no_traceback() -> None:
    done = subprocess.run(
        [*COMMAND, "--tp-size", b"\xff\xfe", "--json"], capture_output=True, cwd=ROOT, check=False
    )
    assert done.returncode == 64
    assert b"Traceback" not in done.stderr
    json.loads(done.stdout)


def test_a_defect_exits_70_with_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from preflight.cli.sizing import run as run_here
    from preflight.needs import sizing

    def broken(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(sizing, "size_flags", broken)
    assert run_here([*SMALL.split(), "--json"]) == 70
    printed = capsys.readouterr()
    parsed = json.loads(printed.out)
    valid(parsed, SCHEMA)
    assert "RuntimeError: on purpose" in parsed["error"]
    assert "please report it" in printed.err


@pytest.mark.slow
def test_a_reader_that_goes_away_changes_no_verdict(host: Path) -> None:
    """Under pipefail the exit code is still the verdict's: no pass because nobody read it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, *f"{SMALL} --available-hugetlb 2mb --root {host}".split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (2, "")


# Advice --------------------------------------------------------------------------------------


def advice(got: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["id"]: item for item in got["recommendations"]}


def test_gigantic_pages_are_for_the_kernel_command_line(host: Path) -> None:
    got = advice(answer(f"{SMALL} --hugepage-size 1gb --protocol tcp", root=host))
    commands = "\n".join(got["reserve-hugepages"]["commands"])
    assert "hugepagesz=1G hugepages=3" in commands
    assert "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages" in commands


def test_memory_that_cannot_give_the_pages_is_said(tmp_path: Path) -> None:
    root = Host(memory_bytes=8 * GIB).write(tmp_path)
    got = advice(answer("--tp-size 1 --hicache-size 9gb --global-segment-size 0", root=root))
    assert "host-memory-too-small" in got
    assert "sglang-admission" in got


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (
            "--global-segment-size 8gb --arena-pool-size 8208mb",
            [
                "export MC_STORE_USE_HUGEPAGE=1",
                "export MC_STORE_HUGEPAGE_SIZE=2MB",
                "export MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb",
                "export MC_MMAP_ARENA_POOL_SIZE=8208mb",
            ],
        ),
        (
            "--global-segment-size 512mb --arena-pool-size 8gb",
            [
                "export MC_STORE_USE_HUGEPAGE=1",
                "export MC_STORE_HUGEPAGE_SIZE=2MB",
                "export MOONCAKE_GLOBAL_SEGMENT_SIZE=536870912",
                "unset MC_MMAP_ARENA_POOL_SIZE",
                "# to run it as written: export MC_MMAP_ARENA_POOL_SIZE=8gb",
            ],
        ),
        (
            "--global-segment-size 1gb --no-use-hugepage",
            [
                "unset MC_STORE_USE_HUGEPAGE MC_STORE_HUGEPAGE_SIZE",
                "export MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb",
                "unset MC_MMAP_ARENA_POOL_SIZE",
            ],
        ),
    ],
)
def test_the_environment_block(arguments: str, environment: list[str], host: Path) -> None:
    got = advice(answer(f"--tp-size 1 --hicache-size 20mb {arguments} --protocol tcp", root=host))
    assert got["environment"]["commands"] == environment


# Manners -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "environment", "colored"),
    [
        ("", {}, False),  # not a terminal
        ("", {"CLICOLOR_FORCE": "1"}, True),
        ("", {"FORCE_COLOR": "1"}, True),
        ("", {"FORCE_COLOR": ""}, False),
        ("", {"FORCE_COLOR": "3", "NO_COLOR": "1"}, False),
        ("--color always", {"NO_COLOR": "1"}, True),
        ("--color never", {"CLICOLOR_FORCE": "1"}, False),
    ],
)
def test_color(arguments: str, environment: dict[str, str], colored: bool, host: Path) -> None:
    ran = run(f"{QUICK_START} {arguments}", environment, host)
    assert ("\x1b[" in ran.out) is colored


def test_help_names_every_exit_code() -> None:
    ran = run("--help")
    text = " ".join(ran.out.split())
    assert ran.code == 0
    for phrase in ("0 fits", "1 starts", "2 will not start", "3 cannot be known", "64", "70"):
        assert phrase in text


def test_rank_0_of_two_servers_are_both_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Host(memory_bytes=512 * GIB).write(tmp_path)
    server = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --hicache-size 10"
    script = tmp_path / "l.sh"
    ports = (30000, 30001)
    lines = [f"{server} --enable-hierarchical-cache --port {port} &\n" for port in ports]
    script.write_text("".join(lines))
    run_sizing(["--root", str(tmp_path), str(script)])
    said = " ".join(capsys.readouterr().out.split())
    assert "l.sh:2 rank 0: each" in said
    assert "rank 0 to 0" not in said


# The documented rule: the helper's status and exit code, from its own arithmetic ---------------

PLANNING = ("planning_only", 0)
CLEAN = ("clean_arena_budget_available", 0)
FALLS_BACK = ("baseline_fits_arena_may_fallback", 1)
SHORT = ("insufficient_for_baseline", 2)

# tp, hicache, segment, arena, available (None: no pool was found) -> status and exit code
ROWS = [
    (4, "64gb", "8gb", "56gb", "512gb", CLEAN),  # the quick start
    (4, "64gb", "8gb", "56gb", "536870912000b", FALLS_BACK),
    (4, "64gb", "8gb", "56gb", "288gb", FALLS_BACK),
    (4, "64gb", "8gb", "56gb", "287gb", SHORT),
    (4, "64gb", "8gb", "0", "288gb", CLEAN),
    (4, "64gb", "8gb", "0", "309237645311b", SHORT),  # a byte less
    (1, "64gb", "8gb", "56gb", "0", SHORT),
    (1, "1b", "1b", "0", "1b", SHORT),
    (1, "1b", "1b", "1b", "2b", FALLS_BACK),
    (2, "1.5gb", "512mb", "256mb", "4.5gb", CLEAN),
    (8, "30gb", "816043786240b", "0", None, PLANNING),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_status_and_exit_code_of_the_helper(
    row: tuple[int, str, str, str, str | None, tuple[str, int]], tmp_path: Path
) -> None:
    tp, hicache, segment, arena, available, (status, exit_code) = row
    (tmp_path / "proc").mkdir()  # without any pool
    words = f"--tp-size {tp} --hicache-size {hicache} --global-segment-size {segment}"
    words += f" --arena-pool-size {arena} --rule documented --protocol tcp"
    got = answer(words + (f" --available-hugetlb {available}" if available else ""), root=tmp_path)
    assert (got["rule"], got["status"], got["exit_code"]) == ("documented", status, exit_code)
    assert got["documented"]["status"] == status


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("--hicache-size 0 --available-hugetlb 4gb", "clean_arena_budget_available"),
        ("--hicache-size 1gb --hugepage-size 512mb", "planning_only"),
        ("--hicache-size 200mb --available-hugetlb=", "clean_arena_budget_available"),
        ("--hicache-size 209715200", "clean_arena_budget_available"),
        ("--hicache-size 200mb --available-hugetlb 7", "insufficient_for_baseline"),
    ],
)
def test_what_the_helper_answers_is_answered(more: str, status: str, tmp_path: Path) -> None:
    """And by the exact rule it stays a mistake: 0 is not set, no 0.3.13 maps 512 MiB, and a number
    without a unit is bytes to the helper alone."""
    Host({2 * MIB: HostPool(total=128)}).write(tmp_path)
    words = f"--tp-size 1 --global-segment-size 32mb {more} --protocol tcp"
    words += " --mooncake-version 0.3.13.post1"
    assert answer(f"{words} --rule documented", root=tmp_path)["status"] == status
    assert run(words, root=tmp_path).code == 64
