"""``observe`` beside real programs on real huge pages: what they hold is what was predicted.

A situation is a row of a table; those of one table share a master. Other programs of the machine
may run beside them: only this table's own are looked at.
"""

from __future__ import annotations

import json
import mmap
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.cli.observe import observe_host
from preflight.command_inputs.launch_words import LaunchWords
from preflight.live_servers.report import Observation
from tests.paths import ROOT
from tests.real.conftest import HugePages, Store, Wheel, free_port, install
from tests.valid import valid

pytestmark = pytest.mark.real
SCHEMA = json.loads((ROOT / "preflight/report/schemas/observe-v1.schema.json").read_text())
ON = {"MC_STORE_USE_HUGEPAGE": "1"}
HOT = {**ON, "MC_STORE_LOCAL_HOT_CACHE_USE_SHM": "1"}
MIB = 1 << 20
PAGE = 2 << 20
BESIDE_AIOHTTP = (
    "aiohappyeyeballs aiosignal attrs frozenlist idna multidict propcache yarl typing_extensions"
).split()


class Started(NamedTuple):
    """One client of a table: its environment, its flags, what stands in front, its own pages."""

    environment: Mapping[str, str]
    flags: str
    pages: int | None
    front: str = ""


# All of these run as they are meant; {path} is a folder of the test.
AS_MEANT = {
    "128 pages": Started(ON, "--global_segment_size=256MB", 128),
    "a size that ends inside a page": Started(ON, "--global_segment_size=77MB", 39),
    "regular pages": Started({}, "--global_segment_size=64MB", None),
    "an own buffer": Started(ON, "--global_segment_size=64MB --local_buffer_size=16MB", 40),
    "an arena of which half is used": Started({**ON, "MC_MMAP_ARENA_POOL_SIZE": "120mb"},
        "--global_segment_size=64MB", 60),
    "a hot cache on huge pages": Started({**HOT, "MC_STORE_LOCAL_HOT_CACHE_SIZE": "33554432"},
        "--global_segment_size=16MB", 24),
    "no segment": Started(ON, "--global_segment_size=0", None),
    "offload to SSD": Started({**ON, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": "{path}"},
        "--global_segment_size=16MB --enable_offload=true", 8),
    "behind timeout": Started(ON, "--global_segment_size=16MB", 8, "timeout 600"),
    "behind numactl": Started(ON, "--global_segment_size=16MB", 8, "numactl --localalloc"),
    "behind a shell that waits": Started(ON, "--global_segment_size=16MB", 8,
        "sh -c '\"$@\"; true' x"),
    "in pid and mount namespaces of its own": Started(ON, "--global_segment_size=16MB", 8,
        "unshare -pf --mount-proc --kill-child"),
    "another user's, for root": Started(ON, "--global_segment_size=16MB", 8,
        "setpriv --reuid=65534 --clear-groups"),
}  # fmt: skip
PAGES_OF_TABLE = 700


class Table:
    """A master, and programs that joined it, by the names of the table."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lines: dict[str, str] = {}
        master = store._processes[0]
        self.processes["master"] = master
        self.lines["master"] = self._line(master.pid)

    def start(self, name: str, started: Started) -> None:
        wheel = self.store.wheel
        port = free_port()
        words = [
            *shlex.split(started.front),
            wheel.command("mooncake_client"),
            "--host=127.0.0.1",
            f"--port={port}",
            "--metadata_server=P2PHANDSHAKE",
            f"--master_server_address={self.store.address}",
            *started.flags.split(),
        ]
        if "--protocol" not in started.flags:
            words.append("--protocol=tcp")
        environment = {
            key: value.replace("{path}", str(self.folder))
            for key, value in started.environment.items()
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                env=wheel.environment(environment),
                start_new_session=True,  # what stands in front ends with it
            )
        self.store._processes.append(process)
        self.store._wait_for(f"127.0.0.1:{port}")
        self.processes[name] = process
        set_here = " ".join(f"{key}={value}" for key, value in environment.items())
        self.lines[name] = f"{set_here} {' '.join(words)}".strip()

    @staticmethod
    def _line(pid: int) -> str:
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0"))

    def pids(self, *names: str) -> tuple[int, ...]:
        return tuple(self.processes[name].pid for name in names or self.processes)

    def launch(self, *names: str, change: Callable[[str], str] = str) -> LaunchWords:
        """A script that starts these, after a change of its text."""
        script = self.folder / "launch.sh"
        script.write_text(change("\n".join(f"{self.lines[name]} &" for name in names) + "\nwait\n"))
        return LaunchWords((str(script),))

    def stop_all(self) -> None:
        for name in [*self.processes][1:]:
            self.stop(name)
        self.store.stop()

    def stop(self, name: str) -> None:
        process = self.processes.pop(name)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.store._processes.remove(process)


def seen(pids: Sequence[int] = (), launch: LaunchWords | None = None) -> Observation:
    return observe_host(tuple(pids), launch or LaunchWords())[0]


def deviations(observation: Observation) -> dict[str, str]:
    """What is not as it was meant, by its check: what it has, and what is said."""
    return {
        row.finding.check: f"{row.finding.have}: {row.finding.text}"
        for row in observation.rows
        if row.finding.status.value not in ("pass", "skip")
    }


def pages(observation: Observation) -> list[tuple[int | None, int | None]]:
    """Pages that are held and predicted, of each client."""
    return [
        (getattr(finding.have, "value", None), getattr(finding.need, "value", None))
        for server, finding, _ in observation.rows
        if finding.check == "observe.huge-pages" and server and "master" not in server.name
    ]


def observe(*words: str, code: int, before: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """What a process of its own prints as JSON."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "preflight", "observe", "--json", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done
    answer: Mapping[str, Any] = json.loads(done.stdout)
    valid(answer, SCHEMA)
    return answer


@pytest.fixture(scope="module")
def table(
    wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Table]:
    """All that runs as it is meant, started once."""
    if (why := huge_pages.set(PAGES_OF_TABLE, 0, 0)) is not None:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("observed")
    folder.chmod(0o777)
    store = Store(wheel_0_3_13, folder, "--client_ttl=10")
    table = Table(store, folder)
    try:
        for name, started in AS_MEANT.items():
            table.start(name, started)
        yield table
    finally:
        table.stop_all()


@pytest.mark.parametrize("name", AS_MEANT)
def test_what_runs_as_it_is_meant(table: Table, name: str) -> None:
    """To the page, and nothing is warned of."""
    observation = seen(table.pids(name))
    assert deviations(observation) == {}
    assert pages(observation) == [(AS_MEANT[name].pages,) * 2]


def test_all_of_them_are_the_pool(table: Table) -> None:
    """To the byte; the answer is as its schema says."""
    words = [word for pid in table.pids() for word in ("--pid", str(pid))]
    answer = observe(*words, code=0)
    (pool,) = (one for one in answer["findings"] if one["check"] == "observe.store-pool")
    assert pool["have"]["value"] == pool["need"]["value"] > 500 * MIB


@pytest.mark.parametrize(("release", "held"), [("0.3.8", None), ("0.3.14", 39)])
def test_clients_of_other_releases(
    release: str,
    held: int | None,
    wheel_of: Callable[[str], Wheel],
    huge_pages: HugePages,
    tmp_path: Path,
    table: Table,
) -> None:
    """With a master of their own: what each should hold follows from the release that it loaded."""
    other = Table(Store(wheel_of(release), tmp_path), tmp_path)
    try:
        other.start("client", Started(ON, "--global_segment_size=77MB", held))
        observation = seen(other.pids())
        assert (deviations(observation), pages(observation)) == ({}, [(held, held)])
        assert {version for one in observation.servers for _, version in one.releases} == {release}
    finally:
        other.stop_all()


SOME = ("master", "128 pages", "an own buffer", "behind numactl")
OWN = "an own buffer"


class Launched(NamedTuple):
    """A launch of some of them that says something else than what runs, and what is found."""

    change: Callable[[str], str]
    status: str
    said: str
    mooncake_version: str | None = None


LAUNCHES = {
    "as it says": Launched(str, "pass", ""),
    "another size": Launched(
        lambda text: text.replace("=256MB", "=128MB"), "warn", "global_segment_size 256MB"
    ),
    "a variable that came on top": Launched(
        lambda text: text.replace("MC_STORE_USE_HUGEPAGE=1 ", "", 1),
        "warn",
        "MC_STORE_USE_HUGEPAGE 1",
    ),
    "one that does not run": Launched(
        lambda text: f"{text}mooncake_client --port=50099 --host=h --global_segment_size=1GB\n",
        "warn",
        "not running",
    ),
    "a value that is left open": Launched(
        lambda text: text.replace("--host=127.0.0.1", "--host=$OWN_ADDRESS"), "pass", ""
    ),
    "another release than is named": Launched(str, "warn", "mooncake 0.3.13.post1", "0.3.12.post1"),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_is_held_against_what_runs(table: Table, name: str) -> None:
    """Others of its kind that run are none of it."""
    situation = LAUNCHES[name]
    words = table.launch(*SOME, change=situation.change)
    words = words._replace(mooncake_version=situation.mooncake_version)
    observation = seen(launch=words)
    found = " ".join(deviations(observation).values())
    assert (observation.verdict.value, bool(found)) == (situation.status, bool(situation.said))
    assert situation.said in found
    skipped = [row for row in observation.rows if row.finding.status.value == "skip"]
    assert len(skipped) >= len(AS_MEANT) - len(SOME) + 1


def test_without_the_right_nothing_passes(table: Table) -> None:
    """Another user's memory is unknown, and so is whether a launch runs as it says."""
    nobody = ("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups")
    answer = observe("--pid", str(table.pids(OWN)[0]), code=3, before=nobody)
    assert [one["status"] for one in answer["findings"]] == ["unknown"]


def test_nothing_of_it_is_stopped(table: Table) -> None:
    seen(table.pids(OWN))
    assert "\nTracerPid:\t0\n" in Path(f"/proc/{table.pids(OWN)[0]}/status").read_text()


# What is not as it was meant.


@contextmanager
def held_pages(count: int) -> Iterator[None]:
    """Another process's pages, as far as observe can tell."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
    with mmap.mmap(-1, count * PAGE, flags=flags):
        yield


@pytest.fixture
def alone(wheel_0_3_13: Wheel, huge_pages: HugePages, tmp_path: Path) -> Iterator[Table]:
    """A master of its own, which soon drops a client that is gone."""
    if (why := huge_pages.set(PAGES_OF_TABLE, 0, 0)) is not None:
        pytest.skip(why)
    table = Table(Store(wheel_0_3_13, tmp_path, "--client_ttl=2"), tmp_path)
    yield table
    table.stop_all()


class Deviation(NamedTuple):
    """A client that is not as it was meant, and what is said of it."""

    started: Started
    held: int
    said: Mapping[str, str]


DEVIATIONS = {
    "no RDMA device": Deviation(
        Started(ON, "--global_segment_size=16MB --protocol=rdma", 8), 0, {"transport": "over TCP"}
    ),
    "an arena that is larger than the host's pool": Deviation(
        Started({**ON, "MC_MMAP_ARENA_POOL_SIZE": "20gb"}, "--global_segment_size=16MB", 8),
        0,
        {"huge-pages": "such pages in all"},
    ),
    "others hold the pages of a hot cache": Deviation(
        Started(
            {**HOT, "MC_STORE_LOCAL_HOT_CACHE_SIZE": "134217728"}, "--global_segment_size=16MB", 8
        ),
        40,
        {"huge-pages": "others hold"},
    ),
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_what_is_not_as_it_was_meant_is_named(table: Table, name: str) -> None:
    situation = DEVIATIONS[name]
    with ExitStack() as stack:
        if situation.held:
            free = int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
            stack.enter_context(held_pages(free - situation.held))
        table.start(name, situation.started)
        stack.callback(table.stop, name)
        observation = seen(table.pids(name))
    found = deviations(observation)
    assert found.keys() == {f"observe.{check}" for check in situation.said}
    assert all(text in found[f"observe.{check}"] for check, text in situation.said.items())
    assert pages(observation)[0][0] == situation.started.pages


SMALL = Started(ON, "--global_segment_size=16MB", 8)
OTHER = Started(ON, "--global_segment_size=32MB", 16)


def test_a_client_that_is_killed_or_stops(alone: Table) -> None:
    """The segment of one that is gone stays for a while; one that pings no more loses its own."""
    for name, started in (("lives", SMALL), ("dies", OTHER)):
        alone.start(name, started)
    assert deviations(seen(alone.pids())) == {}
    launch = alone.launch("master", "lives", "dies")
    alone.processes["dies"].kill()
    time.sleep(0.1)  # nobody has waited for it yet
    observation = seen(launch=launch)
    assert deviations(observation).keys() == {"observe.launch", "observe.store-pool"}
    assert "belong to no program" in deviations(observation)["observe.store-pool"]
    alone.stop("dies")
    until(lambda: seen(alone.pids()).verdict.value == "pass")  # dropped after client_ttl
    alone.processes["lives"].send_signal(signal.SIGSTOP)
    until(lambda: bool(deviations(seen(alone.pids()))))
    observation = seen(alone.pids())
    assert "are not in the pool" in deviations(observation)["observe.store-pool"]
    assert pages(observation) == [(8, 8)]


def test_a_master_that_does_not_answer(alone: Table) -> None:
    """Whether its pool has what runs here is unknown, and what clients hold is known."""
    alone.start("client", SMALL)
    alone.processes["master"].send_signal(signal.SIGSTOP)
    try:
        observation = seen(alone.pids())
    finally:
        alone.processes["master"].send_signal(signal.SIGCONT)
    assert deviations(observation).keys() == {"observe.store-pool"}
    assert (observation.verdict.value, pages(observation)) == ("unknown", [(8, 8)])


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)


def test_files_near_their_limit(table: Table) -> None:
    """The command that raises the limit is printed, and is about that process."""
    (pid,) = table.pids(OWN)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={used}:"], check=True)
    observation = seen((pid,))
    assert deviations(observation).keys() == {"observe.open-files"}
    ((command,),) = [row.commands for row in observation.rows if row.commands]
    subprocess.run(command, shell=True, check=True)
    assert deviations(seen((pid,))) == {}


def test_a_release_that_was_replaced_after_the_start(alone: Table) -> None:
    """As pip does it below a server that runs."""
    folder = alone.folder / "site"
    shutil.copytree(alone.store.wheel.folder, folder, copy_function=os.link)
    alone.store.wheel = Wheel(alone.store.wheel.version, folder)
    alone.start("client", SMALL)
    (folder / "mooncake/mooncake_client").unlink()
    observation = seen(alone.pids("client"))
    assert "was replaced after its start" in deviations(observation)["observe.release"]
    assert pages(observation) == [(8, 8)]


def test_two_store_services_of_one_name(alone: Table) -> None:
    """The second is refused, which takes the name of the first away, and joins at its next try."""
    packages = install("aiohttp", "3.14.5", *BESIDE_AIOHTTP)
    metadata = free_port()
    flags = ("--enable_http_metadata_server=true", f"--http_metadata_server_port={metadata}")
    server = Store(alone.store.wheel, alone.folder, *flags)
    processes = [server._processes[0]]
    try:
        name = free_port()
        for number in (1, 2):
            settings = {
                "local_hostname": f"127.0.0.1:{name}",
                "metadata_server": f"http://127.0.0.1:{metadata}/metadata",
                "global_segment_size": 32 * MIB,
                "local_buffer_size": 16 * MIB,
                "protocol": "tcp",
                "device_name": "",
                "master_server_address": server.address,
            }
            config, port = alone.folder / f"{number}.json", free_port()
            config.write_text(json.dumps(settings))
            words = [sys.executable, "-m", "mooncake.mooncake_store_service"]
            words += [f"--config={config}", f"--port={port}"]
            environment = alone.store.wheel.environment(ON)
            environment["PYTHONPATH"] += f":{packages}"
            log = (alone.folder / f"service{number}.log").open("wb")
            process = subprocess.Popen(
                words, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            alone.processes[f"service {number}"] = process
            alone.store._processes.append(process)
            processes.append(process)
            alone.store._wait_for(f"127.0.0.1:{port}")
        observation = seen([process.pid for process in processes])
        assert pages(observation) == [(24, 24), (24, 24)]
        found = deviations(observation)
        assert found.keys() == {"observe.store-pool"}
        assert f"2 programs here are 127.0.0.1:{name}" in found["observe.store-pool"]
    finally:
        server.stop()
