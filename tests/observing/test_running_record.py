"""What a capture keeps of the programs that run: enough for ``observe``, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.archive import archive_bytes
from checks.base.root import Root
from checks.capture.anonymise import anonymise
from checks.capture.capture import capture_files, open_root
from preflight.cli.main import run
from preflight.observing.comparison import findings
from preflight.observing.running_launch import running_servers
from preflight.observing.running_record import RunningRecord, record_running
from tests.observing.test_observing import client, huge, process


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
    answers, extras = anonymise(seen.answers, {"running": seen.words}, seen.hosts, ())
    file = host / "host.tar.gz"
    file.write_bytes(archive_bytes(capture_files(answers, extras)))
    return open_root(str(file))


def test_a_capture_says_what_the_host_says(host: Path) -> None:
    seen = record_running(Root(str(host)))
    assert said(saved(host, seen)) == said(Root(str(host)))
    assert [*seen.words] == ["100"]


def test_nothing_else_is_kept(host: Path) -> None:
    """No secret, no variable that does not count, nothing of another process."""
    seen = record_running(Root(str(host)))
    kept = f"{seen.answers} {seen.words}"
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
