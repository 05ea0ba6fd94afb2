"""What is read of limits: from trees, from garbage, and of this very machine as several users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from checks.framework.root import Root
from checks.framework.units import MIB
from checks.framework.unknown import Unknown
from checks.limits.facts import IPC_LOCK_BIT, LimitFacts, read_limits
from checks.limits.runtimes import Daemon, Limit, UnitLimit
from tests.builders.hosts import in_memory
from tests.paths import ROOT
from tests.tables import each_row

STATUS = """Name:	python
Uid:	1000	1001	1000	1000
CapEff:	0000000000004000
CapBnd:	00000000a80425fb
Seccomp:	2
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             96365                unlimited            processes
Max open files            1024                 1048576              files
Max locked memory         8388608              unlimited            bytes
"""
PROC = {
    "/proc/self/status": STATUS,
    "/proc/self/limits": LIMITS,
    "/proc/self/uid_map": "         0          0 4294967295\n",
}
PROCESSES: dict[str, Any] = {
    "daemons": [{"name": "containerd", "memlock": ["8388608", "8388608"], "nofile": ["1", "2"]}]
}
CALLS: dict[str, Any] = {
    "limits.identity": {"user_namespace": "user:[4026531837]", "sudo_uid": 1000},
    "limits.processes": PROCESSES,
}


def read(root: Root) -> LimitFacts:
    return read_limits(root, None)


def test_a_whole_host() -> None:
    facts = read(in_memory(PROC, calls=CALLS))
    assert facts.memlock == Limit(8 * MIB, None)
    assert facts.nofile == Limit(1024, 1048576)
    assert facts.nproc == Limit(96365, None)
    assert facts.euid == 1001
    assert facts.effective(IPC_LOCK_BIT) is True
    assert facts.effective(23) is False  # CAP_SYS_NICE
    assert facts.sudo_uid == 1000
    daemon = Daemon(Limit(8 * MIB, 8 * MIB), Limit(1, 2))
    assert facts.runtimes.units == (UnitLimit("containerd", daemon, None, ""),)


@each_row(
    "content",
    ["", "garbage\n\0\n", "/", "Uid:\nCapEff: zz\nMax locked memory", f"CapEff: {'f' * 5000}"],
)
def test_unreadable_is_unknown_and_nothing_raises(content: str) -> None:
    host = in_memory(dict.fromkeys(PROC, content), calls={})
    facts = read(host)
    for fact in (
        facts.memlock,
        facts.nofile,
        facts.nproc,
        facts.euid,
        facts.effective_capabilities,
        facts.bounding_capabilities,
        facts.initial_user_namespace,
        facts.sudo_uid,
        facts.effective(IPC_LOCK_BIT),
    ):
        assert isinstance(fact, Unknown), fact


@each_row(
    ("uid_map", "namespace", "initial"),
    [
        ("0 0 4294967295", None, True),
        ("0 100000 65536", None, False),
        ("0 0 4294967294", None, False),
        ("0 0 1000\n1000 101000 64536", None, False),
        # A namespace can carry the whole range and still not be the initial one.
        ("0 0 4294967295", "user:[4026532000]", False),
        ("0 100000 65536", "user:[4026531837]", True),
    ],
)
def test_the_initial_user_namespace(uid_map: str, namespace: str | None, initial: bool) -> None:
    """The namespace's own number where it could be asked for, its map else."""
    calls = {} if namespace is None else {"limits.identity": {"user_namespace": namespace}}
    host = in_memory({**PROC, "/proc/self/uid_map": uid_map}, calls=calls)
    assert read(host).initial_user_namespace is initial


@each_row("answer", [[], 3, "text", {"daemons": 2}, {"daemons": [1, {}]}])
def test_odd_answers_of_calls_raise_nothing(answer: Any) -> None:
    calls = {"limits.identity": answer, "limits.processes": answer}
    facts = read(in_memory(PROC, calls=calls))
    assert facts.runtimes.units == ()


UNIT = "/lib/systemd/system/containerd.service"
DROP_IN = "/etc/systemd/system/containerd.service.d/10-memlock.conf"


@each_row(
    ("files", "configured", "source"),
    [
        ({UNIT: "[Service]\nLimitMEMLOCK=8M\n"}, Limit(8 * MIB, 8 * MIB), UNIT),
        ({UNIT: "[Service]\nLimitNOFILE=1\n"}, None, ""),
        ({UNIT: "LimitMEMLOCK=8M", DROP_IN: "LimitMEMLOCK=infinity"}, Limit(None, None), DROP_IN),
        ({UNIT: "LimitMEMLOCK=8M", DROP_IN: "LimitMEMLOCK="}, None, ""),
        ({UNIT: "LimitMEMLOCK=1M:8G"}, Limit(MIB, 8192 * MIB), UNIT),  # of 1024, systemd.exec(5)
        (
            # The same name in /etc hides the one in /lib, and names sort over all folders.
            {
                UNIT: "",
                DROP_IN: "LimitMEMLOCK=1M",
                f"{UNIT}.d/10-memlock.conf": "LimitMEMLOCK=2M",
                f"{UNIT}.d/05-early.conf": "LimitMEMLOCK=3M",
                f"{UNIT}.d/99-not-read.txt": "LimitMEMLOCK=4M",
            },
            Limit(MIB, MIB),
            DROP_IN,
        ),
        (
            {UNIT: "LimitMEMLOCK=1M", "/etc/systemd/system/containerd.service": "#LimitMEMLOCK=2M"},
            None,
            "",
        ),
    ],
)
def test_systemd_units(files: dict[str, str], configured: Limit | None, source: str) -> None:
    runtimes = read(in_memory(files, calls={})).runtimes
    assert runtimes.unit("containerd") == UnitLimit("containerd", None, configured, source)


@each_row(
    ("content", "default", "remap"),
    [
        ("{}", None, ""),
        ('{"userns-remap": "default"}', None, "default"),
        (
            '{"default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}}}',
            Limit(None, None),
            "",
        ),
        ('{"default-ulimits": {"memlock": {"Hard": 1024}}}', Limit(1024, 1024), ""),
        ('{"default-ulimits": {"nofile": {"Hard": 1024}}}', None, ""),
    ],
)
def test_docker_configuration(content: str, default: Limit | None, remap: str) -> None:
    runtimes = read(in_memory({"/etc/docker/daemon.json": content}, calls={})).runtimes
    assert (runtimes.docker_default, runtimes.userns_remap) == (default, remap)


@each_row("content", ["", "[1]", "{", '{"default-ulimits": {"memlock": 3}}', "/"])
def test_a_damaged_docker_configuration_is_unknown(content: str) -> None:
    runtimes = read(in_memory({"/etc/docker/daemon.json": content}, calls={})).runtimes
    assert isinstance(runtimes.docker_default, Unknown)


@each_row(
    ("content", "propagates"),
    [
        ("ClusterName=x\n", True),
        ("PropagateResourceLimitsExcept=MEMLOCK\n", False),
        ("propagateresourcelimitsexcept=nofile,memlock # as told\n", False),
        ("PropagateResourceLimitsExcept=NOFILE\n", True),
        ("PropagateResourceLimits=NONE\n", False),
        ("#PropagateResourceLimits=NONE\n", True),
    ],
)
def test_slurm_propagation(content: str, propagates: bool) -> None:
    """slurm.conf: all limits are the submitting shell's, unless excepted."""
    host = in_memory({"/etc/slurm/slurm.conf": content}, calls={})
    assert read(host).runtimes.slurm_propagates is propagates


_SEEN = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
from checks.limits.facts import IPC_LOCK_BIT, read_limits
from checks.framework.root import Root
facts = read_limits(Root(), None)
told = resource.getrlimit(resource.RLIMIT_MEMLOCK)
plain = lambda pair: [-1 if part is None else part for part in pair]
print(json.dumps({
    "memlock": plain(facts.memlock),
    "told": list(told),
    "nofile": plain(facts.nofile) == list(resource.getrlimit(resource.RLIMIT_NOFILE)),
    "euid": facts.euid == os.geteuid(),
    "initial": facts.initial_user_namespace,
    "effective": facts.effective(IPC_LOCK_BIT),
    "bit": facts.effective_capabilities >> IPC_LOCK_BIT & 1,
    "sudo": facts.sudo_uid,
    "unknown": [name for name, fact in facts._asdict().items() if type(fact).__name__ == "Unknown"],
}))
"""


def seen(*before: str, **environment: str) -> dict[str, Any]:
    """What the reader sees in a process started by ``before``, and what getrlimit says there."""
    top = str(ROOT)
    # The interpreter itself: a virtual environment may lie where another user cannot go.
    run = subprocess.run(
        [*before, os.path.realpath(sys.executable), "-I", "-c", _SEEN, top],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
        check=False,
    )
    if run.returncode and ("ermission denied" in run.stderr or "not permitted" in run.stderr):
        pytest.skip(f"not possible here: {run.stderr.strip()[-200:]}")
    assert not run.returncode, run.stderr
    answer = json.loads(run.stdout)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.slow
def test_limits_are_seen_as_getrlimit_tells() -> None:
    if shutil.which("prlimit") is None:
        pytest.skip("no prlimit here")
    answer = seen("prlimit", "--memlock=65536:131072")
    assert answer["memlock"] == answer["told"] == [65536, 131072]
    assert (answer["nofile"], answer["euid"], answer["unknown"]) == (True, True, [])


@pytest.mark.slow
def test_an_ordinary_user_has_no_capability_in_effect() -> None:
    """uid 1000 without any group: CapEff is empty though CapBnd is full."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    user = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
    answer = seen(*user)
    assert (answer["effective"], answer["bit"], answer["euid"]) == (False, 0, True)


@pytest.mark.slow
def test_root_of_a_user_namespace_has_none_either() -> None:
    """unshare -Ur: CapEff shows the bit, and the kernel's capable() does not honour it."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    answer = seen("unshare", "--user", "--map-root-user")
    assert (answer["bit"], answer["initial"], answer["effective"]) == (1, False, False)


@each_row(
    ("user", "known_limit"),
    [("root", True), ("llm", False), ("nobody", False), ("1000", False), ("", False)],
)
def test_a_login_is_unknown_where_a_row_may_change_its_limit(user: str, known_limit: bool) -> None:
    """The row of ``*`` is not root's; a row with the limit that is there changes nothing."""
    files = {"/etc/security/limits.conf": "* - nofile 5\nother - memlock 1\n@gpu - nproc 7\n"}
    runtimes = read(in_memory(files, calls={})).runtimes
    found = runtimes.login_limit("nofile", user, Limit(9, 9))
    assert found == Limit(9, 9) if known_limit else isinstance(found, Unknown)
    assert runtimes.login_limit("nofile", user, Limit(5, 5)) == Limit(5, 5)
    assert runtimes.login_limit("memlock", "llm", Limit(9, 9)) == Limit(9, 9)
