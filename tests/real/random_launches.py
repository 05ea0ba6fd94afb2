"""Random launches, held against every wheel: the pages, the failures, and no false pass.

``python -m tests.real.random_launches --count 1000`` (root; PREFLIGHT_SEED repeats a run) prints
each difference and a count of each kind. A process is started when the one before it is done, and
all are kept until the pages are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from checks.base.pages import Spot
from checks.base.root import Root
from checks.base.units import GIB, MIB
from checks.releases.mooncake import mooncake_release
from preflight.inputs.written_launch import read_launch, size_written
from preflight.mooncake.allocations import EndlessPools, Pools, StockedPools
from preflight.mooncake.replay import ProcessReplay, pages_by_spot, replay
from preflight.processes.processes import LaunchOptions
from preflight.programs.memory_records import Launch, MappedProcess, StoreSettings
from preflight.sizing.flag_inputs import Flags
from preflight.sizing.sizing import size_flags
from tests.builders.examples import seed
from tests.real.cases import Case
from tests.real.conftest import LIMIT_SECONDS, HugePages, Store, Wheel, install_release

# Every release whose wheel needs no GPU; 0.3.14 has a stand-in for a driver.
WHEELS = (
    "0.3.8 0.3.8.post1 0.3.9 0.3.10 0.3.10.post1 0.3.10.post2 0.3.11 0.3.11.post1 0.3.12 "
    "0.3.12.post1 0.3.13 0.3.13.post1 0.3.14"
).split()
# Of 2 MiB: what any host gives at once, and clears in a second.
MOST_PAGES = 700
NOT_RUN = "not run: "
# Starts a store service of the wheel: its own code, without the HTTP server that follows.
SERVICE = """
import asyncio, inspect, json, os, sys, types
sys.modules["aiohttp"] = types.ModuleType("aiohttp")
sys.modules["aiohttp"].web = types.SimpleNamespace()
sys.path.insert(0, os.path.dirname(sys.argv[1]))
import worker
order = json.loads(sys.stdin.readline())
before = worker.used_pages()
try:
    from mooncake.mooncake_store_service import MooncakeStoreService
    service = MooncakeStoreService()
    start = service.start_store_service
    words = {"max_wait_time": 0.1} if "max_wait_time" in inspect.signature(start).parameters else {}
    said = "ok" if asyncio.run(start(**words)) else "refused"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
after = worker.used_pages()
print("\\n" + json.dumps({"said": said, "pages": {k: after[k] - before[k] for k in after}}))
sys.stdout.flush()
sys.stdin.read()
os._exit(0)
"""
_SEGMENTS = ("0", "1", "5000000", "33554432", "50000001", "64MB", "96mb", "0.05gb", "167772161")
_LOCALS = ("0", "1", "16777216", "16777217", "20MB", "1.5mb")
_VARIABLES: Mapping[str, tuple[str | None, ...]] = {
    "MC_STORE_USE_HUGEPAGE": ("1", "1", "1", "1", "0", "true", "", None),
    "MC_MMAP_ARENA_POOL_SIZE": (
        *(None, None, "2mb", "40mb", "48 MB", "0.1gb", "200mb", "abc", "0", "100MiB", "-1"),
        *("1e8", "", "nan", "96mb ", "67108865"),
    ),
    "MC_DISABLE_MMAP_ARENA": (*(None,) * 6, "1", "true", "0", "enable", "ON", "maybe"),
    "MC_STORE_HUGEPAGE_SIZE": (*(None,) * 6, "2MB", "2097152", "", "abc", "512MB"),
    "MC_STORE_LOCAL_HOT_CACHE_SIZE": (*(None,) * 4, "33554432", "100000000", "4GB", "0", "1e8"),
    "MC_STORE_LOCAL_HOT_BLOCK_SIZE": (*(None,) * 4, "3000000", "16777216", "4194304"),
    "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": ("1", "1", "true", "0", None),
    "MOONCAKE_STORE_CHECKSUM": (*(None,) * 5, "1", "true", "0"),
}


class Drawn(NamedTuple):
    """A launch: its kind, environment, what it is in words, and how the model reads it, given the
    pages that there are: the launch of records, and the verdict."""

    kind: str
    environment: Mapping[str, str]
    words: str
    read: Callable[[int], tuple[Launch, str]]
    flags: tuple[str, ...] = ()


def draw(random: Random, version: str, folder: Path) -> Drawn:
    """Return a random launch for one release."""
    environment = {
        name: text
        for name, texts in _VARIABLES.items()
        if (text := random.choice(texts)) is not None
    }
    # A rank of a server has a pool of 1 GB at least: it takes longer than ten of the others.
    kinds = ("flags", "mooncake_client", "store service")
    kind = "ranks" if random.random() < 0.08 else random.choice(kinds)
    return _DRAWN[kind](random, version, folder, environment)


def _flags(random: Random, version: str, _: Path, environment: dict[str, str]) -> Drawn:
    flags = Flags(
        tp_size=random.randint(1, 3),
        hicache_bytes=random.choice((1, 3 * MIB, 10_000_000, 64 * MIB, 100_000_001)),
        segment_bytes=random.choice((0, 32 * MIB, 50_000_001, 160 * MIB)),
        arena_bytes=random.choice((None, None, 40 * MIB, 100_000_000, 1 * GIB)),
        local_buffer_bytes=random.choice((None, 0, 1, 20_000_000)),
        segment_scope=random.choice(("instance", "process")),
        protocol="tcp",
        use_hugepage=random.choice((None, True)),
        mooncake_version=version,
    )
    environment.pop("MC_STORE_HUGEPAGE_SIZE", None)
    # What the flags say goes before the environment, for the processes too.
    if flags.arena_bytes is not None:
        environment["MC_MMAP_ARENA_POOL_SIZE"] = str(flags.arena_bytes)
    environment["MC_STORE_USE_HUGEPAGE"] = "1"

    def read(_: int) -> tuple[Launch, str]:
        sizing = size_flags(flags, environment, Root("/"))
        return sizing.inputs.launch, f"{sizing.status}: {sizing.reason}"

    return Drawn("flags", environment, str(flags), read)


def _script(
    kind: str, version: str, folder: Path, environment: dict[str, str], line: str, **more: Any
) -> Drawn:
    script = folder / "launch.sh"
    exports = "".join(f"export {name}='{text}'\n" for name, text in environment.items())
    text = f"{exports}{line}\n"

    def read(pages: int) -> tuple[Launch, str]:
        script.write_text(text)
        host = Root(str(folder / "host"))
        launch = read_launch((str(script),), (), {}, host)
        options = LaunchOptions(pages * 2 * MIB, (), mooncake_version=version)
        sizing = size_written(launch, options, host)
        if sizing.shown is None:  # its program refuses it
            assert sizing.status == "fails", (sizing.reason, text)
            return Launch((), mooncake_release(version)), f"fails: {sizing.reason}"
        return sizing.shown.inputs.launch, f"{sizing.status}: {sizing.reason}"

    return Drawn(kind, environment, text, read, **more)


def _ranks(random: Random, version: str, folder: Path, environment: dict[str, str]) -> Drawn:
    segment = random.choice(("0", "67108864", "100000001", "1gb"))
    environment |= {
        "MOONCAKE_MASTER": "127.0.0.1:50051",
        "MOONCAKE_PROTOCOL": "tcp",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": segment,
    }
    line = (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64 "
        f"--tp {random.choice((1, 2))} --enable-hierarchical-cache --hicache-size 1 "
        "--hicache-storage-backend mooncake"
    )
    return _script("ranks", version, folder, environment, line)


def _client(random: Random, version: str, folder: Path, environment: dict[str, str]) -> Drawn:
    flags = [f"--global_segment_size={random.choice(_SEGMENTS)}"]
    flags.append(f"--local_buffer_size={random.choice(_LOCALS)}")
    if version not in ("0.3.8", "0.3.8.post1", "0.3.9", "0.3.10", "0.3.10.post1", "0.3.10.post2"):
        arena = ("--use_mmap_arena_allocator", "--use_mmap_arena_allocator=false")
        flags += random.sample(arena, random.randint(0, 1))
        sizes = ("34603008", "10", "0", "104857600")
        flags += [f"--mmap_arena_pool_size={size}" for size in sizes if random.random() < 0.2]
    random.shuffle(flags)
    line = f"mooncake_client {' '.join(flags)}"
    return _script("mooncake_client", version, folder, environment, line, flags=tuple(flags))


def _service(random: Random, version: str, folder: Path, environment: dict[str, str]) -> Drawn:
    environment |= {
        "MOONCAKE_MASTER": "127.0.0.1:50051",
        "MOONCAKE_PROTOCOL": "tcp",
        "MOONCAKE_LOCAL_HOSTNAME": "127.0.0.1",
        "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE",
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": random.choice(_SEGMENTS[2:]),
        # Below 1024 bytes releases before 0.3.12 start, and are said not to.
        "MOONCAKE_LOCAL_BUFFER_SIZE": random.choice(_LOCALS[2:]),
    }
    line = "python3 -m mooncake.mooncake_store_service"
    return _script("store service", version, folder, environment, line)


_DRAWN = {
    "flags": _flags,
    "ranks": _ranks,
    "mooncake_client": _client,
    "store service": _service,
}


class Outcome(NamedTuple):
    started: int
    failed: bool
    pages: int


def predicted(launch: Launch, pools: Pools) -> Outcome:
    """What the model says of the processes one after another, until one fails."""
    taken = 0
    for number, process in enumerate(launch.processes):
        (one,) = replay(launch._replace(processes=(process,)), pools)
        taken += _pages(one)
        if one.failure is not None:
            return Outcome(number, True, taken)
    return Outcome(len(launch.processes), False, taken)


def _pages(one: ProcessReplay) -> int:
    return pages_by_spot(one.allocations).get(Spot(2 * MIB, None), 0)


def difference(random: Random, drawn: Drawn, store: Store, huge_pages: HugePages) -> str:
    """Run one launch; return what differs from what was said of it, "" for nothing."""
    launch, _ = drawn.read(0)
    needed = predicted(launch, EndlessPools()).pages
    by = random.choice((0, 0, 1, 20, -1, -2, -random.randint(1, 400)))
    pages = max(0, min(needed + by, MOST_PAGES))
    refused = huge_pages.set(pages, 0, 0)
    if refused:
        return f"{NOT_RUN}{refused}"
    launch, status = drawn.read(pages)
    wanted = predicted(launch, StockedPools({Spot(2 * MIB, None): pages}))
    one, refuses = len(launch.processes) <= 1, status.startswith("fails")
    if not launch.processes:
        launch = launch._replace(processes=(MappedProcess("refused", StoreSettings(False, 0)),))
    if drawn.flags:
        real, said = _run_client(drawn, store, huge_pages)
    else:
        real, said = _run(drawn, launch, store)
    if status.startswith("starts") and real.failed:
        return f"FALSE PASS with {pages} pages: {real} {said}"
    if refuses and one and not real.failed:
        return f"with {pages} pages {status!r} was said, it is {real} {said}"
    # A client that ends leaves nothing to count, and so does what its program refuses.
    if real.failed and one and refuses and said.startswith("ValueError"):
        return ""
    if real.failed and ((drawn.flags and wanted.failed) or (one and refuses and not wanted.failed)):
        return ""
    return "" if real == wanted else f"with {pages} pages {wanted} was said, it is {real} {said}"


def _run_client(drawn: Drawn, store: Store, huge_pages: HugePages) -> tuple[Outcome, str]:
    try:
        store.start_client(drawn.environment, *drawn.flags)
        return Outcome(1, False, huge_pages.settled_use()), ""
    except RuntimeError as error:
        return Outcome(0, True, 0), str(error)[-700:]
    finally:
        store.stop_clients()


def _run(drawn: Drawn, launch: Launch, store: Store) -> tuple[Outcome, str]:
    """Start every process, the next when the one before is done, and end them all."""
    running: list[subprocess.Popen[str]] = []
    started, taken, said = 0, 0, ""
    try:
        for process in launch.processes:
            answer = _start(drawn, process, store, running)
            taken += answer["pages"].get("2048kB", 0)
            said = answer["said"]
            if said != "ok":
                break
            started += 1
    finally:
        for each in running:
            each.communicate(timeout=LIMIT_SECONDS)
    return Outcome(started, said != "ok", taken), said


def _start(
    drawn: Drawn, process: MappedProcess, store: Store, running: list[subprocess.Popen[str]]
) -> Any:
    worker = str(Path(__file__).with_name("worker.py"))
    environment = {**drawn.environment}
    program = [sys.executable, worker]
    if drawn.kind == "store service":
        program = [sys.executable, "-c", SERVICE, worker]
        environment["MOONCAKE_MASTER"] = store.address
    case = Case("", environment, process.host_pools_bytes, ())
    clients = [
        {
            "segment_bytes": client.segment_bytes,
            "local_buffer_bytes": client.local_buffer_bytes,
            "protocol": "tcp",
            "offload_buffer_bytes": None,
        }
        for client in process.clients
    ]
    each = subprocess.Popen(
        program,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=store.wheel.environment(environment),
    )
    running.append(each)
    assert each.stdin is not None
    assert each.stdout is not None
    each.stdin.write(json.dumps(store.order(case, clients=clients)) + "\n")
    each.stdin.flush()
    for line in each.stdout:
        if line.startswith('{"said"'):
            return json.loads(line)
    return {"said": f"exit {each.wait(LIMIT_SECONDS)}", "pages": {}}


def run(
    count: int,
    number: int,
    wheel_of: Callable[[str], Wheel],
    store_of: Callable[[Wheel], Store],
    huge_pages: HugePages,
    folder: Path,
    versions: tuple[str, ...],
    first: int = 0,
    seconds: float = LIMIT_SECONDS,
) -> tuple[Counter[str], list[str]]:
    """Run ``count`` launches, each on its own seed, or as many as ``seconds`` allow; return the
    counts and the differences."""
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds
    differences = []
    for at in range(first, first + count):
        if time.monotonic() > end:
            break
        random = Random(f"{number}/{at}")
        version = versions[at % len(versions)]
        drawn = draw(random, version, folder)
        said = difference(random, drawn, store_of(wheel_of(version)), huge_pages)
        if said.startswith(NOT_RUN):  # this host's memory is in use, or in pieces
            continue
        done[f"{drawn.kind} on {version}"] += 1
        if said:
            differences.append(
                f"PREFLIGHT_SEED={number}, launch {at}, {version}, {drawn.kind}: {said}\n"
                f"{dict(drawn.environment)}\n{drawn.words.splitlines()[-1]}"
            )
            print(differences[-1], end="\n\n", flush=True)
    return done, differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3600, help="It ends after so many.")
    parser.add_argument("--first", type=int, default=0, help="The number of the first one.")
    given = parser.parse_args()
    running: dict[str, Store] = {}
    number = seed()
    with tempfile.TemporaryDirectory() as folder:

        def store_of(wheel: Wheel) -> Store:
            if wheel.version not in running:
                (at := Path(folder) / wheel.version).mkdir()
                running[wheel.version] = Store(wheel, at)
            return running[wheel.version]

        wheels = {version: install_release(version) for version in WHEELS}
        pages = HugePages()
        try:
            done, differences = run(
                given.count,
                number,
                wheels.__getitem__,
                store_of,
                pages,
                Path(folder),
                (*wheels,),
                given.first,
                given.seconds,
            )
        finally:
            for each in running.values():
                each.stop()
            pages.set(0, 0, 0)
    for what, count in sorted(done.items()):
        print(f"{count:5} {what}")
    print(f"PREFLIGHT_SEED={number}: {done.total()} launches, {len(differences)} differences")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
