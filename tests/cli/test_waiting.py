"""Nothing waits for ever: a pipe without a writer, a mount that never answers, a frozen disk."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.apart import apart
from preflight.base.usage_error import UsageError
from preflight.base.within import save
from preflight.inputs import host_source
from tests.paths import ROOT

pytestmark = pytest.mark.slow

PREFLIGHT = (sys.executable, "-m", "mooncake_preflight")
SIZING = (sys.executable, "-c", "import mooncake_preflight; mooncake_preflight.sizing()")
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --hicache-size 1"
LAUNCH = ("--", *SERVER.split())
# Of each step; what is not waited for takes a second or two beside other tests.
TIMEOUT = ("--timeout", "1")
LONGEST_SECONDS = 90.0
DESCRIBED = ("--memory", "2tb", "--gpus", "1xH800", "--model", "Qwen/Qwen3-32B")

# What is given: words with PATH in place of what never answers. None: any exit code.
WAITING: dict[str, tuple[tuple[str, ...], int | None]] = {
    "launch": ((*PREFLIGHT, "check", *TIMEOUT, "PATH"), None),
    "keys": ((*PREFLIGHT, "keys", *TIMEOUT, "PATH"), None),
    "read": ((*PREFLIGHT, "read", *TIMEOUT, "PATH"), None),
    "waivers": ((*PREFLIGHT, "check", *TIMEOUT, "--waivers", "PATH"), 64),
    "plan": ((*PREFLIGHT, "plan", *TIMEOUT, "PATH"), None),
    "script": ((*PREFLIGHT, "check", *TIMEOUT, "--", "bash", "PATH"), None),
    "root": ((*PREFLIGHT, "check", *TIMEOUT, "--root", "PATH"), 64),
    "page": ((*PREFLIGHT, "check", *TIMEOUT, "--html", "PATH"), 64),
    "junit": ((*PREFLIGHT, "check", *TIMEOUT, "--junit", "PATH"), 64),
    "model": ((*PREFLIGHT, "check", *TIMEOUT, "--model-config", "PATH", *LAUNCH), 64),
    "variables": ((*PREFLIGHT, "check", *TIMEOUT, "--env-file", "PATH", "LAUNCH"), None),
    "config": ((*PREFLIGHT, "check", *TIMEOUT, *LAUNCH, "--config", "PATH"), None),
    "capture": ((*PREFLIGHT, "capture", *TIMEOUT, "PATH", "LAUNCH"), 64),
    "nodes": ((*PREFLIGHT, "fleet", "check", "--nodes-file", "PATH"), 64),
    "manifest": ((*PREFLIGHT, "fleet", "manifest", "--image", "a/b", "--nodes", "a1", "PATH"), 64),
    "first launch": ((*PREFLIGHT, "fit", *TIMEOUT, *DESCRIBED, "--write", "PATH"), 64),
    "reports": ((*PREFLIGHT, "fleet", "check", "--nodes", "a1", "--reports", "PATH"), 64),
    "sizing": ((*SIZING, *TIMEOUT, "PATH"), 64),
    "sizing's root": ((*SIZING, *TIMEOUT, "--root", "PATH", "LAUNCH"), 64),
    # Whose --timeout is another wait, or that have none.
    "rehearsal": ((*PREFLIGHT, "rehearse", "--model-config", "PATH", "LAUNCH"), 64),
    "interpreter": ((*PREFLIGHT, "rehearse", "--python", "PATH", "LAUNCH"), None),
    "words": ((*PREFLIGHT, "explain", "PATH"), 64),
    "log": ((*PREFLIGHT, "explain", *TIMEOUT, "--log", "PATH"), 64),
    "merge": ((*PREFLIGHT, "fleet", "merge", "PATH"), None),
    "merged page": ((*PREFLIGHT, "fleet", "merge", "--html", "PATH", "LAUNCH"), 64),
    "rails": ((*PREFLIGHT, "fleet", "rails", "PATH"), None),
    "records": ((*PREFLIGHT, "advisories", "--osv-zip", "PATH"), 64),
    "report": ((*PREFLIGHT, "exec", *TIMEOUT, "--report", "PATH", "--", "mooncake_master"), 7),
}


def _all_end(place: Callable[[str], Path], folder: Path) -> None:
    """Start every command of ``WAITING`` side by side, each on a path of its own."""
    launch = folder / "launch.sh"
    launch.write_text(f"MOONCAKE_CONFIG_PATH={place('store')} {SERVER}\n")
    server = folder / "mooncake_master"
    server.write_text("#!/bin/sh\nexit 7\n")
    server.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    running = {}
    for name, (words, _) in WAITING.items():
        paths = {"PATH": str(place(name)), "LAUNCH": str(launch)}
        given = [paths.get(word, word) for word in words]
        running[name] = subprocess.Popen(
            given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )
    until = time.monotonic() + LONGEST_SECONDS
    for name, process in running.items():
        try:
            # To the end of its streams too: a pipe's reader waits for all who have it open.
            _, said = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            for one in running.values():
                one.kill()
            pytest.fail(f"{name}: does not end")
        code = WAITING[name][1]
        assert "Traceback" not in said, name
        assert code is None or process.returncode == code, (name, process.returncode, said)
        # What says how long it waited, waited as long as it was told.
        if "no answer in" in said and "--timeout" in WAITING[name][0]:
            assert "no answer in 1 s" in said, (name, said)
        assert process.returncode in (0, 1, 2, 3, 7, 64), (name, process.returncode, said)


def test_a_pipe_that_nobody_writes_to_ends_no_wait(tmp_path: Path) -> None:
    def pipe(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    _all_end(pipe, tmp_path)


def test_a_pipe_in_a_recorded_host_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meminfo")
    found = Root(str(tmp_path)).text("/meminfo")
    assert isinstance(found, Unknown)
    assert "pipe" in found.reason


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[Path]:
    """A FUSE mount whose server never answers, as an NFS server that is gone."""
    place = tmp_path / "mount"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE: {error}")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"dead", str(place).encode(), b"fuse", 0, options):
        os.close(device)
        pytest.skip(f"no mount: {os.strerror(ctypes.get_errno())}")
    yield place
    os.close(device)  # every wait for it ends
    libc.umount2(str(place).encode(), 2)


def test_a_mount_that_never_answers_ends_no_wait(dead_mount: Path, tmp_path: Path) -> None:
    _all_end(dead_mount.joinpath, tmp_path)


@pytest.fixture
def frozen_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is frozen: whoever writes to it sleeps, even against SIGKILL."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    steps = (
        ("mkfs.ext4", "-q", "-F", str(image)),
        ("mount", "-o", "loop", str(image), str(place)),
        ("fsfreeze", "-f", str(place)),
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        subprocess.run(["umount", str(place)], check=False, capture_output=True)
        pytest.skip(f"no frozen disk: {getattr(error, 'stderr', '') or error}")
    yield place
    subprocess.run(["fsfreeze", "-u", str(place)], check=True)
    for _ in range(50):  # those that slept in it wake up, and end
        if subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["page", "capture", "report", "first launch"])
def test_a_sleep_that_no_signal_ends_holds_nobody(
    frozen_disk: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "WAITING", {name: WAITING[name]})
    _all_end(frozen_disk.joinpath, tmp_path)


def test_a_root_that_hangs_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_source, "open_root", lambda _: Event().wait(60))
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"--root /mnt/x: no answer in 0\.2 s"):
        host_source.open_host("/mnt/x", 0.2)
    assert time.monotonic() - start < 30


def _killed() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_a_child_that_hangs_is_left_behind() -> None:
    """Its answer, where it has one; nothing, where its time is over; else how it ended."""
    assert apart(lambda: b"42") == b"42"
    assert apart(lambda: bytes(Event().wait(60)), limit_seconds=0.2) == b""
    assert apart(lambda: os._exit(3)) == b"3"
    assert apart(_killed) == b"137"


def test_where_nothing_more_can_be_opened_nothing_stays_open() -> None:
    """With so many descriptors left (ulimit -n), from none on; the work is done all the same."""
    code = (
        "import os, resource\n"
        "from preflight.base.apart import apart\n"
        "def opened(): return [n for n in range(40) if os.path.exists(f'/dev/fd/{n}')]\n"
        "usual, before = resource.getrlimit(resource.RLIMIT_NOFILE), opened()\n"
        "for more in range(9):\n"
        "    limit = max(before) + more\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, usual[1]))\n"
        "    answer = apart(lambda: b'x')\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, usual)\n"
        "    assert (answer, opened()) == (b'x', before), (more, opened(), before)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    """As a killed apply: nothing goes on that nobody has an eye on."""
    started = tmp_path / "started"
    code = (
        "import os, time\n"
        "from preflight.base.apart import apart\n"
        "def work():\n"
        f"    open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)\n"
        "apart(work)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    while not (started.exists() and started.read_text()):
        time.sleep(0.01)
    child = int(started.read_text())
    parent.kill()
    parent.wait(60)
    until = time.monotonic() + 10
    while time.monotonic() < until and _is_there(child):
        time.sleep(0.01)
    assert not _is_there(child)


def _is_there(pid: int) -> bool:
    """Whether a process has not ended; whoever took it over may not have asked for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_was_waited_for_is_said_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as late:
        save("--html pipe", str(tmp_path / "pipe"), b"x", 0o600, 0.2)
    assert str(late.value).startswith("--html pipe: no answer in 0.2 s")
