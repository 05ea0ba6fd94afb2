"""Settings for all tests: none depends on a time, on chance, or on what ran before it.

A law draws fixed examples, the same each time and wherever it runs. Random ones have a command of
their own, ``--hypothesis-profile=random``: a hundred times as many; what it finds becomes an
``@example`` of its law.

Side by side (``pytest -n 3``) each test goes to whichever process is free; but those of one group
share what this machine has once (its huge pages, its cgroups, its ports, a browser, the guests),
and go to one process.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from preflight.base.within import GIVEN_SECONDS, HAS_TIMEOUT

_ALIKE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _ALIKE, max_examples=10, derandomize=True, database=None)
settings.register_profile("random", _ALIKE, max_examples=1000, derandomize=False, print_blob=True)
settings.load_profile("fixed")

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


# What makes another process, or becomes one: of an audit hook, each file that is opened costs more.
STARTS = (
    *((os, name) for name in "fork forkpty posix_spawn posix_spawnp execv execve system".split()),
    (subprocess.Popen, "__init__"),
)
_started: list[str] = []


def _note(place: object, name: str) -> None:
    """Have each call of that function stand in ``_started``."""
    plain = getattr(place, name)

    @wraps(plain)
    def noting(*arguments: Any, **named: Any) -> Any:
        _started.append(f"{name} {arguments[1:]}")
        return plain(*arguments, **named)

    setattr(place, name, noting)


# Where a file is memory; as Docker gives it (64 MiB), it is too small for all of them.
IN_MEMORY = "/dev/shm"
IN_MEMORY_BYTES = 1 << 30


def pytest_configure(config: pytest.Config) -> None:
    """The quick tests write their hosts in memory: on a disk that takes half of their time.

    Hypothesis draws constants of the modules that are imported at that moment, which depends on the
    tests before; a fixed example may not."""
    assert settings.default is not None
    if settings.default.derandomize:
        providers._get_local_constants = lambda: providers._local_constants
    if "not slow" not in config.getoption("markexpr"):
        return
    for place, name in STARTS:
        _note(place, name)
    if config.option.dist == "loadgroup":  # none has a group: what a module keeps is made once
        config.option.dist = "worksteal"
    if os.access(IN_MEMORY, os.W_OK):
        found = os.statvfs(IN_MEMORY)
        if found.f_bavail * found.f_frsize >= IN_MEMORY_BYTES:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected lives to the end: no test has to look through it for what is left.
    Hypothesis takes the time of each collection, which costs more than a small one."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares something of the machine is one group, and slow."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        groups = [group for name, group in GROUPS.items() if name in marks]
        if groups:
            item.add_marker(pytest.mark.xdist_group(_group(item, groups[0])))
            item.add_marker(pytest.mark.slow)


# What may take huge pages that are free, though it sets none: a rehearsal beside it would count
# them for its own.
TAKES_PAGES = (
    *("test_advisories_real", "test_measure_real", "test_rehearse_real", "test_slabs_real"),
    "test_tier_use_real",
)


def _group(item: pytest.Item, group: str) -> str:
    """Return the group of an item: its module where it runs wheels, and takes no huge pages."""
    fixtures = getattr(item, "fixturenames", ())
    alone = item.path.parent.name == "real" and "huge_pages" not in fixtures
    alone = alone and item.path.stem not in TAKES_PAGES
    return item.path.stem if alone else group


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
