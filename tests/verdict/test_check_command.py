"""``mooncake-preflight check`` as users and scripts meet it: verdicts, codes, every way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from checks.framework.finding import Evidence, Finding, Kind, Setting, Status
from preflight.cli.main import run
from tests.builders.check_fakes import installed
from tests.builders.hosts import Host
from tests.paths import ROOT
from tests.tables import each_row
from tests.valid import valid

Patch = pytest.MonkeyPatch

Out = pytest.CaptureFixture[str]

SCHEMA = json.loads((ROOT / "preflight/report/schemas/check-v1.schema.json").read_text())
LAUNCH = (
    "MOONCAKE_MASTER=127.0.0.1:1 python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B "
    "--enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake"
).split()

FAIL, UNKNOWN, WARN, PASS, SKIP = Status
MENDING = Setting(Kind.SYSCTL, "vm.max_map_count", "262144", "65530")


def found(*statuses: Status) -> list[Finding]:
    return [
        Finding(f"test.{status.value}", status, f"thing {number}", "1 B", "2 B", text="so it is")
        for number, status in enumerate(statuses)
    ]


def answer(capsys: Out, *arguments: str) -> dict[str, Any]:
    """The JSON object of a run in this process, valid by the schema."""
    code = run(["check", "--json", *arguments])
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    valid(parsed, SCHEMA)
    assert parsed["exit_code"] == code
    return parsed


def text(capsys: Out, *arguments: str) -> str:
    run(["check", *arguments])
    return capsys.readouterr().out


ENTRY = ("-m", "preflight.cli.main")


def process(
    arguments: Sequence[str | bytes], program: tuple[str, ...] = ENTRY, **more: Any
) -> subprocess.CompletedProcess[Any]:
    """The real command, in a process of its own."""
    usual = {"capture_output": True, "text": True, "cwd": ROOT, "check": False}
    done = subprocess.run([sys.executable, *program, *arguments], **{**usual, **more})
    assert "Traceback" not in str(done.stderr)
    return done


# Verdicts ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statuses", "verdict", "code"),
    [
        ([PASS], "pass", 0),
        ([PASS, WARN], "warn", 1),
        ([PASS, FAIL], "fail", 2),
        ([PASS, UNKNOWN], "unknown", 3),
        ([UNKNOWN, WARN, FAIL], "fail", 2),
        # A killed or empty run is no pass: gcm's killswitch, LBNL's missing configuration.
        ([SKIP], "unknown", 3),
    ],
)
def test_the_verdict_is_the_worst_and_nothing_judged_is_unknown(
    statuses: list[Status], verdict: str, code: int, monkeypatch: Patch, capsys: Out
) -> None:
    installed(monkeypatch, found(*statuses))
    parsed = answer(capsys)
    assert (parsed["status"], parsed["exit_code"]) == (verdict, code)
    shown = [Status(finding["status"]) for finding in parsed["findings"]]
    assert shown == sorted(statuses, key=list(Status).index)
    assert text(capsys).startswith(verdict.upper())


def test_a_module_that_cannot_be_imported_does_not_vanish(monkeypatch: Patch, capsys: Out) -> None:
    """As rapids doctor's plugins do, which then pass."""
    installed(monkeypatch, found(PASS))
    modules = ("checks_of_a_test", "checks.no_such_checks")
    monkeypatch.setattr("checks.run_checks.runner.CHECK_MODULES", modules)
    parsed = answer(capsys)
    assert parsed["exit_code"] == 3
    (row,) = (f for f in parsed["findings"] if f["status"] == "unknown")
    assert row["check"] == "no_such.not-loaded".replace("_", "-")
    assert "No module named 'checks.no_such_checks'" in row["text"]


def test_a_launch_on_a_dead_mount_is_unknown_and_the_host_is_still_judged(
    tmp_path: Path, monkeypatch: Patch, capsys: Out
) -> None:
    release = threading.Event()

    def hangs(*_: object) -> None:
        release.wait()

    installed(monkeypatch, found(PASS))
    monkeypatch.setattr("preflight.command_inputs.host_source.size_and_needs", hangs)
    try:
        parsed = answer(capsys, "--timeout", "0.2", "--only", "test.pass", "launch.sh")
    finally:
        release.set()
    assert parsed["exit_code"] == 3
    assert [f["check"] for f in parsed["findings"]] == ["launch.sizes", "test.pass"]
    assert "not read in 0.2 s" in parsed["findings"][0]["text"]


# Selection -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing.*"], "--only nothing.*: no check has such an id"),
        (["--skip", "test.fial"], "did you mean test.fail?"),
        (["--ignore", "test.fial=known"], "did you mean test.fail?"),
        (["--only", "test.fail", "--skip", "test.*"], "leave nothing to check"),
        (["--root", "/no/such"], "no such file or folder"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "long"], "'long' is not a valid number"),
        (["--no-such"], "--no-such"),
        (["no-such-launch.sh"], "does not exist"),
        (["--env-file", "a.env"], "is about a launch"),
        (["--gpu-memory", "80gb"], "--gpu-memory is about a launch"),
        (["--fail-on", "warn"], "--fail-on is for"),
        (["--format", "junit"], "both take standard output"),
        (["--format", "k8s", "--output", "x", "--format", "npd"], "each have an exit code"),
        (["--format", "html", "--output", "/no/such/folder/x"], "No such file or directory"),
    ],
)
def test_usage_errors(arguments: list[str], says: str, monkeypatch: Patch, capsys: Out) -> None:
    """A typing error is never a verdict."""
    installed(monkeypatch, found(FAIL))
    assert run(["check", "--json", *arguments]) == 64
    printed = capsys.readouterr()
    parsed = json.loads(printed.out)
    valid(parsed, SCHEMA)
    assert (parsed["status"], parsed["exit_code"]) == ("error", 64)
    assert says in parsed["reason"]
    assert says in printed.err


# Ways out ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "code"),
    [("text", 64), ("nagios", 3), ("npd", 3), ("slurm-prolog", 0), ("k8s", 64)],
)
def test_usage_error_by_protocol(protocol: str, code: int, monkeypatch: Patch, capsys: Out) -> None:
    """Slurm drains the node for anything but 0: a typing error must not drain a cluster."""
    installed(monkeypatch, found(UNKNOWN))
    assert run(["check", f"--format={protocol}", "--no-such"]) == code
    capsys.readouterr()
    assert (
        run(["check", "--format", protocol, "--output", "/dev/null", "--json", "--no-such"]) == code
    )
    parsed = json.loads(capsys.readouterr().out)
    valid(parsed, SCHEMA)
    # A verdict's object names the protocol too, and has its exit code.
    judged = answer(capsys, "--format", protocol, "--output", "/dev/null")
    assert judged["status"] == "unknown"
    for each in (parsed, judged):
        assert each["answer"]["exit_protocol"] == protocol.replace("text", "native")


@pytest.mark.slow
def test_a_reader_that_goes_away_changes_no_verdict(tmp_path: Path) -> None:
    Host().write(tmp_path)
    whole = process(["check", "--root", str(tmp_path)])
    reader, writer = os.pipe()
    os.close(reader)
    ways: dict[str, Any] = {"stdout": writer, "stderr": subprocess.PIPE}
    done = process(["check", "--root", str(tmp_path)], capture_output=False, **ways)
    os.close(writer)
    assert (done.returncode, done.stderr) == (whole.returncode, "")
    assert whole.returncode in (1, 2, 3)


@pytest.mark.slow
def test_bytes_that_are_no_text_are_an_error_and_no_traceback() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = process(["check", b"\xff\xfe", "--json"], text=False, env=environment)
    assert done.returncode == 64
    valid(json.loads(done.stdout), SCHEMA)


def test_junit_is_whole_on_errors_too(tmp_path: Path, monkeypatch: Patch, capsys: Out) -> None:
    installed(monkeypatch, found(FAIL, UNKNOWN, WARN, PASS, SKIP))
    path = tmp_path / "out.xml"
    words = ["check", "--format", "junit", "--output", str(path)]
    assert run(words) == 2
    assert capsys.readouterr().out == ""
    assert run([*words, "--format", "text"]) == 2
    assert capsys.readouterr().out.startswith("FAIL")
    suites = ElementTree.parse(path).getroot()
    assert suites.attrib["tests"] == "5"
    assert run([*words, "--only", "nothing"]) == 64
    assert len(ElementTree.parse(path).getroot().findall(".//error")) == 1
    assert os.listdir(tmp_path) == ["out.xml"]
    capsys.readouterr()
    assert run(["check", "--format", "junit", "--output", "-"]) == 2
    assert ElementTree.fromstring(capsys.readouterr().out).attrib["failures"] == "1"


# What it prints ------------------------------------------------------------------------------


def test_a_finding_says_what_was_seen_why_and_the_remedy(monkeypatch: Patch, capsys: Out) -> None:
    finding = Finding(
        "test.maps",
        FAIL,
        "rank 0",
        "65530 mappings",
        "262144 mappings",
        "8 NICs x 32768",
        "it runs out of mappings",
        (Evidence("/proc/sys/vm/max_map_count", "65530"),),
        "raise it",
        (MENDING,),
    )
    findings = [finding, finding._replace(subject="rank 1")]
    installed(monkeypatch, findings)
    page = text(capsys).splitlines()
    assert "fail     test.maps: rank 0-1: have 65530 mappings, need 262144 mappings" in page
    todo = page[page.index("To do:") :]
    assert todo[1:3] == [
        " 1. test.maps (as root): raise it",
        "      sudo sysctl -w vm.max_map_count=262144",
    ]
    shown = text(capsys, "-v")
    assert "fail: test.maps, rank 0-1: have 65530 mappings, need 262144 mappings" in shown
    for line in (
        "    it runs out of mappings: will not start",
        "    need: 8 NICs x 32768",
        "    seen: /proc/sys/vm/max_map_count: 65530",
        "    to do: raise it",
        "      sudo sysctl -w vm.max_map_count=262144",
    ):
        assert line in shown
    parsed = answer(capsys)
    assert parsed["answer"]["counts"]["fail"] == 2
    (row,) = parsed["findings"]
    assert [one["name"] for one in row["subjects"]] == ["rank 0", "rank 1"]
    assert row["settings"] == [
        {"kind": "sysctl", "name": "vm.max_map_count", "wanted": "262144", "now": "65530"}
    ]
    assert row["actions"][0]["text"] == "sudo sysctl -w vm.max_map_count=262144"


@pytest.mark.slow
def test_what_no_host_can_map_and_what_nothing_uses(monkeypatch: Patch, capsys: Out) -> None:
    monkeypatch.delenv("MC_STORE_USE_HUGEPAGE", raising=False)
    words = ["env", "MC_MMAP_ARENA_POOL_SIZE=1gb", "mooncake_client", "--protocol=tcp"]
    words += ["--global_segment_size=1MB", "--metadata_server=P2PHANDSHAKE"]
    assert run(["check", "--root", "demo:h800", "--only", "launch.*", "--json", "--", *words]) == 2
    found = {row["check"]: row for row in json.loads(capsys.readouterr().out)["findings"]}
    assert found["launch.cannot-map"]["status"] == "fail"
    assert "at least 16 MiB" in found["launch.cannot-map"]["text"]
    assert found["launch.unused"]["status"] == "warn"
    assert "arena is never created" in found["launch.unused"]["text"]


# On this machine -----------------------------------------------------------------------------


@pytest.mark.slow
def test_this_machine_is_checked_without_and_with_a_launch() -> None:
    """Whatever it is: the answer is valid, and says more with a launch than without."""
    sizes = []
    for words in ([], ["--", *LAUNCH]):
        done = process(["check", "--json", *words])
        parsed = json.loads(done.stdout)
        valid(parsed, SCHEMA)
        assert parsed["exit_code"] == done.returncode
        assert not any("defect of this check" in f["text"] for f in parsed["findings"])
        counts = parsed["answer"]["counts"]
        sizes.append(sum(counts[name] for name in ("fail", "unknown", "warn", "pass")))
    assert sizes[0] < sizes[1]


AUDIT = """
import sys
from preflight.cli.main import run
seen = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        mode, flags = arguments[1], arguments[2]
        if flags & 3 and not arguments[0].startswith("/dev/"):
            seen.append(f"write {arguments[0]}")
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        if isinstance(arguments[1][0], str):
            seen.append(f"connect {arguments[1][0]}")
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        seen.append(event)
sys.dont_write_bytecode = True
sys.addaudithook(hook)
code = run(sys.argv[1:])
print(seen, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "allowed"), [([], set()), (["--", *LAUNCH], {"connect 127.0.0.1"})]
)
def test_nothing_is_written_started_or_contacted_but_what_the_launch_names(
    words: list[str], allowed: set[str]
) -> None:
    done = process(["check", "-q", *words], ("-c", AUDIT), check=True)
    seen = done.stderr.strip().splitlines()[-1]
    assert set(json.loads(seen.replace("'", '"'))) <= allowed


HEAVY = "tabulate psutil pynvml importlib.metadata dataclasses subprocess tarfile yaml".split()


@pytest.mark.slow
def test_a_check_without_a_launch_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    Host().write(tmp_path)
    program = (
        "import sys; from preflight.cli.main import run; "
        f"run(['check', '--json', '--root', {str(tmp_path)!r}]); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = process((), ("-c", program), check=True)
    assert done.stderr.strip() == "[]"


# explain -------------------------------------------------------------------------------------


def test_every_listed_id_can_be_explained(capsys: Out) -> None:
    assert run(["explain", "--json"]) == 0
    ids = [row["check"] for row in json.loads(capsys.readouterr().out)["answer"]["checks"]]
    assert len(ids) == len(set(ids)) > 60
    for id_ in ids:
        assert run(["explain", id_]) == 0
        assert capsys.readouterr().out.startswith(f"{id_}\n\n")


def test_no_subcommand_shows_the_help_and_is_an_error(capsys: Out) -> None:
    assert run([]) == 64
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Usage: mooncake-preflight")


def test_the_version_is_that_of_the_package() -> None:
    from preflight.base.program import program_version

    assert f'version = "{program_version()}"' in (ROOT / "pyproject.toml").read_text()


@each_row(
    ("words", "again"),
    [
        (["launch.sh"], "plan --root demo:h800 launch.sh"),
        (["--", "bash", "launch.sh", "8"], "plan --root demo:h800 -- bash launch.sh 8"),
        (["--sglang-version", "0.5.9", "launch.sh"],
         "plan --root demo:h800 --sglang-version 0.5.9 launch.sh"),
        (["--nic-numa-nodes", "0", "launch.sh"], "plan --root demo:h800, of the same launch"),
    ],
)  # fmt: skip
def test_the_command_for_every_setting_is_of_the_same_launch(
    words: list[str],
    again: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = "MC_STORE_USE_HUGEPAGE=1 MOONCAKE_PROTOCOL=rdma MOONCAKE_GLOBAL_SEGMENT_SIZE=64gb"
    monkeypatch.chdir(tmp_path)
    Path("launch.sh").write_text(f"{settings} {' '.join(LAUNCH)} --tp 8\n")
    run(["check", "--root", "demo:h800", *words])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Every setting: mooncake-preflight {again} More:" in said
    if ", of" not in again:
        assert run(again.split()) != 64, capsys.readouterr().err
