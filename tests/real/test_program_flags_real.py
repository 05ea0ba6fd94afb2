"""Flags of mooncake_master and mooncake_client, and names of metrics, held against the programs."""

from __future__ import annotations

import re
import shlex
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checks.software import calls
from checks.software.facts import _build_ids
from preflight.engines.programs.mooncake_flags import Flag, flag_table, flags_of
from tests.launch_problems.rules.test_rules_programs import FLAG_EXAMPLES, REFUSED, UNKNOWN
from tests.paths import ROOT
from tests.real.conftest import Store, Wheel, install

pytestmark = pytest.mark.real

# In the order in which they came out.
RELEASES = flag_table().releases
WRONG = [
    line
    for example in FLAG_EXAMPLES
    for line in example.wrong
    if example.id in (REFUSED, UNKNOWN) and isinstance(line, str)
]


def has(flag: Flag, release: str) -> bool:
    at = RELEASES.index(release)
    since = RELEASES.index(flag.since) if flag.since else 0
    until = RELEASES.index(flag.until) if flag.until else len(RELEASES)
    return since <= at <= until


# Until 0.3.10.post2 one start in five never ends: its threads wait for each other at exit, before
# what it said is written out. So many in a row are something else.
STARTS, START_SECONDS = 12, 20


def ended(
    wheel: Wheel, program: str, *words: str, starts: int = STARTS
) -> subprocess.CompletedProcess[str]:
    """Return the first start of a program that comes to its end."""
    try:
        return subprocess.run(
            [wheel.command(program), *words],
            capture_output=True,
            text=True,
            env=wheel.environment({}),
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        if starts == 1:
            raise
        return ended(wheel, program, *words, starts=starts - 1)


def flags_listed(wheel: Wheel, program: str) -> dict[str, str]:
    """Name and type of every flag that the program lists itself."""
    done = ended(wheel, program, "--helpfull")
    found = re.findall(r"\n    -(\w+) \(.*?\)\s+type:\s+(\w+)", done.stdout, re.DOTALL)
    assert found, done.stderr
    return dict(found)


@pytest.mark.parametrize("release", ["0.3.8", "0.3.10.post2", "0.3.12", "0.3.13.post1", "0.3.14"])
def test_a_programs_release_is_read_as_it_says_it(
    wheel_of: Callable[[str], Wheel], release: str
) -> None:
    """What is read of the file is what --version prints; the build id is known."""
    wheel = wheel_of(release)
    file = wheel.command("mooncake_master")
    done = ended(wheel, "mooncake_master", "--version")
    assert done.returncode == 0, done.stderr
    said = re.match(r"mooncake_master version (\S+) ", done.stdout)
    seen = calls.program(file)
    assert seen["release"] == (said[1] if said else "")
    assert release in _build_ids()[seen["build_id"]]


@pytest.mark.parametrize("program", ["mooncake_master", "mooncake_client"])
@pytest.mark.parametrize("release", ["0.3.8", "0.3.10.post2", "0.3.11.post1", "0.3.13.post1"])
def test_the_flags_are_those_that_the_program_lists(
    wheel_of: Callable[[str], Wheel], program: str, release: str
) -> None:
    """Every name, none besides, of the same type; lifetimes were numbers once."""
    listed = flags_listed(wheel_of(release), program)
    known = {name: flag.type for name, flag in flags_of(program).items() if has(flag, release)}
    lifetimes = {"default_kv_lease_ttl", "default_kv_soft_pin_ttl"}
    assert set(listed) == set(known)
    differ = {name for name, kind in listed.items() if known[name] != kind}
    assert differ <= lifetimes


@pytest.mark.parametrize("program", ["mooncake_master", "mooncake_client"])
def test_the_newest_release_lists_the_same(wheel_0_3_14: Wheel, program: str) -> None:
    """It has dropped some that its predecessor had."""
    listed = flags_listed(wheel_0_3_14, program)
    known = {name: flag.type for name, flag in flags_of(program).items() if has(flag, "0.3.14")}
    assert listed == known


@pytest.mark.parametrize("line", WRONG)
def test_what_the_rule_refuses_the_program_refuses(
    wheel_of: Callable[[str], Wheel], line: str
) -> None:
    """It ends before it serves: by gflags, by an F line, or by an exception."""
    wheel = wheel_of("0.3.13.post1")
    program, *words = shlex.split(line)
    # One that is not refused runs on; the last value of a flag is the one that counts.
    ports = ("--rpc_port=52971", "--metrics_port=52972") if program == "mooncake_master" else ()
    done = ended(wheel, program, *ports, *words)
    assert done.returncode in (1, -6), done.stderr[-400:]


FILES = (
    "preflight/live_servers/served_metrics.py",
    *("docs/observe-alerts.yml", "docs/observe-dashboard.json"),
)
TEXT = "\n".join((ROOT / name).read_text() for name in FILES)
# Those that 0.5.20 brought: without them it is not said why a prefetch gave nothing.
LATER = {"storage_prefetch_hit_tokens_total", "storage_prefetch_unfulfilled_tokens_total"}


def names(text: str, start: str) -> Iterator[str]:
    """The names of metrics that begin with ``start``; {name} of a formatted one stands for more."""
    yield from (name for name in re.findall(rf"\b{start}([a-z_0-9]+)", text) if name != "_")


def of_sglang() -> set[str]:
    formatted = {"backuped", "prefetched", "storage_prefetch_hit"}
    return {
        *(name for name in names(TEXT, "sglang:")),
        *("max_total_num_tokens", "evicted_tokens_total"),
        *(f"{name}_tokens_total" for name in formatted),
    }


@pytest.mark.parametrize("release", ["0.5.12.post1", "0.5.23"])
def test_sglang_has_them(release: str) -> None:
    folder = install("sglang", release) / "sglang/srt/observability"
    source = (folder / "metrics_collector.py").read_text()
    wanted = of_sglang() - (LATER if release != "0.5.23" else set())
    assert len(wanted) >= 8
    assert [name for name in sorted(wanted) if f'"sglang:{name}"' not in source] == []
    assert '"cache_source"' in source


def test_a_master_has_them(wheel_0_3_13: Wheel, tmp_path: Path) -> None:
    store = Store(wheel_0_3_13, tmp_path)
    try:
        words = Path(f"/proc/{store._processes[0].pid}/cmdline").read_text().split("\0")
        port = next(word for word in words if "metrics_port" in word).partition("=")[2]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            served = answer.read().decode()
    finally:
        store.stop()
    formatted = ("allocated_bytes", "total_capacity_bytes", "key_count")
    puts = ("put_start_requests_total", "batch_put_start_items_total")
    wanted = {f"master_{name}" for name in (*formatted, *puts)}
    wanted |= set(re.findall(r"\b(master_[a-z_]+_(?:bytes|total|count)|\w+_nums_)\b", TEXT))
    assert len(wanted) > 12
    assert [name for name in sorted(wanted) if f"# TYPE {name} " not in served] == []
