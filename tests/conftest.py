"""Settings for all tests: none depends on a time, and under CI the same inputs are drawn anew.

``--hypothesis-profile=thorough`` draws a thousand examples, not ten (CI: 25).

Side by side (``pytest -n 3``) each test goes to whichever process is free; but those of one group
share what this machine has once (its huge pages, its cgroups, its ports, a browser, the guests),
and go to one process.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from preflight.base.within import GIVEN_SECONDS, HAS_TIMEOUT

settings.register_profile(
    "project",
    deadline=None,
    max_examples=25 if os.environ.get("CI") else 10,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1000,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=False,
)
settings.load_profile("project")

# Whoever starts the tests may ignore Ctrl-C and Ctrl-\\ (a shell does for what runs in the
# background) and a lost terminal (nohup does), or say how wide its terminal is; the programs that
# tests start must inherit none of it.
for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)
os.environ.pop("COLUMNS", None)

# Marker -> the group of its tests; the first that a test has. A guest that begins with containers
# here is with those, since their cgroups are this machine's.
GROUPS = {
    "real": "host",
    "containers": "host",
    "lab": "guests",
    "fleet": "fleet",
    "slurm": "fleet",
    "browser": "browser",
}


# What a process of Python says before it makes another one, or becomes one.
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}
_started: list[str] = []


def _look(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS:
        _started.append(f"{event} {arguments[:2]}")


sys.addaudithook(_look)


# Where a file is memory; as Docker gives it (64 MiB), it is too small for all of them.
IN_MEMORY = "/dev/shm"
IN_MEMORY_BYTES = 1 << 30


def pytest_configure(config: pytest.Config) -> None:
    """The quick tests write their hosts in memory: on a disk that takes half of their time."""
    if "not slow" in config.getoption("markexpr") and os.access(IN_MEMORY, os.W_OK):
        found = os.statvfs(IN_MEMORY)
        if found.f_bavail * found.f_frsize >= IN_MEMORY_BYTES:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)


def pytest_collection_finish() -> None:
    """What was collected lives to the end: no test has to look through it for what is left."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares something of the machine is one group, and slow."""
    for item in items:
        groups = [group for name, group in GROUPS.items() if item.get_closest_marker(name)]
        if groups:
            item.add_marker(pytest.mark.xdist_group(groups[0]))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def only_slow_tests_start_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """``-m "not slow"`` is for while one writes: it leaves out all that starts a process."""
    _started.clear()
    yield
    if "not slow" in request.config.getoption("markexpr"):
        assert not _started, f"to be marked slow, since it starts a process: {_started[:3]}"


@pytest.fixture(autouse=True)
def no_command_before() -> None:
    """Start each test as a process does: a command that was refused leaves its --timeout behind."""
    HAS_TIMEOUT.set(False)
    GIVEN_SECONDS.set(None)
