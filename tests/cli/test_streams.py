"""Standard streams that are closed or full, files that are no files, and no thread to be had."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from checks.framework.archive import write_whole
from checks.framework.root import Root
from checks.run_checks.facts import read_facts
from preflight.base.output import terminal_text
from preflight.cli.main import run
from tests.builders.synthetic import build_host, plain_host

pytestmark = pytest.mark.slow

PREFLIGHT = (sys.executable, "-m", "preflight.cli.main")
SIZING = (sys.executable, "-m", "preflight.cli.sizing")
EXAMPLE = ("--tp-size", "1", "--hicache-size", "1gb", "--global-segment-size", "1gb")


def shell(words: tuple[str, ...], redirections: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {redirections}', "bash", *words],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_host(tmp_path_factory.mktemp("host"), plain_host())


@pytest.mark.parametrize("redirections", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_exit_code(host: Path, redirections: str) -> None:
    """As an init or a supervisor starts programs; the same answer as with open ones."""
    words = (*PREFLIGHT, "check", "--only", "memory.overcommit", "--root", str(host))
    assert shell(words, redirections).returncode == shell(words, "").returncode
    if redirections == "2>&-":  # an error is one object all the same
        done = shell((*PREFLIGHT, "check", "--json", "/no/such/launch.sh"), redirections)
        assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (64, 64)


def test_a_closed_stream_stays_closed_for_the_server(tmp_path: Path) -> None:
    """The gate puts nothing in its place that the command would inherit."""
    out = tmp_path / "out"
    look = (
        "import os, sys\n"
        "try: said = str(os.fstat(1).st_mode)\n"
        "except OSError: said = 'closed'\n"
        f"open({str(out)!r}, 'w').write(said)"
    )
    done = shell((*PREFLIGHT, "exec", "--", sys.executable, "-c", look), ">&-")
    assert (done.returncode, out.read_text()) == (0, "closed")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        (*PREFLIGHT, "explain", "--advisories"),
        (*PREFLIGHT, "--help"),
        (*SIZING, "--json", *EXAMPLE),
        (*PREFLIGHT, "topology", "--json", "--root", "no-such-root"),
    ],
)
def test_a_full_disk_is_said_and_is_no_defect(words: tuple[str, ...]) -> None:
    """An error whose object finds no room keeps its exit code."""
    done = shell(words, "> /dev/full")
    assert done.returncode == 64
    assert "No space left on device" in done.stderr or "no-such-root" in done.stderr
    assert "Traceback" not in done.stderr
    assert "defect" not in done.stderr


def test_a_device_or_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """As root, a report to /dev/null must leave /dev/null what it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(str(pipe), b"report")
    reader.join(60)
    assert (read, stat.S_ISFIFO(pipe.stat().st_mode)) == ([b"report"], True)


def test_a_capture_goes_through_standard_output(host: Path) -> None:
    """The archive alone, so that it can be piped to another machine."""
    words = (*PREFLIGHT, "capture", "-", "--root", str(host))
    done = subprocess.run(words, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16)
    unpack.decompress(done.stdout)
    assert (unpack.eof, unpack.unused_data) == (True, b"")
    assert Path("/dev/stdout").is_symlink()


def test_a_file_that_is_written_anew_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    """A link stays a link."""
    link, target = tmp_path / "report.json", tmp_path / "today.json"
    link.symlink_to(target)
    write_whole(str(link), b"{}")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"{}")
    page, new = tmp_path / "page.html", tmp_path / "new.html"
    page.write_text("yesterday")
    page.chmod(0o664)
    owner = (1234, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(page, *owner)
    write_whole(str(page), b"today", mode=0o644)
    write_whole(str(new), b"today", mode=0o644)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (page, new)] == [0o664, 0o644]
    assert ((page.stat().st_uid, page.stat().st_gid), page.read_text()) == (owner, "today")


def test_without_threads_the_host_is_read_all_the_same(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pids.max or ulimit -u is reached, as a container's may be."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with_threads = read_facts(Root(str(host)), None, 60.0, topics=("memory", "services"))
    monkeypatch.setattr(threading.Thread, "start", refused)
    without = read_facts(Root(str(host)), None, 60.0, topics=("memory", "services"))
    assert repr(without.topic("memory")) == repr(with_threads.topic("memory"))


HALF = """
import os, signal, sys
import click
from mooncake_preflight import preflight
whole = click.echo
def slow(text, err=False, color=None):
    whole(text[: len(text) // 2], nl=False, err=err)
    if not err:
        os.kill(os.getpid(), signal.SIGINT)
    whole(text[len(text) // 2 :], err=err)
click.echo = slow
preflight()
"""


def test_an_answer_that_is_being_printed_is_whole_or_followed_by_nothing(host: Path) -> None:
    """Ctrl-C while a reader is slow: an object comes to its end, and its exit code is the one."""
    words = ("check", "--only", "memory.overcommit", "--root", str(host))
    done = shell((sys.executable, "-c", HALF, *words, "--json"), "")
    assert (done.returncode, done.stderr) == (json.loads(done.stdout)["exit_code"], "")
    done = shell((sys.executable, "-c", HALF, *words), "")
    assert (done.returncode, "Traceback" in done.stderr) == (130, False)
    whole = shell((*PREFLIGHT, *words), "").stdout
    assert len(done.stdout) < len(whole)
    assert whole.startswith(done.stdout)


@pytest.mark.parametrize(
    "command",
    [
        ("check", "-v"),
        ("fit",),
        ("capacity",),
        ("plan",),
        *(("plan", "--format", name) for name in ("shell", "docker", "env", "k8s", "compose")),
        ("plan", "--format", "systemd", "--name", "x\n[Service]\x1b[31m"),
    ],
)
def test_nothing_of_a_launch_is_obeyed_by_a_terminal(
    host: Path, tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences (those of our own colours too), C1 controls, marks of direction."""
    hostile = "a\x1b[31m\x1b[2J\x9b\u202e\u2066b"
    script = tmp_path / f"{hostile}.sh"
    script.write_text(
        f"export MOONCAKE_MASTER='127.0.0.1:1{hostile}' MC_STORE_USE_HUGEPAGE=1\n"
        f"python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --no-such='{hostile}' "
        f"--served-model-name '{hostile}' --enable-hierarchical-cache --hicache-size 1 "
        "--hicache-storage-backend mooncake\n"
    )
    run([*command, "--root", str(host), str(script)])
    seen = capsys.readouterr()
    said = seen.out + seen.err
    assert terminal_text(said) == said
    assert all(
        line.startswith("#") for line in seen.out.splitlines() if "/systemd/system/x" in line
    )
