"""Nothing waits for ever: a pipe without a writer, a mount that never answers."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from threading import Event

import click
import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.base.usage_error import UsageError
from preflight.base.within import LIMIT_SECONDS, limit_seconds, within
from tests.cli.commands import LEAVES
from tests.paths import ROOT

pytestmark = pytest.mark.slow

PREFLIGHT = ("preflight",)
SIZING = ("sizing",)
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --hicache-size 1"
SERVER += " --enable-hierarchical-cache --hicache-storage-backend mooncake"
LAUNCH = ("--", *SERVER.split())
# Of each step; what is not waited for takes a second or two beside other tests.
TIMEOUT = ("--timeout", "1")
LONGEST_SECONDS = 90.0
DESCRIBED = ("--memory", "2tb", "--gpus", "1xH800", "--model", "Qwen/Qwen3-32B")

Waiting = Mapping[str, tuple[tuple[str, ...], int | None]]
# What is given: words with PATH in place of what never answers. None: any exit code.
WAITING: Waiting = {
    "store": ((*PREFLIGHT, "check", *TIMEOUT, "LAUNCH"), None),
    "script": ((*PREFLIGHT, "check", *TIMEOUT, "--", "bash", "PATH"), None),
    "config": ((*PREFLIGHT, "check", *TIMEOUT, *LAUNCH, "--config", "PATH"), None),
    "first launch": ((*PREFLIGHT, "fit", *TIMEOUT, *DESCRIBED, "--write", "PATH"), 64),
    # Where --timeout is another wait, and is not given.
    "rehearsal": ((*PREFLIGHT, "measure", "--rehearse", "--model-config", "PATH", "LAUNCH"), 64),
    "nodes": ((*PREFLIGHT, "fleet", "check", "--nodes-file", "PATH"), 64),
    "page": ((*PREFLIGHT, "check", *TIMEOUT, "--format", "html", "--output", "PATH"), 64),
    "capture": ((*PREFLIGHT, "capture", *TIMEOUT, "PATH", "LAUNCH"), 64),
    "report": ((*PREFLIGHT, "exec", *TIMEOUT, "--report", "PATH", "--", "mooncake_master"), 7),
}
# What a command needs beside the file that is asked about.
TRACED = (*DESCRIBED, "--goal", "hits")
BESIDE = {
    "capacity --write-trace": (
        *("--root", "demo:h800"),
        *("--clients", "2", "--rounds", "2", "--request-length", "64"),
    ),
    "capture": ("OUT",),
    "capture file": (),
    "check --lock": ("--root", "demo:h800"),
    "diff": ("--against", "demo:h800"),
    "diff --against": (),
    "diff --lock": ("--root", "demo:h800"),
    "diff --locked": (),
    "explain --env-file": ("hugetlb.shortage", "--launch", "LAUNCH"),
    "explain --launch": ("hugetlb.shortage",),
    "explain --osv-zip": ("--advisories",),
    "explain --root": ("hugetlb.shortage",),
    "fit --trace": TRACED,
    "fleet check": ("--timeout", "2", "--nodes", "a1"),
    "fleet measure": ("--timeout", "2", "--nodes", "a[1-2]", "--budget", "5s"),
    "fleet merge --output": ("LAUNCH",),
    "fleet observe": ("--timeout", "2", "--nodes", "a1"),
    # It takes no huge pages: a rehearsal beside it would count them for its own.
    "measure": ("--only", "registration"),
}
# Beside these a launch is none that is read, or is refused.
ALONE = ("fit --trace",)
# All commands open these alike: three of them are asked.
OPENED_ALIKE = {
    "--model-config": ("check", "exec", "fleet check"),
    "--output": ("check", "fleet merge", "plan"),
}
# Theirs are opened by the server, which is then started; or by another command of the same words.
NOT_ASKED = ("fleet measure --python", "exec launch", "completion shell", "schema name")


# Without the program's own name; "" is sizing.
COMMANDS = {path.partition(" ")[2]: each for path, each in LEAVES.items()}


def _files(name: str) -> Iterator[str]:
    """Yield each option and argument of a command that is the name of a file."""
    for one in COMMANDS[name].params:
        named = one.metavar in ("FILE", "FOLDER", "PATH", "HOST", "[ID|FILE|WORDS]...")
        if isinstance(one, click.Argument) or named:
            option = str(one.name) if isinstance(one, click.Argument) else one.opts[0]
            asked = name in OPENED_ALIKE.get(option, (name,))
            if asked and f"{name} {option}".strip() not in NOT_ASKED:
                yield option


def _every_file() -> Iterator[tuple[str, tuple[tuple[str, ...], int | None]]]:
    """Yield a command line for each file that a command can be given, as WAITING has them."""
    for name, found in COMMANDS.items():
        for option in _files(name):
            given = [*PREFLIGHT, *name.split()] if name else [*SIZING]
            if any(one.name == "timeout_seconds" for one in found.params):
                given += TIMEOUT
            given += BESIDE.get(f"{name} {option}", BESIDE.get(name, ()))
            given += [option, "PATH"] if option.startswith("-") else ["PATH"]
            if name == "exec":
                given += ["--", "mooncake_master"]
            elif option.startswith("-") and f"{name} {option}" not in ALONE:
                arguments = [one.name for one in found.params if isinstance(one, click.Argument)]
                given += ["LAUNCH"] if "launch" in arguments else []
            yield f"{name} {option}".strip(), (tuple(given), None)


# Most of what they take is waiting.
AT_ONCE = 12
# Imports the program once, and becomes it for each command: its start takes longer than the rest.
# Reads each one's streams to their end: a pipe's reader waits for all who have it open.
FORKING = f"""
import importlib, json, os, pkgutil, selectors, sys, time
import checks, mooncake_preflight, preflight
for package in (checks, preflight):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):  # which ends this
            importlib.import_module(module.name)

def start(words):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for number in (1, 2):
            os.dup2(writer, number)
        os.close(0)
        os.open(os.devnull, os.O_RDONLY)
        sys.argv[1:] = words[1:]
        getattr(mooncake_preflight, words[0])()
    os.close(writer)
    return reader, child

waiting, running, ended = json.load(sys.stdin), {{}}, {{}}
names, ready = list(waiting), selectors.DefaultSelector()
while names or running:
    while names and len(running) < {AT_ONCE}:
        name = names.pop(0)
        reader, child = start(waiting[name])
        running[reader] = [name, child, b"", time.monotonic()]
        ready.register(reader, selectors.EVENT_READ)
    for key, _ in ready.select(1):
        one, part = running[key.fd], os.read(key.fd, 1 << 16)
        one[2] += part
        if not part:
            code = os.waitstatus_to_exitcode(os.waitpid(one[1], 0)[1])
            ended[one[0]] = code, one[2].decode()
            ready.unregister(key.fd)
            os.close(key.fd)
            del running[key.fd]
    for reader, (name, child, _, began) in list(running.items()):
        if time.monotonic() - began > {LONGEST_SECONDS}:
            ended[name] = "does not end", ""
            os.kill(child, 9)
            ready.unregister(reader)
            del running[reader]
print(json.dumps(ended))
"""
# Those that need what is not there, a cluster or a Mooncake, and end before they open the file; one
# that counts what it cannot read, and names none; a command's words, which no file of variables is
# read for.
NOT_THERE = ("apply --root", "exec --env-file", "fleet rails reports")
# Of a wait that was given up, in the words of all who wait.
LIMIT = re.compile(r"(?:no answer|not\s+read)\s+in\s+(\S+)\s+s\b")


def _all_end(waiting: Waiting, place: Callable[[str], Path], folder: Path) -> None:
    """Start every command of ``waiting``, some side by side, each on a path of its own."""
    launch = folder / "launch.sh"
    launch.write_text(f"MOONCAKE_MASTER=127.0.0.1:9 {SERVER}\n")
    trace = folder / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}\n')
    server = folder / "mooncake_master"
    server.write_text("#!/bin/sh\nexit 7\n")
    server.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{folder}:{os.environ['PATH']}"}

    plain = {name: re.sub(r"\W", "-", name) for name in waiting}
    named = folder / "named.sh"
    named.write_text(f"MOONCAKE_CONFIG_PATH={place('store')} {SERVER}\n")

    def words(name: str) -> list[str]:
        paths = {
            "PATH": str(place(plain[name])),
            "LAUNCH": str(named if name == "store" else launch),
            "TRACE": str(trace),
            "OUT": str(folder / f"{plain[name]}.tar.gz"),
        }
        return [paths.get(word, word) for word in waiting[name][0]]

    asked = {name: words(name) for name in waiting}
    run = subprocess.run(
        [sys.executable, "-c", FORKING],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        check=True,
    )
    ended = json.loads(run.stdout)

    def wrong(name: str) -> str:
        code, said = ended[name]
        if "Traceback" in said or code not in (0, 1, 2, 3, 7, 64):
            return f"exit code {code}: {said}"
        if waiting[name][1] not in (None, code):
            return f"exit code {code}, not {waiting[name][1]}: {said}"
        # What says how long it waited, waited as long as it was told.
        limits = set(LIMIT.findall(said))
        given = [value for word, value in pairwise(asked[name]) if word == "--timeout"]
        if not limits.issubset(given[-1:] or ("10", "20", "30")):
            return f"waited for {limits}: {said}"
        came = limits or plain[name] in said or "no answer in time" in said
        if not came and name not in (*WAITING, *NOT_THERE):
            return f"it never came to the file: {said}"
        return ""

    said = {name: wrong(name) for name in waiting}
    assert {name: text for name, text in said.items() if text} == {}


def test_a_pipe_that_nobody_writes_to_ends_no_wait(tmp_path: Path) -> None:
    def pipe(name: str) -> Path:
        if not (tmp_path / name).exists():
            os.mkfifo(tmp_path / name)
        return tmp_path / name

    _all_end({**WAITING, **dict(_every_file())}, pipe, tmp_path)


def test_a_pipe_in_a_recorded_host_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "meminfo")
    found = Root(str(tmp_path)).text("/meminfo")
    assert isinstance(found, Unknown)
    assert "pipe" in found.reason


@pytest.fixture
def dead_mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """FUSE mounts whose server never answers, as an NFS server that is gone: one for each name. Of
    one mount all who wait stand in a line, in which nothing is killed."""
    libc = ctypes.CDLL(None, use_errno=True)
    devices: dict[Path, int] = {}

    def mounted(name: str) -> Path:
        place = tmp_path / "mounts" / name
        if place not in devices:
            place.mkdir(parents=True)
            try:
                device = devices[place] = os.open("/dev/fuse", os.O_RDWR)
            except OSError as error:
                pytest.skip(f"no FUSE: {error}")
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
            if libc.mount(b"dead", str(place).encode(), b"fuse", 0, options):
                os.close(devices.pop(place))
                pytest.skip(f"no mount: {os.strerror(ctypes.get_errno())}")
        return place / name

    yield mounted
    for place, device in devices.items():
        os.close(device)  # every wait for it ends
        libc.umount2(str(place).encode(), 2)


def test_a_mount_that_never_answers_ends_no_wait(
    dead_mount: Callable[[str], Path], tmp_path: Path
) -> None:
    _all_end({**WAITING, **dict(_every_file())}, dead_mount, tmp_path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_message_names_the_timeout_of_a_command_that_has_one(name: str) -> None:
    """And the number that was given there is the one that rules."""
    found = COMMANDS[name]
    has_one = any(one.name == "timeout_seconds" for one in found.params)
    words = ["--timeout", "7"] if has_one else []
    with (
        found.make_context(name, [*words], resilient_parsing=True),
        pytest.raises(UsageError) as late,
    ):
        within(0.01, "FILE", lambda: Event().wait(60))
    assert ("--timeout" in str(late.value)) is has_one
    with found.make_context(name, [*words], resilient_parsing=True):
        assert limit_seconds() == (7 if has_one else LIMIT_SECONDS)
    assert limit_seconds() == LIMIT_SECONDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_that_is_given_a_file_has_a_timeout(name: str) -> None:
    has_one = any(one.name == "timeout_seconds" for one in COMMANDS[name].params)
    assert has_one or not list(_files(name))
