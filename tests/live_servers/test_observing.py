"""What runs, read from a folder like /proc: amounts, their causes, and hostile contents."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from checks.framework.archive import archive_bytes
from checks.framework.finding import Status, Subject
from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.host_snapshot.anonymise import anonymise
from checks.host_snapshot.capture import capture_files, open_root
from preflight.base.usage_error import UsageError
from preflight.cli.main import run
from preflight.live_servers.comparison import findings, node_findings, traffic_findings
from preflight.live_servers.running_launch import running_servers
from preflight.live_servers.running_record import RunningRecord, record_running

CLIENT = (
    "mooncake_client --host=10.0.0.1 --global_segment_size={size} --protocol={protocol} "
    "--metadata_server=P2PHANDSHAKE --master_server_address=10.0.0.2:50051"
)
PAGE = 2 << 20
DIGITS = "9" * 5000
LONG = f"Max locked memory {DIGITS} {DIGITS}\nVmPin: {DIGITS} kB\neth0: {' '.join([DIGITS] * 9)}\n"
STATUS = "Name:\tclient\nVmLck:\t0 kB\nVmPin:\t{pinned} kB\n"
LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units\n"
    "Max locked memory         {memlock}  unlimited  bytes\nMax open files  1024  1048576  files\n"
)


def huge(
    pages: int, nodes: Mapping[int, int], start: int = 0x7F0000000000, size_kb: int = 2048
) -> tuple[str, str]:
    """A line of maps and one of numa_maps, of one mapping."""
    end = start + pages * size_kb * 1024
    on = " ".join(f"N{node}={count}" for node, count in nodes.items())
    return (
        f"{start:x}-{end:x} rw-p 00000000 00:0f {start % 99991} /anon_hugepage (deleted)\n",
        f"{start:x} default file=/anon_hugepage huge {on} kernelpagesize_kB={size_kb}\n",
    )


def process(
    root: Path,
    pid: int,
    words: str,
    *mappings: tuple[str, str],
    parent: int = 1,
    environment: str = "MC_STORE_USE_HUGEPAGE=1",
    anonymous_pages: int = 0,
    memlock: str = "unlimited",
    pinned_kb: int = 0,
    files: tuple[str, ...] = (),
) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    anonymous = f"55550000 default anon={anonymous_pages} N0=1 kernelpagesize_kB=4\n"
    texts = {
        "cmdline": words.replace(" ", "\0") + "\0",
        "environ": environment + "\0",
        "stat": f"{pid} (a ) b) S {parent} 1 1",
        "maps": "".join(maps for maps, _ in mappings),
        "numa_maps": anonymous + "".join(numa for _, numa in mappings),
        "status": STATUS.format(pinned=pinned_kb),
        "limits": LIMITS.format(memlock=memlock),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for number, target in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(target)


def found(root: Path, pid: int = 100) -> dict[str, tuple[Status, str]]:
    """The status and what was said, by the check."""
    judged = findings(running_servers(Root(str(root)), (pid,)))
    return {one.check: (one.status, f"{one.have} {one.text}") for _, one in judged}


def client(size: str = "64MB", protocol: str = "tcp") -> str:
    return CLIENT.format(size=size, protocol=protocol)


@pytest.mark.parametrize(
    ("mappings", "anonymous_pages", "said"),
    [
        ((), 16384, "regular ones"),
        ((), 0, "not mapped"),
        ((huge(16, {0: 16}),), 0, "32.00 MiB are not mapped"),
        ((huge(1, {0: 1}, size_kb=1 << 20),), 0, "pages of 1 GiB"),
        ((huge(40, {0: 40}),), 0, "16.00 MiB more"),
    ],
)
def test_what_differs_has_its_cause(
    tmp_path: Path, mappings: tuple[tuple[str, str], ...], anonymous_pages: int, said: str
) -> None:
    process(tmp_path, 100, client(), *mappings, anonymous_pages=anonymous_pages)
    judged = findings(running_servers(Root(str(tmp_path)), (100,)))
    assert any(said in one.text for _, one in judged if one.status is Status.WARN)


@pytest.mark.parametrize(
    ("predicted", "on_node", "statuses"),
    [
        ({Spot(PAGE, 0): 32}, {(PAGE, 0): 32}, [Status.PASS]),
        ({Spot(PAGE, 0): 32}, {(PAGE, 0): 20}, [Status.PASS]),  # the rest was not touched
        ({Spot(PAGE, 0): 32}, {(PAGE, 0): 12, (PAGE, 1): 20}, [Status.PASS, Status.WARN]),
        ({Spot(PAGE, 0): 16, Spot(PAGE, 1): 16}, {(PAGE, 0): 20, (PAGE, 1): 12},
         [Status.WARN, Status.PASS]),
        ({Spot(PAGE, None): 32}, {(PAGE, 1): 32}, []),
        ({Spot(1 << 30, 0): 1}, {(PAGE, 1): 32}, []),
    ],
)  # fmt: skip
def test_pages_on_a_node_that_nothing_is_bound_to(
    predicted: Mapping[Spot, int], on_node: Mapping[tuple[int, int], int], statuses: list[Status]
) -> None:
    subject = Subject("mooncake_client", "process")
    judged = node_findings(subject, PAGE, on_node, predicted)
    assert [(one.check, one.status) for one in judged] == [
        ("observe.numa-node", status) for status in statuses
    ]


@pytest.mark.parametrize(
    ("file", "status"), [("/dev/infiniband/uverbs0", Status.PASS), ("/dev/null", Status.WARN)]
)
def test_rdma_is_a_device_that_is_open(tmp_path: Path, file: str, status: Status) -> None:
    process(tmp_path, 100, client(protocol="rdma"), huge(32, {0: 32}), files=(file,))
    assert found(tmp_path)["observe.transport"][0] is status


def test_what_waits_in_front_and_what_is_forked_are_no_programs(tmp_path: Path) -> None:
    process(tmp_path, 99, f"timeout 60 {client()}")
    process(tmp_path, 100, client(), huge(32, {0: 32}), parent=99)
    process(tmp_path, 101, client(), parent=100)
    assert [server.pid for server in running_servers(Root(str(tmp_path)))] == [100]


def test_a_process_that_is_none_is_refused(tmp_path: Path) -> None:
    process(tmp_path, 100, "sleep 60")
    for pid in (100, 7):
        with pytest.raises(UsageError):
            running_servers(Root(str(tmp_path)), (pid,))


LONG_SHELL = "bash\0-c\0" + "mooncake_client\n" * 10_050  # more commands than are read


@pytest.mark.parametrize(
    "name", ["maps", "numa_maps", "status", "limits", "stat", "environ", "cmdline", "net/dev"]
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\xff garbage",
        "7f00-zz x y z\n",
        "a=b=c huge N0=x\n",
        LONG,
        pytest.param(LONG_SHELL, id="long shell"),
    ],
)
def test_hostile_contents_end_in_an_answer(tmp_path: Path, name: str, text: str) -> None:
    process(tmp_path, 100, client(), huge(32, {0: 32}))
    (tmp_path / "proc/100/net").mkdir()
    (tmp_path / f"proc/100/{name}").write_text(text)
    root = Root(str(tmp_path))
    servers = running_servers(root)
    assert len(servers) == (name != "cmdline")
    for of_traffic in (findings(servers), traffic_findings(servers, root, 1, lambda _: None)):
        for _, finding in of_traffic:
            assert isinstance(finding.status, Status)


class VanishingRoot(Root):
    """A process that ends after a number of reads."""

    def __init__(self, path: Path, reads: int) -> None:
        super().__init__(str(path))
        self.folder, self.left = path / "proc/100", reads

    def locate(self, name: str) -> str:
        self.left -= 1
        if self.left == 0:
            shutil.rmtree(self.folder)
        return super().locate(name)


def test_a_process_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    """Wherever it ends: nothing that it holds passes, and nothing is a traceback."""
    reads = 1
    while True:
        folder = tmp_path / str(reads)
        process(folder, 100, client(), huge(32, {0: 32}), files=("/dev/null",))
        root = VanishingRoot(folder, reads)
        for _, finding in findings(running_servers(root)):
            passes = finding.check == "observe.huge-pages" and finding.status is Status.PASS
            assert not passes or finding.have == "32 pages of 2 MiB"
        if root.left > 0:
            break
        reads += 1
    assert reads > 10


@pytest.mark.parametrize("name", ["maps", "numa_maps", "environ"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, name: str) -> None:
    process(tmp_path, 100, client(), huge(32, {0: 32}))
    (tmp_path / f"proc/100/{name}").unlink()
    (tmp_path / f"proc/100/{name}").mkdir()
    assert found(tmp_path)["observe.huge-pages"][0] is Status.UNKNOWN


def said(root: Root) -> list[tuple[str, str, str, str]]:
    rows = findings(running_servers(root))
    return [(one.check, one.status.value, f"{one.have} {one.need}", one.text) for _, one in rows]


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A client that holds half of its pages, its fork, and somebody's editor."""
    (tmp_path / "sys").mkdir()
    process(tmp_path, 1, "init", parent=0)
    process(
        tmp_path,
        100,
        f"{client(protocol='rdma')} --token=hunter2 --api-key hunter2".replace(
            "10.0.0.", "10.9.8."
        ),
        huge(16, {0: 16}),
        environment="MC_STORE_USE_HUGEPAGE=1\0AWS_SECRET_ACCESS_KEY=hunter2\0MY=hunter2",
        anonymous_pages=16384,
        memlock="67108864",
        pinned_kb=65000,
        files=("/dev/null", "/dev/infiniband/uverbs0"),
    )
    process(tmp_path, 101, "worker hunter2", huge(16, {0: 16}), parent=100)
    process(tmp_path, 300, "vim hunter2", environment="MY=hunter2", files=("/dev/null",))
    return tmp_path


def saved(host: Path, seen: RunningRecord) -> Root:
    answers, extras = anonymise(seen.answers, {"running": seen.argv}, seen.hosts, ())
    file = host / "host.tar.gz"
    file.write_bytes(archive_bytes(capture_files(answers, extras)))
    return open_root(str(file))


def test_nothing_else_is_kept(host: Path) -> None:
    """No secret, no variable that does not count, nothing of another process."""
    seen = record_running(Root(str(host)))
    kept = f"{seen.answers} {seen.argv}"
    assert "hunter2" not in kept
    assert "/proc/300" not in kept
    assert "10.9.8" not in str(saved(host, seen).text("/proc/100/cmdline"))


def test_a_capture_without_what_runs_is_refused(
    host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = host / "plain.tar.gz"
    assert run(["capture", "--root", str(host), str(file)]) == 0
    assert run(["observe", "--root", str(file)]) == 64
    assert "not in this capture" in capsys.readouterr().err
    with_it = host / "running.tar.gz"
    assert run(["capture", "--running", "--root", str(host), str(with_it)]) == 0
    assert run(["observe", "--root", str(with_it)]) == 1
    capsys.readouterr()
    by_number, by_option = (
        (run(["observe", "--root", str(with_it), *words]), capsys.readouterr())
        for words in (["100"], ["--pid", "100"])
    )
    assert by_number == by_option
    assert run(["observe", "--root", str(with_it), "99999"]) == 64  # no such process
    assert "99999" in capsys.readouterr().err
