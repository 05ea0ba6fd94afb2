"""Folders and files of a launch: real folders of every kind that Mooncake refuses, and records."""

import json
from pathlib import Path

import pytest

from checks.framework.finding import Status
from checks.framework.needs import LaunchNeeds, Storage
from checks.framework.units import GIB
from checks.framework.unknown import Unknown
from checks.run_checks.facts import Facts
from tests.checks.launches import facts_of, findings, launch, one_finding


def _needs(path: str | Unknown, kind: str = "offload", **other: object) -> LaunchNeeds:
    item = Storage(kind, path, "client", "--path")._replace(**other)  # type: ignore[arg-type]
    return launch()._replace(storage=(item,))


def _live(needs: LaunchNeeds, id_: str = "storage.offload-path") -> Status:
    return one_finding(facts_of("/", "storage", needs=needs), needs, id_).status


def test_what_mooncake_accepts_and_refuses(tmp_path: Path) -> None:
    """FileStorageConfig::ValidatePath, case by case, on real folders."""
    folder, link, file = tmp_path / "folder", tmp_path / "link", tmp_path / "file"
    folder.mkdir()
    link.symlink_to(folder)
    file.write_text("")
    assert _live(_needs(str(folder))) is Status.PASS
    assert _live(_needs(f"{folder}/")) is Status.PASS
    assert _live(_needs(str(link))) is Status.FAIL
    assert _live(_needs(str(file))) is Status.FAIL
    assert _live(_needs(str(tmp_path / "absent"))) is Status.FAIL
    assert _live(_needs(f"{folder}/../folder")) is Status.FAIL
    assert _live(_needs("relative/folder")) is Status.FAIL
    assert _live(_needs(Unknown("$OFFLOAD is not set"))) is Status.UNKNOWN


def test_a_folder_that_the_process_makes_need_not_exist(tmp_path: Path) -> None:
    """SGLang 0.5.21 and later make one for each rank."""
    assert _live(_needs(str(tmp_path / "a/b"), created=True)) is Status.PASS
    (tmp_path / "file").write_text("")
    assert _live(_needs(str(tmp_path / "file/b"), created=True)) is Status.FAIL


def test_direct_io_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    status = _live(_needs(str(tmp_path), direct_io=True))
    assert status in (Status.PASS, Status.FAIL, Status.UNKNOWN)
    assert list(tmp_path.iterdir()) == []


SEEN: dict[str, object] = {"link": False, "folder": True, "writable": True, "read_only": False}
SEEN |= {"size_bytes": 100 * GIB, "available_bytes": 50 * GIB}


def _recorded(tmp_path: Path, needs: LaunchNeeds, direct: object = None, **other: object) -> Facts:
    calls = {"storage.folder /ssd": {**SEEN, **other}, "storage.direct /ssd": direct}
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    return facts_of(tmp_path, "storage", needs=needs)


@pytest.mark.parametrize(
    ("seen", "direct", "expected"),
    [
        ({}, {"direct": True}, Status.PASS),
        ({"read_only": True}, {"direct": True}, Status.FAIL),
        ({"writable": False}, {"direct": True}, Status.FAIL),
        ({}, {"direct": False, "errno": "EINVAL"}, Status.FAIL),
        ({}, {"direct": False, "errno": "EOPNOTSUPP"}, Status.UNKNOWN),
        ({}, None, Status.UNKNOWN),
    ],
)
def test_recorded_folders(
    tmp_path: Path, seen: dict[str, object], direct: object, expected: Status
) -> None:
    needs = _needs("/ssd", direct_io=True)
    facts = _recorded(tmp_path, needs, direct, **seen)
    found = findings(facts, needs, "storage.offload-path")
    assert [finding.status for finding in found] == [expected]


@pytest.mark.parametrize(
    ("need", "no_inode", "expected"),
    [(50 * GIB, False, Status.PASS), (50 * GIB + 1, False, Status.WARN), (GIB, True, Status.WARN)],
)
def test_all_users_of_a_disk_share_its_space_and_inodes(
    tmp_path: Path, need: int, no_inode: bool, expected: Status
) -> None:
    needs = _needs("/ssd", need_bytes=need, users=2)
    facts = _recorded(tmp_path, needs, full_of_files=no_inode)
    found = findings(facts, needs, "storage.offload-space")
    assert [finding.status for finding in found] == [expected]


def test_models_and_configurations(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    needs = _needs(str(model), "model")
    assert _live(needs, "storage.files") is Status.FAIL  # no config.json
    (model / "config.json").write_text("{}")
    assert _live(needs, "storage.files") is Status.PASS
    assert _live(_needs("Qwen/Qwen3-14B", "model"), "storage.files") is Status.SKIP
    assert _live(_needs("/absent/conf.json", "config"), "storage.files") is Status.FAIL
    assert _live(_needs(str(model), "config"), "storage.files") is Status.FAIL  # a folder
    assert _live(_needs(str(model / "config.json"), "config"), "storage.files") is Status.PASS
    assert _live(_needs(Unknown("$MODEL"), "model"), "storage.files") is Status.UNKNOWN
