"""The gate as an entrypoint: it becomes the command, or refuses with 78; nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

ENTRY = [sys.executable, "-m", "preflight.cli.main", "exec"]
# A master alone is a launch that no host refuses for want of memory.
MASTER = "mooncake_master"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for the PATH, with a program named mooncake_master that runs this Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def _program(tools: Path, body: str, name: str = MASTER) -> None:
    path = tools / name
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(body)}")
    path.chmod(0o755)


def _environment(tools: Path, **other: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
    return {**kept, "PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), **other}


def _run(
    tools: Path, *arguments: str, entry: Sequence[str] = ENTRY, unset: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    env = _environment(tools, **environment)
    env.pop(unset, None)
    words = [*entry, *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, env=env, cwd="/", timeout=120, check=False
    )


# Two GPUs are asked for, and no host of these tests has them.
REFUSED = ["--", "python3", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-14B", "--tp"]
REFUSED += ["64", "--enable-hierarchical-cache", "--hicache-size", "1000"]


@pytest.mark.parametrize("code", [78, 255])
def test_the_exit_code_is_the_commands_own(tools: Path, code: int) -> None:
    _program(tools, f"raise SystemExit({code})")
    assert _run(tools, "--", MASTER, "--rpc_port", "50999").returncode == code


def test_the_process_and_its_environment_are_the_same(tools: Path) -> None:
    """The same id, descriptors, working directory and variables; no child is left behind."""
    _program(
        tools,
        """
        import json, os, signal, sys
        print(json.dumps({
            "pid": os.getpid(),
            "descriptor": os.read(int(sys.argv[2]), 5).decode(),
            "folder": os.getcwd(),
            "odd": os.environb[b"ODD"].hex(),
            "ignored": open("/proc/self/status").read().split("SigIgn:")[1].split()[0],
            "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
            "preflight": [n for n in os.environ if n.startswith("MOONCAKE")],
        }))
        """,
    )
    reader, writer = os.pipe()
    os.write(writer, b"hello")
    environment = {key.encode(): value.encode() for key, value in _environment(tools).items()}
    environment[b"ODD"] = b"\xff\xfe"
    process = subprocess.Popen(
        [*ENTRY, "--", MASTER, "--rpc_port", str(reader)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        pass_fds=(reader,),
    )
    out, _ = process.communicate(timeout=120)
    os.close(reader)
    os.close(writer)
    seen = json.loads(out)
    assert seen["pid"] == process.pid
    assert seen["descriptor"] == "hello"
    assert seen["folder"] == "/"
    assert seen["odd"] == "fffe"
    assert seen["children"] == ""
    assert seen["preflight"] == []
    # Python ignores SIGPIPE in itself: bit 13 would stay set in the server, and the fake server
    # is Python too, which sets it again. SIGXFSZ, bit 25, is set the same way by nobody else.
    assert int(seen["ignored"], 16) & ~((1 << 12) | (1 << 24)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_command(tools: Path, number: signal.Signals) -> None:
    _program(
        tools,
        """
        import os, signal
        def told(number, frame):
            os.write(1, f"{number}\\n".encode())
            os._exit(9)
        signal.signal(signal.SIGTERM, told)
        signal.signal(signal.SIGINT, told)
        os.write(1, b"ready\\n")
        signal.pause()
        """,
    )
    process = subprocess.Popen(
        [*ENTRY, "--", MASTER, "--rpc_port", "50999"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=_environment(tools),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    assert out == f"{number.value}\n"
    assert process.returncode == 9


def test_a_launch_that_would_fail_is_refused_with_78(tools: Path, tmp_path: Path) -> None:
    marker = tmp_path / "started"
    _program(tools, f"open({str(marker)!r}, 'w')", "python3")
    report = tmp_path / "report.json"
    done = _run(tools, "--report", str(report), *REFUSED)
    assert done.returncode == 78
    assert done.stdout == ""
    assert done.stderr.startswith("FAIL: ")
    assert done.stderr.endswith("mooncake-preflight exec: not started\n")
    assert not marker.exists()
    found = json.loads(report.read_text())
    assert found["status"] == "fail"


def test_what_the_check_says_is_one_object_where_that_is_asked_for(tools: Path) -> None:
    """On standard error, whether the command is refused, or is none that is known."""
    _program(tools, "print('started')", "python3")
    schema = json.loads((ROOT / "preflight/report/schemas/check-v1.schema.json").read_text())
    valid = jsonschema.Draft202012Validator(schema).validate
    done = _run(tools, "--json", *REFUSED)
    found = json.loads(done.stderr)
    valid(found)
    assert (done.returncode, done.stdout) == (78, "")
    assert (found["command"], found["status"], found["exit_code"]) == ("exec", "fail", 78)
    done = _run(tools, "--json", "--", "sh", "-c", "echo shell")
    found = json.loads(done.stderr)
    valid(found)
    assert (done.stdout, found["status"]) == ("shell\n", "error")
    assert found["reason"].startswith("nothing to check: ")


@pytest.mark.parametrize(
    ("mode", "code", "says"),
    [
        ("warn", 0, "started all the same"),
        ("off", 0, ""),
        # Not taken for off: a misspelt gate would stand open.
        ("on", 64, "MOONCAKE_PREFLIGHT_MODE=on: one of enforce, warn, off"),
    ],
)
def test_the_other_modes(tools: Path, mode: str, code: int, says: str) -> None:
    _program(tools, "print('started')", "python3")
    done = _run(tools, *REFUSED, MOONCAKE_PREFLIGHT_MODE=mode)
    assert (done.returncode, done.stdout) == (code, "started\n" if code == 0 else "")
    assert says in done.stderr
    assert bool(done.stderr) is bool(says)


def test_a_command_that_is_no_launch_is_run(tools: Path) -> None:
    """docker run IMAGE bash must still give a shell, and what a shell ends with."""
    done = _run(tools, "--fail-on", "unknown", "--", "sh", "-c", "echo shell; exit 3")
    assert (done.returncode, done.stdout) == (3, "shell\n")
    assert "nothing to check" in done.stderr
    assert _run(tools, "--", "no-such-command").returncode == 127
    (tools / "folder").mkdir()
    assert _run(tools, "--", str(tools / "folder")).returncode == 126
    assert _run(tools).returncode == 64


def test_a_report_that_cannot_be_written_keeps_nothing_from_starting(tools: Path) -> None:
    _program(tools, "print('started')")
    done = _run(tools, "--report", "/proc/none/report", "--", MASTER, "--rpc_port", "50999")
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "--report /proc/none/report: No such file or directory" in done.stderr


def test_it_works_without_a_home_and_as_nobody(tools: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("takes another user's place, which needs root")
    _program(tools, "import os; print(os.getuid())")
    entry = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *ENTRY]
    done = _run(tools, "--", "id", "-u", entry=entry, unset="HOME")
    if "Permission denied" in done.stderr:
        pytest.skip("this interpreter is not readable by others")
    assert (done.returncode, done.stdout) == (0, "65534\n")


def test_the_recommended_environment_is_set_for_the_command(tools: Path) -> None:
    """The SSD's limit is more than the disk has: with --apply-env the server gets one that fits."""
    _program(
        tools,
        "import os; print(os.environ.get('MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES'))",
        "mooncake_client",
    )
    folder = tools / "ssd"
    folder.mkdir()
    command = ["--", "mooncake_client", "--global_segment_size=16MB", "--enable_offload=true"]
    offload = {
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(folder),
        "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(1 << 60),
        "MOONCAKE_PREFLIGHT_MODE": "warn",
    }
    plain = _run(tools, *command, **offload)
    assert plain.stdout == f"{1 << 60}\n"
    applied = _run(tools, "--apply-env", *command, **offload)
    assert 0 < int(applied.stdout) < os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_during_the_check_is_not_lost(tools: Path, number: signal.Signals) -> None:
    """As the first process of a container too, where a signal without a handler is dropped."""
    _program(tools, "print('started')")
    body = (
        "import os, signal, threading\n"
        "from preflight.cli import gate\n"
        "real = gate._checked\n"
        "def checked(*arguments):\n"
        f"    os.kill(os.getpid(), {number.value})\n"
        "    return real(*arguments)\n"
        "gate._checked = checked\n"
        "from preflight.cli.main import run\n"
        "run(['exec', '--', 'mooncake_master', '--rpc_port', '50999'])\n"
    )
    done = _run(tools, entry=["unshare", "--pid", "--fork", sys.executable, "-c", body])
    if "unshare failed" in done.stderr:
        pytest.skip("no process namespace of its own without root")
    assert done.stdout == ""
    assert done.returncode == 128 + number


@pytest.mark.parametrize("given", [None, "C", "C.UTF-8"])
def test_the_locale_is_the_one_that_was_given(tools: Path, given: str | None) -> None:
    """Python sets LC_CTYPE for itself where the locale is C; the server must not inherit that. Nor
    what Python ignores: a program that is no Python sees SIGPIPE and SIGXFSZ at their defaults."""
    path = tools / MASTER
    path.write_text('#!/bin/sh\necho "${LC_CTYPE-none}"\ngrep SigIgn /proc/self/status\n')
    path.chmod(0o755)
    locale = {} if given is None else {"LC_CTYPE": given}
    done = _run(tools, "--", MASTER, "--rpc_port", "50999", unset="LANG", **locale)
    locale_seen, _, ignored = done.stdout.split()
    assert locale_seen == (given or "none")
    assert int(ignored, 16) & ((1 << 12) | (1 << 24)) == 0
