"""Which release is there: wheels' RECORDs, programs, and the mooncake_master on PATH."""

import base64
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from checks.framework.finding import Finding, Status
from checks.software.calls import program, records
from checks.software.facts import CompiledFile, Distribution, Master, Record, _build_ids
from preflight.engines.programs.mooncake_flags import flag_table
from tests.checks.limit_hosts import tree
from tests.checks.test_software_checks import (
    INSTALLED,
    OTHER,
    SEARCH,
    SITE,
    WHEEL,
    environment,
    found,
    one,
    read,
    software,
)

OURS = Distribution("mooncake-transfer-engine", "0.3.13.post1", SITE)
DUPLICATE = "software.mooncake-duplicate"
# The master of the wheels of 0.3.5, which says no release itself; of two releases the same file.
ID_0_3_5 = "cce26c1d37f39f6d38e59c9f805b5524a40669c0"
ID_0_3_7_POSTS = "d5ad0a3c0033950e92b187dcabaef8b0385e65aa"


def install(folder: Path) -> dict[str, bytes]:
    """A wheel as pip leaves it."""
    files = {
        "mooncake/config.py": b"import os\n",
        "mooncake/engine.so": b"\x7fELF 0.3.12",
        "mooncake/store.so": b"\x7fELF store",
        "mooncake_transfer_engine.libs/libfmt.so": b"\x7fELF fmt",
        "mooncake_transfer_engine-0.3.13.post1.dist-info/METADATA": b"Name: x\n",
    }
    lines = ["../../bin/mooncake_master,sha256=x,222", "mooncake/__pycache__/config.pyc,,"]
    lines.append("mooncake/../outside.py,sha256=x,7")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    (folder / WHEEL / "RECORD").write_text("\n".join([*lines, f"{WHEEL}/RECORD,,"]) + "\n")
    return files


def test_files_are_compared_with_their_record(tmp_path: Path) -> None:
    """Sizes of all, hashes of some; scripts and what leads out do not count."""
    install(tmp_path)
    assert records(str(tmp_path)) == [{"info": WHEEL, "listed": 4, "changed": []}]
    (tmp_path / "mooncake/config.py").write_bytes(b"import sy\n")
    (tmp_path / "mooncake/engine.so").write_bytes(b"\x7fELF 0.3.13")
    (tmp_path / "mooncake/store.so").write_bytes(b"\x7fELF another")
    (tmp_path / "mooncake_transfer_engine.libs/libfmt.so").unlink()
    changed = [
        ["mooncake/config.py", 10, 10],
        ["mooncake/engine.so", 11, 11],
        ["mooncake/store.so", 10, 12],
        ["mooncake_transfer_engine.libs/libfmt.so", 8, None],
    ]
    assert records(str(tmp_path)) == [{"info": WHEEL, "listed": 4, "changed": changed}]
    os.mkfifo(tmp_path / "mooncake_transfer_engine.libs/libfmt.so")  # it would wait for ever
    assert records(str(tmp_path))[0]["changed"] == changed
    (tmp_path / WHEEL / "RECORD").unlink()
    assert records(str(tmp_path)) == [{"info": WHEEL, "listed": None, "changed": []}]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("#!/opt/venv/bin/python3\nimport re\n", "/opt/venv/bin/python3"),
        ("#! /usr/bin/env python3\n", "python3"),
        ("#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a b/bin/python"),
        ("#!/bin/sh\n'''exec' /very/long/python \"$0\" \"$@\"\n' '''\n", "/very/long/python"),
        ("#!/bin/sh\nexec /opt/master\n", "/bin/sh"),
    ],
)
def test_a_script_names_its_interpreter(tmp_path: Path, text: str, script: str) -> None:
    """As pip writes it, and a path too long for the kernel's first line; nothing is run."""
    (tmp_path / "mooncake_master").write_text(text)
    assert program(str(tmp_path / "mooncake_master")) == {"script": script}


def test_every_release_has_its_build_ids() -> None:
    """Of each release whose flags are known; a new one is added by the same command."""
    known = {release for releases in _build_ids().values() for release in releases}
    assert known == set(flag_table().releases)
    assert _build_ids()[ID_0_3_5] == ("0.3.5",)
    assert _build_ids()[ID_0_3_7_POSTS] == ("0.3.7.post1", "0.3.7.post2")


def judged(folder: Path, answer: Any, changed: Any = (), **files: str) -> Finding:
    """What is said where mooncake_master on PATH is another file than the interpreter's."""
    on_path = {"mooncake_master": "/usr/local/bin/mooncake_master"}
    calls = {
        "software.search": {**SEARCH, "on_path": on_path},
        f"software.libraries {SITE}/mooncake": [],
        f"software.records {SITE}": [{"info": WHEEL, "listed": 9, "changed": list(changed)}],
        "software.program /usr/local/bin/mooncake_master": answer,
    }
    (finding,) = found(DUPLICATE, None, read(tree(folder / "host", {**INSTALLED, **files}, calls)))
    return finding


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ({"script": "/opt/venv/bin/python3.12"}, Status.PASS, ""),
        ({"script": "python3"}, Status.PASS, ""),
        ({"build_id": "ab", "release": "0.3.13.post1"}, Status.PASS, ""),
        ({"build_id": "ab", "release": "0.3.12"}, Status.WARN, "of release 0.3.12, and"),
        ({"build_id": ID_0_3_5, "release": ""}, Status.WARN, "of release 0.3.5, and"),
        ({"build_id": "ab", "release": ""}, Status.WARN, "of unknown release, and"),
        ({"script": "/usr/bin/python3"}, Status.WARN, "of release 0.3.14, and"),
        ({"script": "/bin/sh"}, Status.UNKNOWN, "neither a program nor a script of Python"),
        ({}, Status.UNKNOWN, "neither a program nor a script of Python"),
        (3, Status.UNKNOWN, "not an object"),
    ],
)
def test_the_master_on_path(tmp_path: Path, answer: Any, status: Status, said: str) -> None:
    """By its interpreter's wheel, by what it says, by its build id; or it is unknown."""
    other = {
        f"{OTHER}/mooncake/engine.so": "",
        f"{OTHER}/mooncake_transfer_engine-0.3.14.dist-info/METADATA": "",
        "/usr/bin/python3": "",
    }
    finding = judged(tmp_path, answer, **other)
    assert finding.status is status, finding
    assert said in finding.text
    if said == "of unknown release, and":
        assert any(row.value.startswith("release unknown: ") for row in finding.evidence)
    if status is Status.WARN:
        assert "starts /usr/local/bin/mooncake_master, of" in finding.text
        assert finding.text.count("Mooncake 0.3.13.post1") == 1


@pytest.mark.parametrize("answer", [3, [3], [{}], [{"info": WHEEL, "listed": 1, "changed": [3]}]])
def test_odd_records_are_unknown(tmp_path: Path, answer: Any) -> None:
    """A capture may hold anything, and an older one holds none."""
    calls = {"software.search": SEARCH, f"software.records {SITE}": answer}
    (finding,) = found(DUPLICATE, None, read(tree(tmp_path / "host", INSTALLED, calls)))
    assert finding.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("version", "releases", "status"),
    [
        ("0.3.13.post1", ("0.3.12",), Status.WARN),
        ("0.3.13.post1", ("0.3.13", "0.3.13.post1"), Status.PASS),
        # A build of its own says what it likes.
        ("0.3.13.post1+git1a2b", ("0.3.12",), Status.PASS),
    ],
)
def test_a_program_of_another_release(
    version: str, releases: tuple[str, ...], status: Status
) -> None:
    """Where no RECORD tells, the program does."""
    wheel = environment(mooncake=(OURS._replace(version=version),))
    files = (CompiledFile("mooncake_master", (), "", releases),)
    finding = one(DUPLICATE, None, software(wheel, files=files))
    assert finding.status is status
    if status is Status.WARN:
        assert finding.text.endswith("mooncake_master is of release 0.3.12")


def test_which_of_two_wheels_is_on_disk() -> None:
    """The one whose RECORD fits."""
    other = Distribution("mooncake-transfer-engine-cuda13", "0.3.14", SITE)
    rows = (Record(OURS, 79, (("mooncake/store.so", 1, 2),)), Record(other, 80, ()))
    seen = software(environment(mooncake=(OURS, other)), records=rows)
    text = one(DUPLICATE, None, seen).text
    assert text.endswith("the files on disk are of mooncake-transfer-engine-cuda13 0.3.14")


def test_a_folder_without_a_wheel_is_named_by_its_programs() -> None:
    """PYTHONPATH: the folder's own programs tell, and a script of any Python takes that folder."""
    shadow = environment(package="/src/build/mooncake")
    files = (
        CompiledFile("mooncake_client", (), "", ("0.3.13", "0.3.13.post1")),
        CompiledFile("mooncake_master", (), "", ("0.3.13",)),
    )
    script = Master("/opt/venv/bin/mooncake_master", f"{SITE}/mooncake", ("0.3.13.post1",), "")
    finding = one(DUPLICATE, None, software(shadow, files=files, master=script))
    assert finding.text.endswith("which came with no wheel: its programs are of release 0.3.13")
    built = Master("/usr/local/bin/mooncake_master", None, ("0.3.12",), "")
    finding = one(DUPLICATE, None, software(shadow, files=files, master=built))
    assert "of release 0.3.12, and an import takes Mooncake 0.3.13," in finding.text
