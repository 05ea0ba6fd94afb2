"""NUMA facts from complete, damaged and recorded hosts, and from this machine."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from checks.framework.root import Root, in_child
from checks.framework.unknown import Unknown
from checks.numa.facts import MemoryPolicy, NumaFacts, memory_policy, read_numa
from checks.numa.nodes import parse_cpu_list, parse_node_list
from tests.builders.seccomp import KILL, REFUSE, filtered
from tests.builders.synthetic import SyntheticHost, build_host, gpu_host
from tests.checks.recorded import recorded

# No devices: they take most of the time to write.
SMALL = replace(gpu_host(), gpus=(), nics=())


def read(path: Path, host: SyntheticHost) -> NumaFacts:
    return read_numa(Root(str(build_host(path, host))), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("/proc/self/status", ""),
        ("/proc/self/status", "Mems_allowed_list:\t0-99999999999999999999\nCpus_allowed_list: x"),
        ("/sys/devices/system/node/node0/cpulist", "0-"),
        ("/sys/devices/system/node/node0/distance", "ten"),
        ("/sys/devices/system/node/node0/meminfo", "Node 0 MemFree: many kB"),
        ("/proc/sys/kernel/numa_balancing", "on"),
        ("/proc/self/cgroup", "\0:\n::::\n0::/../.."),
    ],
)
def test_garbage_is_unknown_and_never_raises(tmp_path: Path, name: str, content: str) -> None:
    """The file's own fact becomes Unknown with the file's name; the rest is read as before."""
    sane = read(tmp_path / "sane", SMALL)
    facts = read(tmp_path / "damaged", replace(SMALL, files={name: content}))
    assert facts != sane
    assert facts.nodes[1] == sane.nodes[1]
    assert facts.policy == sane.policy


@pytest.mark.parametrize("answer", [[], "no", {"set_mempolicy": 0}, {"mbind": "0"}, 7])
def test_a_wrong_answer_of_the_policy_call_is_unknown(tmp_path: Path, answer: object) -> None:
    facts = read(tmp_path, replace(SMALL, calls={"numa.memory_policy": answer}))
    assert isinstance(facts.policy, Unknown)


def test_a_list_cannot_fill_memory() -> None:
    """A range is bounded before it is expanded."""
    for text in ("0-99999999999", "0-16384", f"0-{'9' * 5000}"):
        with pytest.raises(ValueError, match="range"):
            parse_cpu_list(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nodes", "cpus"),
    [
        ("48amd64-4pa2n6c-sparse", (0, 1, 2, 33, 34, 45, 72, 73), 48),
        ("2i386-2t-hugepagesizecount", (), 0),
    ],
)
def test_recorded_machines(name: str, nodes: tuple[int, ...], cpus: int) -> None:
    """Real trees: eight nodes, nodes numbered with gaps, no NUMA."""
    facts = read_numa(Root(str(recorded(name))), None)
    assert tuple(node.node for node in facts.nodes) == nodes
    assert sum(len(node.cpus) for node in facts.nodes if isinstance(node.cpus, tuple)) == cpus
    for row, node in enumerate(facts.nodes):
        assert isinstance(node.distances, tuple)
        assert node.distances[row] == 10
        assert isinstance(node.available_bytes, int)
        assert isinstance(node.total_bytes, int)
        assert 0 < node.available_bytes <= node.total_bytes


POLICY = "from checks.numa.facts import read_numa; print(read_numa(Root(), None).policy)"
SET = 238  # set_mempolicy of x86-64


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter names x86-64's numbers")
class TestRealSeccompFilter:
    """The kernel itself refuses, as it does in a container."""

    def test_refused_calls_are_told_apart(self) -> None:
        done = filtered(POLICY, REFUSE | errno.EPERM, SET)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(MemoryPolicy(0, errno.EPERM, 0))

    def test_a_filter_that_kills_takes_the_child_alone(self) -> None:
        """The reader lives on and says why it does not know."""
        done = filtered(POLICY, KILL, SET)
        assert done.returncode == 0, done.stderr
        assert "killed" in done.stdout
        assert "SIGSYS" in done.stdout


@pytest.mark.slow
def test_the_policy_of_this_process_stays_as_it_was() -> None:
    """What the child sets ends with it."""

    def policy_line() -> str:
        return Path("/proc/self/numa_maps").read_text().splitlines()[0].split()[1]

    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("this kernel has no numa_maps")
    before = policy_line()
    assert memory_policy().keys() == {"get_mempolicy", "set_mempolicy", "mbind"}
    assert policy_line() == before


@pytest.mark.slow
def test_a_child_that_hangs_is_killed_and_one_that_fails_tells_why() -> None:
    def fail() -> None:
        raise ValueError("no such thing")

    with pytest.raises(OSError, match=r"over 0\.05 s"):
        in_child(signal.pause, 0.05)
    with pytest.raises(OSError, match="ValueError: no such thing"):
        in_child(fail, 5)


@pytest.mark.slow
def test_a_child_leaves_no_zombie_and_no_descriptor() -> None:
    def seen() -> tuple[int, str]:
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        return len(os.listdir("/proc/self/fd")), children.read_text()

    before = seen()
    for _ in range(5):
        assert in_child(lambda: {"a": 1}, 5) == {"a": 1}
    assert seen() == before


def test_lists_that_end_with_a_nul_are_read() -> None:
    assert parse_node_list("0-3\n\0") == parse_cpu_list("0-3\0") == (0, 1, 2, 3)
    assert parse_cpu_list("\n\0") == ()


NOTHING_IMPORTED = """
import importlib.abc, os, sys
from checks.numa.facts import memory_policy
parent = os.getpid()
class Watch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if os.getpid() != parent:
            raise RuntimeError(f"the child imports {name}")
sys.meta_path.insert(0, Watch())
sys.modules.pop("mmap", None)
print(sorted(memory_policy()))
"""


@pytest.mark.slow
def test_the_child_imports_nothing() -> None:
    """Another thread may have been importing it at the fork: its lock is never given back."""
    ran = subprocess.run(
        [sys.executable, "-c", NOTHING_IMPORTED], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "['get_mempolicy', 'mbind', 'set_mempolicy']"


@pytest.mark.slow
def test_a_child_that_hangs_holds_no_stream_of_a_parent_that_is_gone() -> None:
    code = "import os, threading, time; from checks.framework.root import in_child\n"
    code += "threading.Thread(target=in_child, args=(lambda: time.sleep(20), 30)).start()\n"
    code += "time.sleep(0.5); os._exit(3)"
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ran.returncode == 3
    assert time.monotonic() - began < 15
