"""A capture answers as the host did, anywhere; and what is no capture is refused with a reason."""

import contextlib
import gzip
import io
import json
import lzma
import os
import re
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checks.framework.archive import MOST_BYTES, archive_bytes
from checks.framework.recording import Answers, no_answers
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from checks.host_snapshot import capture as capture_module
from checks.host_snapshot.capture import (
    CAPTURE_FILE,
    LARGEST_BYTES,
    SCHEMA,
    Capture,
    CaptureError,
    capture_files,
    open_root,
)
from checks.run_checks.facts import READERS, read_facts
from preflight.base.plain_data import plain
from preflight.base.shell import line
from preflight.cli.main import run
from preflight.command_inputs import host_record
from preflight.command_inputs.host_record import record
from preflight.command_inputs.host_source import Host, open_host
from preflight.command_inputs.launch_words import LaunchWords
from preflight.verdict import judge_host
from preflight.verdict.answer import check_launch
from preflight.verdict.report import report_object
from tests.builders.check_fakes import installed
from tests.builders.synthetic import build_host, erdma_host, gpu_host, limited_container, plain_host
from tests.checks.recorded import CAPTURES, recorded
from tests.rows import subject

SCRIPT = """\
export MOONCAKE_MASTER=127.0.0.1:1
export MC_STORE_USE_HUGEPAGE=1
export HF_TOKEN=hf_0123456789
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2 --api-key sk-abcdefgh \\
  --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend mooncake
"""
OTHER = LaunchWords(
    tuple(
        "MOONCAKE_MASTER=127.0.0.1:2 python3 -m sglang.launch_server --model-path "
        "meta-llama/Llama-3.1-8B-Instruct --enable-hierarchical-cache --hicache-size 4 "
        "--hicache-storage-backend mooncake".split()
    )
)
HOSTS = {"gpu": gpu_host, "erdma": erdma_host, "container": limited_container, "plain": plain_host}


@pytest.fixture
def script(tmp_path: Path) -> LaunchWords:
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT)
    return LaunchWords((str(path),))


def findings(host: Host, words: LaunchWords, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All that check says of a host that is already open, but its name."""
    monkeypatch.setattr(judge_host, "open_host", lambda *_: host._replace(name="/"))
    found = report_object(check_launch(words, "/", 10.0).report, "native", 0)
    for row in found["findings"]:  # the launch of a capture has no file that a command could name
        named = f" {' '.join(words.words)}"
        for one in row["actions"]:
            one["text"] = one["text"].removesuffix(named)
            one["argv"] = one["argv"] and line(one["argv"]).removesuffix(named)
    return found


def saved(path: Path, answers: Answers, extras: Mapping[str, Any]) -> Path:
    path.write_bytes(archive_bytes(capture_files(answers, extras)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["this machine", *HOSTS])
def test_a_capture_gives_the_same_findings_as_the_host(
    kind: str, script: LaunchWords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the launch that it holds, with the same one given, for another launch, and for none."""
    root = "/" if kind == "this machine" else str(build_host(tmp_path / "host", HOSTS[kind]()))
    host = open_host(root)
    answers, extras, *_ = record(script, host, 10.0)
    path = saved(tmp_path / "host.tar.gz", answers, extras)
    live = findings(host, script, monkeypatch)
    for words in (LaunchWords(), script):
        assert findings(open_host(str(path)), words, monkeypatch) == live
    # What no reader was asked for another launch cannot be known here; all else is the same.
    there = {(f["check"], subject(f)): f for f in findings(host, OTHER, monkeypatch)["findings"]}
    here = {
        (f["check"], subject(f)): f
        for f in findings(open_host(str(path)), OTHER, monkeypatch)["findings"]
    }
    different = {key for key in here if here[key] != there.get(key)}
    assert all(here[key]["status"] in ("unknown", "skip") for key in different)
    assert {id_.partition(".")[0] for id_, _ in different} <= {"service", "network", "storage"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTS)
def test_replaced_names_change_no_status(
    kind: str, script: LaunchWords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks.host_snapshot.anonymise import anonymise

    host = open_host(str(build_host(tmp_path / "host", HOSTS[kind]())))
    answers, extras, *_ = record(script, host, 10.0)
    path = saved(tmp_path / "host.tar.gz", *anonymise(answers, extras, [], []))

    def short(found: Any) -> list[tuple[str, ...]]:
        return sorted((f["check"], f["status"]) for f in found["findings"])

    live = short(findings(host, script, monkeypatch))
    assert short(findings(open_host(str(path)), LaunchWords(), monkeypatch)) == live


OVERLAP = {"l2-halves-overlap", "l2-halves-may-overlap"}


def _install(folder: Path, *distributions: str) -> str:
    """An import path on which nothing else is installed."""
    for name in distributions:
        (folder / f"{name}.dist-info").mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("there", "status"),
    [
        ((), "warn"),
        (("sglang-0.5.23", "mooncake_transfer_engine-0.3.14"), "fail"),
        (("sglang-0.5.23", "mooncake_transfer_engine-0.3.13.post1"), None),
        (("sglang-0.5.23", "mooncake_transfer_engine-abc"), "warn"),
    ],
)
def test_what_was_only_assumed_is_so_from_a_capture_too(
    there: tuple[str, ...],
    status: str | None,
    script: LaunchWords,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is installed where the capture is read decides nothing, twice removed neither."""
    packages = dict(name.split("-", 1) for name in there)
    root = str(build_host(tmp_path / "host", replace(gpu_host(), packages=packages)))
    monkeypatch.setattr("sys.path", [_install(tmp_path / "there", *there)])
    live_host = open_host(root)
    path = saved(tmp_path / "a.tar.gz", *record(script, live_host, 10.0)[:2])
    live = findings(live_host, script, monkeypatch)
    found = {f["status"] for f in live["findings"] if f["check"] in OVERLAP}
    assert found == ({status} if status else set())
    elsewhere = ("sglang-0.5.16", "mooncake_transfer_engine-0.3.9")
    monkeypatch.setattr("sys.path", [_install(tmp_path / "elsewhere", *elsewhere)])
    again = saved(tmp_path / "b.tar.gz", *record(LaunchWords(), open_host(str(path)), 10.0)[:2])
    for capture in (path, again):
        for words in (LaunchWords(), script):
            assert findings(open_host(str(capture)), words, monkeypatch) == live


@pytest.mark.slow
def test_a_version_that_was_named_stays_named(
    script: LaunchWords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the launch of the capture and for another; what the reader names comes first."""
    monkeypatch.setattr("sys.path", [_install(tmp_path / "empty")])
    named = script._replace(mooncake_version="0.3.14", sglang_version="0.5.23")
    host = open_host(str(build_host(tmp_path / "host", gpu_host())))
    path = str(saved(tmp_path / "a.tar.gz", *record(named, host, 10.0)[:2]))

    def version(words: LaunchWords) -> tuple[str, set[str]]:
        found = findings(open_host(path), words, monkeypatch)
        overlap = {f["status"] for f in found["findings"] if f["check"] in OVERLAP}
        return found["answer"]["mooncake_version"], overlap

    assert version(LaunchWords()) == ("0.3.14", {"fail"})
    assert version(OTHER)[0] == "0.3.14"
    assert version(LaunchWords(mooncake_version="0.3.12")) == ("0.3.12", set())


@pytest.mark.slow
@pytest.mark.parametrize("broken", [{"mooncake": 1, "sglang": 2}, {"mooncake": [1, ["a"]]}, "x"])
def test_a_record_of_what_is_installed_that_is_none_is_no_traceback(
    broken: object, script: LaunchWords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = open_host(str(build_host(tmp_path / "host", plain_host())))
    answers, extras, *_ = record(script, host, 10.0)
    path = saved(tmp_path / "a.tar.gz", answers, {**extras, "installed": broken})
    assert findings(open_host(str(path)), LaunchWords(), monkeypatch)["findings"]


@pytest.mark.slow
def test_a_capture_of_a_capture_is_the_same_capture(script: LaunchWords, tmp_path: Path) -> None:
    answers, extras, *_ = record(script, open_host("/"), 10.0)
    first = saved(tmp_path / "a.tar.gz", answers, extras)
    again, more, *_ = record(LaunchWords(), open_host(str(first)), 10.0)
    for got, wanted in zip(again, answers, strict=True):
        assert _comparable(got) == _comparable(wanted)
    assert more["environment"] == extras["environment"]
    assert more["launch"]["reading"] == extras["launch"]["reading"]


@pytest.mark.slow
def test_the_command_writes_a_small_private_file_without_secrets(
    script: LaunchWords, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.tar.gz"
    assert run(["capture", str(path), *script.words]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < LARGEST_BYTES
    assert sorted(os.listdir(tmp_path)) == ["host.tar.gz", "launch.sh"]
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        contents = b"".join(file.read() for m in members if (file := tar.extractfile(m)))
    assert members[0].name == CAPTURE_FILE
    assert "proc/meminfo" in {member.name for member in members}
    assert b"hf_0123456789" not in contents
    assert b"sk-abcdefgh" not in contents
    assert str(path) in capsys.readouterr().out
    assert run(["check", "--root", str(path), "-q"]) in (0, 1, 2, 3)
    assert "launch.sh" in capsys.readouterr().out


def test_a_launch_that_no_capture_holds_is_refused_before_the_host_is_asked(
    script: LaunchWords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "MOST_JSON_BYTES", 1000)
    monkeypatch.setattr(host_record, "read_facts", lambda *_: pytest.fail("the host is asked"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["capture", str(tmp_path / "host.tar.gz"), *script.words])
    assert (code, out.getvalue()) == (64, "")
    assert "capture the host without the launch, or with a part of it" in err.getvalue()
    assert not (tmp_path / "host.tar.gz").exists()


@pytest.mark.slow
def test_a_capture_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "folder"
    (taken / "x").mkdir(parents=True)
    assert run(["capture", str(taken / "x" / "no" / "a.tar.gz")]) == 64
    assert "No such file or directory" in capsys.readouterr().err
    assert os.listdir(taken) == ["x"]


def test_the_same_answers_are_the_same_bytes() -> None:
    first, second = no_answers(), no_answers()
    for number in range(20):
        first.texts[f"/proc/{number}"] = str(number)
        second.texts[f"/proc/{19 - number}"] = str(19 - number)
    assert archive_bytes(capture_files(first, {})) == archive_bytes(capture_files(second, {}))


EVERY_KIND = Answers(
    {
        "/proc/a": "text\n",
        "/proc/empty": "",
        "/sys/x y/ä": "a name that no archive should hold",
        "/capture.json": "a file of this very name",
        "/proc/b": Unknown("/proc/b: Permission denied", code="EACCES"),
        "/proc/c": Unknown("/proc/c: No such file or directory", absent=True),
    },
    {"/proc": ("a", "b", "empty"), "/sys/gone": Unknown("/sys/gone: no", absent=True)},
    {"/sys/l": "/sys/t", "/sys/n": Unknown("/sys/n: no")},
    {"/dev/x": 0o20666},
    {"x.y 1": {"a": [1, None, True]}, "x.z": Unknown("x.z: refused", code="-2"), "x.n": None},
)


def test_every_kind_of_answer_comes_back(tmp_path: Path) -> None:
    """From the archive, and from a folder that it was unpacked to."""
    path = saved(tmp_path / "c.tar.gz", EVERY_KIND, {"extra": [1]})
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "unpacked")
    for source in (path, tmp_path / "unpacked"):
        root = open_root(str(source))
        assert isinstance(root, Capture)
        assert not root.live
        assert root.extras["extra"] == [1]
        for got, wanted in zip(root.answers, EVERY_KIND, strict=True):
            assert _comparable(got) == _comparable(wanted)
        assert root.call("x.y", 1) == {"a": [1, None, True]}


def _comparable(answers: Any) -> dict[str, Any]:
    return {
        name: (answer.reason, answer.absent, answer.code) if isinstance(answer, Unknown) else answer
        for name, answer in answers.items()
    }


def test_what_was_not_asked_is_unknown_and_absent_only_where_a_listing_says_so(
    tmp_path: Path,
) -> None:
    root = open_root(str(saved(tmp_path / "c.tar.gz", EVERY_KIND, {})))

    def asked(answer: object) -> tuple[str, bool]:
        assert isinstance(answer, Unknown)
        return answer.reason.partition(": ")[2], answer.absent

    assert asked(root.text("/etc/hosts")) == ("not in this capture", False)
    assert asked(root.text("/proc/not-listed/x")) == ("No such file or directory", True)
    assert asked(root.names("/sys/gone/below")) == ("No such file or directory", True)
    assert asked(root.mode("/proc/a")) == ("not in this capture", False)
    call = root.call("x.y", 2)
    assert isinstance(call, Unknown)
    # Of many such answers a page makes one line, by their cause.
    assert (call.reason, call.cause) == ("not in this capture (x.y 2)", "not in this capture")
    assert asked(Root(root.locate("/proc")).text("/meminfo"))[1]  # nothing of this machine


def test_a_truncated_capture_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = archive_bytes(capture_files(EVERY_KIND, {}))
    for end in [*range(0, len(whole), max(1, len(whole) // 40)), len(whole) - 1, len(whole) - 8]:
        path = tmp_path / "cut.tar.gz"
        path.write_bytes(whole[:end])
        with pytest.raises(CaptureError, match=r"cut\.tar\.gz"):
            open_root(str(path))


def test_a_truncated_plain_capture_is_refused(tmp_path: Path) -> None:
    """Without compression nothing but the list of members tells that some are missing."""
    plain = io.BytesIO()
    files = capture_files(EVERY_KIND, {})
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in list(files.items())[:-1]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    path = tmp_path / "cut.tar"
    path.write_bytes(plain.getvalue())
    with pytest.raises(CaptureError, match="not a whole capture"):
        open_root(str(path))


def _headed(head: object) -> dict[str, bytes]:
    return {CAPTURE_FILE: json.dumps(head).encode()}


PARTS = {"texts": {"/a": 1}, "links": {}, "modes": {}, "folders": {}}
# What stands at the path: the content of a file, the members of an archive, another path, nothing.
FOREIGN: dict[str, tuple[bytes | dict[str, bytes] | Path | None, str]] = {
    "text": (b"hello\n" * 200, "no tar archive"),
    "empty": (b"", "no tar archive"),
    "other archive": ({"README": b"x"}, "neither a capture"),
    "no files": ({}, "an archive without files"),
    "way out": ({"proc/../../etc/x": b"x"}, "outside of itself"),
    "newer": (_headed({"schema": f"{SCHEMA}0"}), f"this program reads {SCHEMA}"),
    "not JSON": ({CAPTURE_FILE: b"{"}, "capture.json"),
    "not an object": (_headed([]), "capture.json"),
    "no calls": (_headed({"schema": SCHEMA}), "calls.json is missing"),
    "wrong types": (
        {**_headed({"schema": SCHEMA, **PARTS}), "calls.json": b"{}"},
        "not a capture as it was written",
    ),
    "bomb": ({"proc/x": bytes(MOST_BYTES + 1)}, "more than a host's facts"),
    "absent": (None, "no such file or folder"),
    "socket": (Path("/dev/null"), "a device or a pipe"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_host_is_refused_with_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(monkeypatch, [])
    content, says = FOREIGN[kind]
    path = content if isinstance(content, Path) else tmp_path / "x"
    if isinstance(content, bytes | dict):
        path.write_bytes(content if isinstance(content, bytes) else archive_bytes(content))
    assert run(["check", "--root", str(path)]) == 64
    shown = capsys.readouterr().err
    assert says in shown
    assert str(path) in shown


def _tree(folder: Path) -> Path:
    for name, content in {
        "proc/meminfo": "MemTotal: 1 kB\n",
        "sys/devices/pci0/net/eth0/mtu": "1500\n",
        "sys/devices/pci0/vendor": "0x15b3\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "sys/class/net").mkdir(parents=True)
    links = {
        "sys/class/net/eth0": "../../devices/pci0/net/eth0",
        "sys/devices/pci0/net/eth0/device": "../..",
        "sys/class/loop": "loop",
        "sys/class/dangling": "../nothing",
        "sys/class/absolute": "/sys/devices",
        "sys/class/through-file": "../../proc/meminfo/x",
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    return folder


@pytest.mark.parametrize("top", ["", "machine-3/"])
@pytest.mark.parametrize("mode", ["w:", "w:bz2", "w:xz"])
def test_a_tree_in_an_archive_is_the_tree(top: str, mode: Any, tmp_path: Path) -> None:
    """Links are followed in memory as the kernel follows them in the folder."""
    folder = _tree(tmp_path / "tree")
    path = tmp_path / "tree.tar"
    with tarfile.open(path, mode) as tar:
        tar.add(folder, top or ".")
    archive, plain = open_root(str(path)), Root(str(folder))
    names = [
        "/", "/proc", "/proc/meminfo", "/proc/meminfo/x", "/nothing", "/sys/class/net",
        "/sys/class/net/eth0", "/sys/class/net/eth0/mtu", "/sys/class/net/eth0/device/vendor",
        "/sys/class/net/eth0/device/../vendor", "/sys/class/loop", "/sys/class/loop/x",
        "/sys/class/dangling", "/sys/class/through-file", "//proc//meminfo", "/proc/./meminfo",
    ]  # fmt: skip
    for name in names:
        for ask in ("text", "names", "link"):
            got, wanted = getattr(archive, ask)(name), getattr(plain, ask)(name)
            assert _comparable({"": got}) == _comparable({"": wanted}), (ask, name)
        got_mode, wanted_mode = archive.mode(name), plain.mode(name)
        assert _comparable({"": got_mode}) == _comparable({"": wanted_mode}), name
    assert archive.text("/sys/class/absolute/pci0/vendor") == "0x15b3\n"
    assert isinstance(archive.call("x.y"), Unknown)
    assert not archive.live


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2i386-2t-hugepagesizecount", "40intel64-2g2n4c+pcilocality"])
def test_a_recorded_machine_reads_the_same_from_its_archive(name: str, tmp_path: Path) -> None:
    folder = recorded(name)
    archive = open_root(str(CAPTURES / f"{name}.tar.bz2"))
    topics = [topic for topic in READERS if topic not in ("software", "services")]
    here, there = (plain_facts(root, topics) for root in (archive, Root(str(folder))))
    assert here == there
    assert "defect" not in json.dumps(here)


def plain_facts(root: Root, topics: list[str]) -> dict[str, Any]:
    facts = read_facts(root, None, 60.0, topics)
    return {topic: plain(facts.topic(topic)) for topic in topics}


def _header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def _bombs() -> Iterator[tuple[str, bytes, str]]:
    plain = gzip.decompress(archive_bytes({"proc/meminfo": b"MemTotal: 1 kB\n"}))
    deep = gzip.decompress(archive_bytes({f"{'a/' * 30_000}x": b"1"}))
    wide = {f"{f'{n}/' * 20}{'b/' * 20}x": b"" for n in range(20_000)}
    records = b"".join(b"11 k%05d=\n" % n for n in range(1_400)).ljust(31 * 512, b"\0")
    zeros = bytes(80 * 2**20)
    yield "a deep path", gzip.compress(deep), "a header of over"
    yield "many deep paths", archive_bytes(wide), "files and folders"
    yield "many members", archive_bytes({f"proc/{n}": b"" for n in range(60_000)}), "files and"
    for name, kind in (("pax", b"x"), ("name", b"L")):
        packed = gzip.compress(_header(kind, 2**32) + zeros[: 2**20])
        yield f"a {name} header of 4 GiB", packed, "a header of over"
    block = _header(b"g", 15_400) + records + _header(b"0", 0)
    yield "many records of the whole", gzip.compress(block * 1_200), "a header of over"
    chained = _header(b"x", 512) + b"11 k00001=\n".ljust(512, b"\0")
    yield "headers of headers", gzip.compress(chained * 20_000), "not a whole tar archive"
    yield "zeros behind the end", gzip.compress(plain + zeros), "64 MiB"
    yield "zeros, xz", lzma.compress(plain + zeros, preset=0), "64 MiB"
    sparse = _header(b"S", 512) + bytes(2**20)
    yield "a sparse file's map", gzip.compress(sparse), "sparse"
    numbers = (b"10000000\n" + b"1\n" * 11_000_000)[: 20 << 20]
    said = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(512, b"\0")
    head = _header(b"x", 44) + said + _header(b"0", len(numbers))
    yield "a sparse file's map in its content", gzip.compress(head + numbers), "sparse"
    objects = b"[" + b"{}," * (4 << 20) + b"1]"
    yield "a capture of many objects", archive_bytes({"capture.json": objects}), "8 MiB"
    yield "a size below none", gzip.compress(_minus_one()), "of -1 bytes"
    # By the header of its own, and by the one of the whole archive; "%d " and its length in front.
    for kind in (b"x", b"g"):
        for digits in (b"1" + b"0" * 30, b"9" * 300, b"-1", b"x"):
            said = b" size=%s\n" % digits
            said = b"%d%s" % (len(said) + len(str(len(said) + 3)), said)
            head = _header(kind, len(said)) + said.ljust(512, b"\0") + _header(b"0", 0)
            yield (
                f"{kind!r} says {digits!r} bytes",
                gzip.compress(head),
                "not a whole tar|no tar|neither a",
            )


def _minus_one() -> bytes:
    block = bytearray(_header(b"0", 0))
    block[124:136] = b"\xff" * 12  # in base 256
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(2**20)


# Each in a process of its own, which may have 256 MiB more than it starts with.
REFUSED = """
import os, resource, sys, time
from checks.host_snapshot.capture import CaptureError, open_root
import checks.framework.archive, lzma, bz2
for path in sys.argv[1:]:
    if os.fork() == 0:
        pages = int(open("/proc/self/statm").read().split()[0])
        most = pages * resource.getpagesize() + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        began = time.process_time()
        try:
            open_root(path)
        except CaptureError as error:
            print(time.process_time() - began, " ".join(str(error).split()), flush=True)
        else:
            print(0, "taken", flush=True)
        os._exit(0)
    if os.wait()[1]:
        print(0, "ended", flush=True)
"""


@pytest.mark.slow
def test_an_archive_that_asks_for_more_than_a_host_has_is_refused_at_little_cost(
    tmp_path: Path,
) -> None:
    bombs = list(_bombs())
    paths = [tmp_path / f"{number}.tar" for number in range(len(bombs))]
    for path, (_, content, _) in zip(paths, bombs, strict=True):
        path.write_bytes(content)
    words = [sys.executable, "-c", REFUSED, *map(str, paths)]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    for answer, (name, _, says) in zip(ran.stdout.splitlines(), bombs, strict=True):
        seconds, _, message = answer.partition(" ")
        assert re.search(says, message), (name, message, ran.stderr)
        # 0.1 to 2 s of a processor where it is fast; without the bounds, minutes or all memory.
        assert float(seconds) < 30, name
