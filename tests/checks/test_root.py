"""Where facts come from: files of the machine or of a folder, and calls."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from checks.framework.root import Root
from checks.framework.unknown import Unknown


def test_a_link_is_followed_to_its_name_below_the_root(tmp_path: Path) -> None:
    """sysfs is made of links; what a reader gets must be a name that it can read again."""
    (tmp_path / "sys/devices/pci0/0000:10:00.0").mkdir(parents=True)
    (tmp_path / "sys/class").mkdir()
    (tmp_path / "sys/class/mlx5_0").symlink_to("../devices/pci0/0000:10:00.0")
    assert Root(str(tmp_path)).link("/sys/class/mlx5_0") == "/sys/devices/pci0/0000:10:00.0"


def test_a_link_out_of_the_root_is_not_followed(tmp_path: Path) -> None:
    """A recorded host must not answer with files of the machine that it is read on."""
    (tmp_path / "escape").symlink_to("/etc")
    found = Root(str(tmp_path)).link("/escape")
    assert isinstance(found, Unknown)
    assert not found.absent


def test_a_file_or_folder_behind_a_link_is_read_only_within_the_root(tmp_path: Path) -> None:
    """Whatever is asked of it, and where in the path the link stands."""
    inside, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (inside, outside):
        (folder / "proc").mkdir(parents=True)
        (folder / "proc/meminfo").write_text(f"{folder.name}\n")
    (tmp_path / "beside").symlink_to("outside/proc")
    (tmp_path / "again").symlink_to("root")
    folders = {"near": "proc", "absolute": str(inside / "proc"), "twice": "near"}
    away = {"up": "../outside/proc", "away": str(outside / "proc"), "more": "up", "by": "../beside"}
    for name, target in {**folders, **away, "file": "near/meminfo", "gone": "up/meminfo"}.items():
        (inside / name).symlink_to(target)
    for root in (Root(str(inside)), Root(str(tmp_path / "again"))):
        for name in folders:
            assert root.names(f"/{name}") == ("meminfo",)
            assert root.text(f"/{name}/meminfo") == root.text("/file") == "root\n"
        for name in away:
            inner = f"/{name}/meminfo"
            asked = (root.names(f"/{name}"), root.mode(f"/{name}"), root.text(inner))
            for found in (*asked, root.mode(inner), root.text("/gone")):
                assert isinstance(found, Unknown)
                assert not found.absent


def test_what_is_missing_and_what_cannot_be_read_differ(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    root = Root(str(tmp_path))
    for missing in (root.text("/none"), root.link("/none"), root.mode("/none")):
        assert isinstance(missing, Unknown)
        assert missing.absent
    unreadable = root.text("/folder")
    assert isinstance(unreadable, Unknown)
    assert not unreadable.absent


@pytest.mark.parametrize("name", ["/a\0b", "/" + "x" * 5000])
def test_a_name_that_no_file_can_have_is_no_crash(tmp_path: Path, name: str) -> None:
    root = Root(str(tmp_path))
    for found in (root.text(name), root.names(name), root.link(name), root.mode(name)):
        assert isinstance(found, Unknown)


def test_a_folder_answers_calls_from_its_own_record(tmp_path: Path) -> None:
    calls = {
        "storage.space /dev/shm": {"free_bytes": 7},
        "network.resolve host": {"unknown": "no such host", "absent": True},
    }
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    root = Root(str(tmp_path))
    assert root.call("storage.space", "/dev/shm") == {"free_bytes": 7}
    unresolved = root.call("network.resolve", "host")
    assert isinstance(unresolved, Unknown)
    assert unresolved.absent
    assert isinstance(root.call("storage.space", "/"), Unknown)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_broken_record_of_calls_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / "calls.json").write_text(content)
    assert isinstance(Root(str(tmp_path)).call("storage.space", "/"), Unknown)


def test_a_call_that_does_not_exist_is_unknown_on_the_live_machine() -> None:
    assert isinstance(Root().call("nothing.at_all"), Unknown)
    assert Root().mode("/dev/null") == os.stat("/dev/null").st_mode
