"""SGLang's real external linker on the real library: the pages that its launch is told to need.

Each rank is a process of its own with the wheel's MooncakeDirectLinker and MooncakeStore, over TCP,
on real HugeTLB pages, with a real master; what is compared comes of the launch's text.
MOONCAKE_PREFLIGHT_LINKER_LAUNCHES=30 draws so many launches of the newest release in place of 6.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checks.framework.pages import Spot
from preflight.engines.mooncake.replay import pages_by_spot
from tests.builders.examples import seeded
from tests.engines.consumers.test_store_keys import sized
from tests.real.cases import MIB
from tests.real.conftest import HugePages, Store, Wheel, install

pytestmark = pytest.mark.real
LAUNCHES = int(os.environ.get("MOONCAKE_PREFLIGHT_LINKER_LAUNCHES", "6"))
POOL_PAGES = 900
SAYS = "RuntimeError: Failed to setup Mooncake store, error code: -600"
SOURCES = ["environment", "extra", "own"]  # the last since 0.5.23


def launch(random: Random, address: str, sources: list[str]) -> dict[str, Any]:
    """Return a launch's settings: its variables, its config in JSON, its ranks."""
    variables = {"MC_STORE_USE_HUGEPAGE": "1"} if random.random() < 0.9 else {}
    size = random.choice(["2MB", "2097152", None])
    if size is not None:
        variables["MC_STORE_HUGEPAGE_SIZE"] = size
    if random.random() < 0.3:
        variables["MC_MMAP_ARENA_POOL_SIZE"] = random.choice(["100mb", "64mb"])
    # Not 0: where no other client has a segment, the first put fails.
    segment = random.choice([16 * MIB, random.randrange(MIB, 800 * MIB), 2**28 + 1])
    given = {
        "MASTER": address,
        "PROTOCOL": "tcp",
        "GLOBAL_SEGMENT_SIZE": random.choice([str(segment), str(segment), "1gb"]),
    }
    names = {"MASTER": "master_server_address"}
    config = {names.get(name, name.lower()): text for name, text in given.items()}
    source = random.choice(sources)
    if source == "environment":
        variables |= {f"MOONCAKE_{name}": text for name, text in given.items()}
        config = {}
    flag = "unified-cache-external-linker-config"
    flag = "hicache-storage-backend-extra-config" if source == "extra" else flag
    return {
        "variables": variables,
        "config": config,
        "flag": f"--{flag} '{json.dumps(config)}'" if config else "",
        "tp": random.choice([1, 2, 2, 4]),
        "pp": random.choice([1, 1, 1, 2]),
    }


def predicted(folder: Path, one: dict[str, Any]) -> list[tuple[str, int]]:
    """Return what each rank is told to say and to map, up to the first that fails."""
    variables = " ".join(f"{name}={text}" for name, text in one["variables"].items())
    line = (
        f"{variables} python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp {one['tp']} "
        f"--pp-size {one['pp']} --enable-unified-cache-external-linker {one['flag']}"
    )
    shown = sized(folder, line).shown
    assert shown is not None
    found: list[tuple[str, int]] = []
    for each in shown.asked:
        if each.failure is not None:
            return [*found, (SAYS, 0)]  # the server ends with it
        found.append(("ok", pages_by_spot(each.allocations).get(Spot(2 * MIB, None), 0)))
    return found


def taken(store: Store, sglang: Path, one: dict[str, Any]) -> list[tuple[str, int]]:
    """Return what each rank said, and how many pages it has mapped."""
    program = str(Path(__file__).with_name("linker_runner.py"))
    environment = {"MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1", **one["variables"]}
    found, running = [], []
    for rank in range(one["tp"] * one["pp"]):
        process = subprocess.Popen(
            [sys.executable, program, str(sglang)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=store.wheel.environment(environment),
        )
        running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"tp_rank": rank % one["tp"], "tp_size": one["tp"], "pp_size": one["pp"]}
        process.stdin.write(json.dumps({**order, "config": one["config"]}) + "\n")
        process.stdin.flush()
        answer = next((text for text in process.stdout if text.startswith('{"said"')), "")
        heard = json.loads(answer or '{"said": "nothing", "pages": 0}')
        found.append((str(heard["said"]), int(heard["pages"])))
    for process in running:
        process.communicate()
    return found


@pytest.mark.parametrize("release", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_each_rank_takes_the_pages_of_its_store(
    release: str, tmp_path: Path, wheel_0_3_13: Wheel, huge_pages: HugePages
) -> None:
    sglang, random = install("sglang", release), seeded()
    refused = huge_pages.set(POOL_PAGES, 0, 0)
    if refused:
        pytest.skip(refused)
    newest = release == "0.5.23"
    judged = 0
    while judged < (LAUNCHES if newest else 2):
        # One master a launch: a put may go to the segment of a rank that has just ended.
        store = Store(wheel_0_3_13, tmp_path)
        try:
            one = launch(random, store.address, SOURCES if newest else SOURCES[:2])
            wanted = predicted(tmp_path, one)
            if sum(pages for _, pages in wanted) <= POOL_PAGES:
                assert taken(store, sglang, one)[: len(wanted)] == wanted, one
                judged += 1
        finally:
            store.stop()


def test_too_few_pages_end_the_rank(
    tmp_path: Path, wheel_0_3_13: Wheel, huge_pages: HugePages
) -> None:
    refused = huge_pages.set(100, 0, 0)
    if refused:
        pytest.skip(refused)
    store = Store(wheel_0_3_13, tmp_path)
    variables = {
        "MC_STORE_USE_HUGEPAGE": "1",
        "MOONCAKE_MASTER": store.address,
        "MOONCAKE_PROTOCOL": "tcp",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": "268435456",
    }
    one = {"variables": variables, "config": {}, "tp": 1, "pp": 1}
    try:
        assert taken(store, install("sglang", "0.5.23"), one) == [(SAYS, 0)]
    finally:
        store.stop()
