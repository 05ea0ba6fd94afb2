"""Limits that a launch sets itself, on top of those of its shell, unit or container."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from typing import Any

import pytest

from checks.framework.finding import Status
from checks.framework.needs import LIMIT_NAMES, Bound, SetLimit
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.limits.facts import SYS_RESOURCE_BIT
from checks.limits.launch_limits import start_limit
from checks.limits.runtimes import Limit
from preflight.command_inputs.launch_record import launch_from, launch_record
from preflight.command_inputs.written_launch import WrittenLaunch
from preflight.launches.launch_files import LaunchText
from preflight.launches.set_limits import ulimit
from preflight.launches.shell_script import read_script
from preflight.launches.source import Origin, Reading, Word
from preflight.launches.systemd_unit import KIND
from preflight.processes.processes import LaunchOptions
from tests.checks.limit_hosts import launch, limits, rank, rdma, system
from tests.checks.test_limits_memlock import docker, one
from tests.tables import each_row

MAY_RAISE = {"effective_capabilities": 1 << SYS_RESOURCE_BIT}


def set_to(name: str, soft: Any, hard: Any = -1, **more: Any) -> tuple[SetLimit, ...]:
    return (SetLimit(name, soft, soft if hard == -1 else hard, "run.sh:3", **more),)


def read_unit(text: str, path: str = "x.service") -> Reading:
    return KIND.read(LaunchText(path, text, False, {}, (), lambda name: None))


def commands(text: str) -> Any:
    return {
        command.words[-1].text: [limit[:3] for limit in command.limits]
        for command in read_script(text, "run.sh", {}).commands
    }


def test_a_script_s_limits_reach_what_it_starts_as_in_bash() -> None:
    """Branches, subshells, pipelines, the background and other hosts each in their way."""
    text = """
    ulimit -l unlimited -n 4096
    prog a
    (ulimit -Sn 100; prog b)
    prog c | ulimit -n 7
    { ulimit -v 1000 & }
    if [ "$1" = x ]; then ulimit -d 1; fi
    false && ulimit -n 1
    ssh host mooncake_client d
    docker run -d img mooncake_client e
    prlimit --memlock=64K:1M mooncake_client f
    ulimit -Hn $(ulimit -Sn); ulimit -a; ulimit -n; ulimit -c 0
    prog g
    """
    found = commands(text)
    base = [("memlock", None, None), ("nofile", 4096, 4096)]
    assert found["a"] == base
    assert found["b"] == [*base, ("nofile", 100, Bound.STAYS)]
    assert found["c"] == base
    assert found["d"] == found["e"] == []
    last = found["f"].pop()
    assert last == ("memlock", 64 << 10, 1 << 20)
    doubted = found["f"].pop()
    assert doubted[0] == "data"
    assert isinstance(doubted[1], Unknown)
    assert found["f"] == base
    assert found["g"][:3] == [*base, ("nofile", Bound.STAYS, Bound.SOFT)]


@pytest.mark.parametrize(
    "words",
    "-n 100;-Sn 100;-Hn 900;-SHn 300;-n hard;-Sn hard;-Hn soft;-n unlimited;-Sn 2000;"
    "-n 10 -Sn 5;-n -S 256;-Sn 600, ulimit -Hn 500;-n x".split(";"),
)
@pytest.mark.parametrize("start", [(500, 1000), (1000, 1000)])
@pytest.mark.slow
def test_bash_is_the_judge_of_what_ulimit_leaves(words: str, start: tuple[int, int]) -> None:
    """As a user who may not raise: the shell itself says what it has in the end."""

    def as_user() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, start)
        if os.getuid() == 0:
            os.setuid(65534)

    words = words.replace(",", ";")
    script = f"ulimit {words}; echo $(ulimit -Sn) $(ulimit -Hn)"
    told = subprocess.run(
        ["bash", "-c", script], preexec_fn=as_user, capture_output=True, text=True, check=False
    )
    changes = tuple(
        limit
        for part in f"ulimit {words}".split(";")
        for limit in ulimit([Word(word, Origin("x")) for word in part.split()])
    )
    after = start_limit("nofile", Limit(*start), rank(limits=changes), limits(), system()).limit
    assert isinstance(after, Limit)
    assert " ".join(map(str, after)) == told.stdout.strip()


@each_row(
    ("text", "soft"),
    [
        ("ulimit -n 900 -u 9", 900),
        ("ulimit -n 900 || true", 900),
        ("ulimit -n 900 || exit 1", 900),
        ("set -e; ulimit -n 900", 900),
        ("ulimit -n unlimited || ulimit -n 400", None),
        ("if ! ulimit -n unlimited; then ulimit -n 300; fi", None),
        ("ulimit -u unlimited || ulimit -n 400", None),
    ],
)
def test_what_a_refused_ulimit_leads_to_is_not_worked_out(text: str, soft: int | None) -> None:
    (command,) = read_script(f"{text}; prog a", "run.sh", {}).commands[-1:]
    process = rank(limits=command.limits)
    after = start_limit("nofile", Limit(2000, 4000), process, limits(), system()).limit
    assert (None if isinstance(after, Unknown) else after.soft) == soft


@each_row(
    ("own", "host", "status"),
    [
        (set_to("memlock", None), limits(), Status.FAIL),  # above 8 MiB: bash refuses it
        (set_to("memlock", None), limits(hard=None), Status.PASS),
        (set_to("memlock", None), limits(**MAY_RAISE), Status.PASS),
        (set_to("memlock", None, raises=True), limits(), Status.PASS),  # systemd
        (set_to("memlock", 8 * MIB), limits(None), Status.FAIL),
        (set_to("memlock", 8 * MIB, Bound.STAYS), limits(None), Status.FAIL),
        (set_to("memlock", Bound.HARD, Bound.STAYS), limits(hard=None), Status.PASS),
        (set_to("memlock", Unknown("$X is not set")), limits(None), Status.UNKNOWN),
        (set_to("memlock", None), limits(Unknown("not recorded")), Status.UNKNOWN),
        (set_to("memlock", None, must=True), limits(), Status.FAIL),
    ],
)
def test_memlock_is_what_the_launch_makes_of_it(own: Any, host: Any, status: Status) -> None:
    finding = one("memlock.limit", launch(rank(limits=own)), host, rdma=rdma(1))
    assert finding.status is status
    if finding.settings:
        assert finding.evidence[0].source != "run.sh:3"
    elif status is Status.FAIL:
        assert "run.sh:3" in finding.text + finding.advice


@each_row(
    ("container", "own", "status"),
    [
        (None, set_to("nofile", 256), Status.WARN),
        (None, set_to("nofile", 16), Status.FAIL),
        # SGLang raises the soft one itself.
        (None, set_to("nofile", 256, Bound.STAYS), Status.PASS),
        (None, set_to("nofile", 1 << 21, must=True), Status.FAIL),
        (docker(nofile=65535), set_to("nofile", 256), Status.WARN),
        (docker(nofile=1024), set_to("nofile", 65535), Status.WARN),  # no CAP_SYS_RESOURCE
        (docker(nofile=1024, privileged=True, user="0"), set_to("nofile", 65535), Status.PASS),
        (docker(nofile=1024, privileged=True), set_to("nofile", 65535), Status.UNKNOWN),
    ],
)
def test_open_files(container: Any, own: Any, status: Status) -> None:
    needs = launch(rank(container=container, limits=own))
    assert one("limits.nofile", needs, limits()).status is status


@each_row(
    ("line", "expected"),
    [
        ("LimitMEMLOCK=infinity", ("memlock", None, None)),
        ("LimitNOFILE=1024:4096", ("nofile", 1024, 4096)),
        ("LimitAS=4G", ("as", 4 * GIB, 4 * GIB)),
        ("LimitDATA=1M:infinity", ("data", MIB, None)),
    ],
)
def test_a_unit_s_limits_are_set_by_systemd(line: str, expected: Any) -> None:
    text = f"[Service]\n{line}\nExecStart=/bin/mooncake_master\n"
    text += "ExecStart=/bin/sh -c 'ulimit -n 9; x'\n"
    first, second = read_unit(text).commands
    rest = [(n, Bound.SYSTEMD, Bound.SYSTEMD) for n in LIMIT_NAMES if n != expected[0]]
    assert [limit[:3] for limit in first.limits] == [expected, *rest]
    assert first.limits[0].raises
    assert first.limits[0].origin == "x.service:2"
    assert [limit.name for limit in second.limits] == [
        *(limit.name for limit in first.limits),
        "nofile",
    ]


def test_a_unit_that_sets_no_memlock_has_that_of_systemd_and_not_of_the_shell() -> None:
    text = "[Service]\nExecStart=/bin/mooncake_master\n"
    (one,) = read_unit(text).commands
    host = limits(None)
    unlimited, process = Limit(None, None), rank(limits=one.limits)
    for default in ({}, {"memlock": Limit(GIB, GIB)}, {"memlock": unlimited}):
        configured = host._replace(runtimes=host.runtimes._replace(systemd=default))
        after = start_limit("memlock", unlimited, process, configured, system())
        assert after.limit == default.get("memlock", Limit(8 * MIB, 8 * MIB))
    own = read_unit(text, "/home/u/.config/systemd/user/x.service")
    assert own.commands[0].limits == ()


def recorded(text: str) -> tuple[WrittenLaunch, str, WrittenLaunch]:
    """Return a launch, the record of it, and the launch that is read of the record."""
    launch = WrittenLaunch(read_script(text, "w.sh", {}), "w.sh", Unknown)
    record = json.dumps(launch_record(launch, LaunchOptions(), {}))
    return launch, record, launch_from(json.loads(record), Unknown)[0]


def test_a_recorded_launch_keeps_what_it_sets_and_publishes() -> None:
    """Unknown ones too: what a capture or another node is handed answers as the text did."""
    launch, _, again = recorded(
        "ulimit -l unlimited -n 256\n[ $Z = 1 ] && ulimit -v $Y\n"
        "numactl -N 9 mooncake_client --port 1\n"
        "docker run -d -p 80:80 -p $P:1 --shm-size $S i mooncake_client --port 2\n"
        "sudo -u 7 mooncake_client --port 3\nsudo -u $Q mooncake_client --port 4\n"
    )
    for written, other in zip(launch.reading.commands, again.reading.commands, strict=True):
        for name in ("limits", "published", "run_as"):
            assert _plain(getattr(written, name)) == _plain(getattr(other, name)), name
    assert again.reading.commands[1].container is not None
    assert isinstance(again.reading.commands[1].container.shm_size_bytes, Unknown)


def _plain(records: Any) -> Any:
    if isinstance(records, tuple):
        return tuple(map(_plain, records))
    return "not known" if isinstance(records, Unknown) else repr(records)


def test_a_recorded_launch_keeps_no_user_s_name() -> None:
    _, record, again = recorded("sudo -u jdoe mooncake_client --port 3")
    assert "jdoe" not in record
    assert again.reading.commands[0].run_as.user not in ("", "root", "jdoe")
