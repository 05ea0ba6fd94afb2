"""``diff`` is the difference of what check, sizing and plan answer for each side."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from checks.framework.root import Root
from preflight.cli.main import run
from tests.builders.synthetic import build_host, gpu_host
from tests.paths import ROOT
from tests.rows import subject
from tests.valid import valid

pytestmark = pytest.mark.slow

STORE = "MC_STORE_USE_HUGEPAGE=1 MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL={protocol} "
SERVER = (
    "python3 -m sglang.launch_server --model-path {model} --tp 2 --page-size 64 "
    "--enable-hierarchical-cache --hicache-size 4 --hicache-storage-backend mooncake {more}\n"
)
LAUNCHES = {
    "heads": STORE.format(protocol="tcp") + SERVER.format(model="Qwen/Qwen3-14B", more=""),
    "latent, a draft": STORE.format(protocol="rdma")
    + SERVER.format(model="deepseek-ai/DeepSeek-V3", more="--speculative-algorithm EAGLE"),
    "sparse attention, stages": STORE.format(protocol="rdma")
    + SERVER.format(model="deepseek-ai/DeepSeek-V3.2", more="--pp-size 2"),
}
SCHEMA = json.loads((ROOT / "preflight/report/schemas/diff-v1.schema.json").read_text())
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_host(tmp_path_factory.mktemp("host") / "root", gpu_host()))


def launch(tmp_path: Path, text: str, name: str = "launch.sh") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def differs(capsys: Capture, *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = run(["diff", "--json", *words])
    found = json.loads(capsys.readouterr().out)
    valid(found, SCHEMA)
    assert found["exit_code"] == code
    return code, found["answer"]["changes"]


def test_the_releases_differ_where_the_bytes_are_not_known(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    """Of a store service whose configuration is not there: no "nothing differs"."""
    path = launch(tmp_path, "python3 -m mooncake.mooncake_store_service --config=/none.json\n")
    code, found = differs(
        capsys, "--root", host, "--from", "mooncake=0.3.8", "--to", "mooncake=0.3.9", path
    )
    (row,) = (one for one in found if one["name"] == "release")
    assert (code, row["from"], row["to"]) == (1, "0.3.8", "0.3.9")


def test_known_problems_and_defaults_come_and_go(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    path = launch(tmp_path, LAUNCHES["sparse attention, stages"])
    versions = ("--from", "sglang=0.5.10", "--to", "sglang=0.5.23")
    _, changes = differs(capsys, "--root", host, "--mooncake-version", "0.3.12", *versions, path)
    rows = {(row["section"], subject(row), row["name"]): row for row in changes}
    gone = {subject(row) for row in changes if row["section"] == "advisories" and not row["to"]}
    # Index keys that L3 does not keep, and stages that come apart.
    assert gone == {f"advisory.mp-2026-{number}" for number in ("0035", "0036", "0072", "0074")}
    layout = rows["flags", "SGLang server", "--hicache-mem-layout"]
    assert (layout["from"], layout["to"]) == ("layer_first (default)", "page_first (default)")
    assert rows["verdict", "sglang", "release"]["to"] == "0.5.23"
    code = run(["diff", "--root", host, *versions, path])
    text = capsys.readouterr().out
    assert code in (1, 2)
    assert "Known problems" in text
    assert "flags are new and" in text
    assert "rank 0-3" in text  # ranks that change alike are one line


def test_a_flag_that_the_other_release_does_not_have(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    text = LAUNCHES["heads"].replace("\n", "--hicache-host-memory-mode buffer_only\n")
    versions = ("--from", "sglang=0.5.23", "--to", "sglang=0.5.9")
    _, changes = differs(capsys, "--root", host, *versions, launch(tmp_path, text))
    rows = {row["name"]: row for row in changes if row["section"] == "flags"}
    come = {subject(row) for row in changes if row["section"] == "findings" and not row["from"]}
    assert "arguments-refused" in come
    assert rows["--hicache-host-memory-mode"]["to"] == "no such flag"
    assert any(name.endswith("(not recognized)") for name in rows)


def test_another_kernel_library_and_driver(tmp_path: Path, host: str, capsys: Capture) -> None:
    """Facts of the host in place of those that are there; checks judge them."""
    text = LAUNCHES["latent, a draft"].replace("python3", "MC_MAX_MR_SIZE=3000000 python3")
    path = launch(tmp_path, text)
    versions = ("--from", "rdma-core=62", "--to", "rdma-core=44,kernel=3.10.0")
    code, changes = differs(capsys, "--root", host, "--mooncake-version", "0.3.12", *versions, path)
    checks = {subject(row) for row in changes if row["section"] == "findings"}
    assert code in (1, 2)
    assert "rdma.fork-safe" in checks
    assert "system.kernel-old" in checks


def test_the_verdict_stands_under_its_heading_also_where_it_stays(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    words = ["--root", host, "--from", "sglang=0.5.9", launch(tmp_path, LAUNCHES["heads"])]
    assert run(["diff", *words]) == 1
    section = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert re.fullmatch("  check: verdict: (pass|warn|unknown|fail), as before", section[1])


def test_one_host_is_opened_and_read_once(
    tmp_path: Path, host: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readings of a busy machine would differ by what changed between them."""
    read: list[str] = []
    text = Root.text

    def counted(root: Root, name: str) -> object:
        read.append(name)
        return text(root, name)

    monkeypatch.setattr(Root, "text", counted)
    path = launch(tmp_path, LAUNCHES["heads"])
    assert run(["diff", "--root", host, "--to", "sglang=0.5.9", path]) == 1
    assert read.count("/proc/meminfo") == 1


def test_one_launch_in_two_files_differs_in_nothing(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    """Neither the name of a file nor its lines: a server is the second of both."""
    one = LAUNCHES["heads"].strip()
    text = f"{one} --port 1 &\n{one} --port 2 --base-gpu-id 4\n"
    old = launch(tmp_path, text)
    new = launch(tmp_path, f"# a line more\n\n{text}", "new.sh")
    code, changes = differs(capsys, "--root", host, "--against", new, old)
    assert (code, changes) == (0, [])
    new = launch(tmp_path, f"\n{text.replace('--port 2', '--port 3')}", "new.sh")
    _, changes = differs(capsys, "--root", host, "--against", new, old)
    assert [(subject(row), row["name"]) for row in changes if row["section"] == "flags"] == [
        ("SGLang server 2", "--port")
    ]
    assert not [row for row in changes if row["section"] == "memory"]


def test_two_launches_and_two_hosts(tmp_path: Path, host: str, capsys: Capture) -> None:
    old = launch(tmp_path, LAUNCHES["heads"])
    new = launch(tmp_path, LAUNCHES["heads"].replace("size 4 ", "size 5 "), "new.sh")
    known = ("--mooncake-version", "0.3.12", "--sglang-version", "0.5.23")
    _, changes = differs(capsys, "--root", host, *known, "--against", new, old)
    names = {row["name"] for row in changes if row["section"] == "flags"}
    assert names == {"--hicache-size"}
    bare = [row for row in changes if re.fullmatch(r"\d{3,}", row["to"] or "")]
    assert [row for row in bare if row["section"] in ("memory", "settings", "host")] == []
    (pages,) = (row for row in changes if row["name"] == "2 MiB pages needed, all nodes")
    assert pages["to"].endswith(" pages")
    smaller = build_host(tmp_path / "small", replace(gpu_host(), pools={2 << 20: 4096}))
    _, changes = differs(capsys, "--root", host, "--root", str(smaller), *known, old)
    assert {row["section"] for row in changes} <= {
        *("verdict", "host", "memory", "findings", "settings")
    }
    assert {row["name"] for row in changes if row["section"] == "host"} == {"huge pages"}


def test_stored_pages_that_are_not_found_again(tmp_path: Path, host: str, capsys: Capture) -> None:
    """Latent rows have other keys from 0.5.8 on (tests/real/test_sglang_keys_real.py)."""
    path = launch(tmp_path, LAUNCHES["latent, a draft"])
    versions = ("--from", "sglang=0.5.7", "--to", "sglang=0.5.8", "--mooncake-version", "0.3.8")
    _, changes = differs(capsys, "--root", host, *versions, path)
    (key,) = [row for row in changes if row["section"] == "keys" and row["name"] == "key"]
    assert key["from"].endswith("_<sha256 of a page>_k")
    assert key["to"].endswith("_<sha256 of a page>__k")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to compare with"),
        (("--to", "cuda=13"), "sglang=..,mooncake=.."),
        (("--to", "mooncake=main"), "'main' is no version of mooncake"),
        (("--to", "mooncake=0.3.9,mooncake=0.3.10"), "each once"),
        (("--root", "/", "--root", "/"), "one host, or two"),
        (("--to", "sglang=0.4.0"), "0.5.2"),
    ],
)
def test_what_is_no_question_is_refused(
    tmp_path: Path, host: str, capsys: Capture, words: tuple[str, ...], said: str
) -> None:
    assert run(["diff", "--root", host, *words, launch(tmp_path, LAUNCHES["heads"])]) == 64
    assert said in capsys.readouterr().err


def test_without_a_launch_there_is_nothing_to_compare(host: str, capsys: Capture) -> None:
    assert run(["diff", "--root", host, "--to", "mooncake=0.3.13"]) == 64
    assert "launch" in capsys.readouterr().err


def test_a_locked_answer_says_what_is_different_since(
    tmp_path: Path, host: str, capsys: Capture
) -> None:
    text = LAUNCHES["heads"].replace("\n", "--api-key hush-hush-1\n")
    path, lock = launch(tmp_path, text), str(tmp_path / "good.json")
    known = ("--root", host, "--mooncake-version", "0.3.12", "--sglang-version", "0.5.18")
    assert run(["diff", *known, "--lock", lock, path]) == 0
    assert "hush-hush-1" not in Path(lock).read_text()
    assert differs(capsys, *known, "--locked", lock, path) == (0, [])
    smaller = launch(tmp_path, text.replace("size 4 ", "size 3 "))
    _, changes = differs(capsys, *known, "--locked", lock, smaller)
    assert {row["name"] for row in changes if row["section"] == "flags"} == {"--hicache-size"}
    _, changes = differs(capsys, *known, "--to", "sglang=0.5.19", "--locked", lock, path)
    assert {row["to"] for row in changes if row["name"] == "release"} == {"0.5.19"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "x"}', None])
def test_what_is_no_locked_answer_is_refused(
    tmp_path: Path, host: str, capsys: Capture, content: str | None
) -> None:
    lock = tmp_path / "good.json"
    if content is not None:
        lock.write_text(content)
    path = launch(tmp_path, LAUNCHES["heads"])
    assert run(["diff", "--root", host, "--locked", str(lock), path]) == 64
    assert f"--locked {lock}: " in capsys.readouterr().err
    both = ("--lock", str(lock), "--locked", str(lock))
    assert run(["diff", "--root", host, *both, path]) == 64


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("mooncake_master --rpc_port=http", 2, "the launch fails here"),
        # Of a model that nobody has here nothing is known.
        (
            "python3 -m sglang.launch_server --model-path /models/own --enable-hierarchical-cache",
            3,
            "whether it runs here is not known; accept what is unknown by --ignore",
        ),
    ],
)
def test_a_lock_is_of_what_was_good(
    tmp_path: Path, host: str, capsys: Capture, text: str, status: int, why: str
) -> None:
    path, lock = launch(tmp_path, f"{text}\n"), tmp_path / "good.json"
    words = ("--root", host, "--mooncake-version", "0.3.14", "--sglang-version", "0.5.23")
    assert run(["check", *words, "--lock", str(lock), path]) == status
    assert capsys.readouterr().err == f"--lock {lock}: not written: {why}\n"
    assert not lock.exists()


WAIVED = "software.library-missing", "network.port-taken", "service.reachable"


def lock_of(tmp_path: Path, host: str, *words: str) -> tuple[str, dict[str, Any]]:
    """Return a lock of a client without its master, which waivers accept, and what it holds."""
    path, lock = launch(tmp_path, CLIENT), tmp_path / "good.json"
    ignored = [f"--ignore={id_}=known" for id_ in WAIVED]
    options = ("--root", host, "--mooncake-version", "0.3.14")
    assert run(["check", *options, *ignored, *words, "--lock", str(lock), path]) == 1
    return path, json.loads(lock.read_text())


CLIENT = (
    "MC_STORE_MEMCPY=1 mooncake_client --protocol=tcp --global_segment_size=64MB "
    "--master_server_address=127.0.0.1:50051\n"
)
VERDICT = ["verdict", "check", "verdict"]
PARTS = "section", "name", "from", "to"


def test_a_lock_keeps_what_it_was_accepted_with(tmp_path: Path, host: str, capsys: Capture) -> None:
    """Its verdict is check's; compared later, what was waived is waived again, and shown so."""
    path, lock = lock_of(tmp_path, host)
    assert [row["check"] for row in lock["waivers"]] == [*WAIVED]
    assert [*VERDICT, "warn"] in lock["lines"]
    missing = [line[3] for line in lock["lines"] if line[1] == "service.reachable"]
    assert missing == ["ignored, was unknown"] * 2
    capsys.readouterr()
    words = ("--locked", str(tmp_path / "good.json"), "--root", host, "--mooncake-version")
    assert differs(capsys, *words, "0.3.14", path) == (0, [])
    # A start that is worse is worse than what was accepted.
    Path(path).write_text(CLIENT.replace("--protocol", "--protocoll"))
    code, changes = differs(capsys, *words, "0.3.14", path)
    assert code == 2
    assert subject(changes[0]) == VERDICT[1]
    assert [changes[0][part] for part in PARTS] == ["verdict", "verdict", "warn", "fail"]


def test_a_waiver_of_a_lock_ends_on_its_day(tmp_path: Path, host: str, capsys: Capture) -> None:
    waivers = tmp_path / "waivers.toml"
    rows = [f'[[waiver]]\ncheck = "{id_}"\nreason = "r"\nuntil = 2126-01-01\n' for id_ in WAIVED]
    waivers.write_text("".join(rows))
    path, lock = launch(tmp_path, CLIENT), tmp_path / "good.json"
    words = ("--root", host, "--mooncake-version", "0.3.14")
    run(["check", *words, "--waivers", str(waivers), "--lock", str(lock), path])
    found = json.loads(lock.read_text())
    assert [row["until"] for row in found["waivers"]] == ["2126-01-01"] * len(WAIVED)
    for row in found["waivers"]:
        row["until"] = "2026-01-01"
    lock.write_text(json.dumps(found))
    capsys.readouterr()
    code, changes = differs(capsys, "--locked", str(lock), *words, path)
    assert (code, changes[0]["from"], changes[0]["to"]) == (2, "warn", "unknown")


NO_DATE = {"check": "x", "reason": "r", "until": 5}


@pytest.mark.parametrize("rows", [[], [1], [{"check": "x"}], [NO_DATE]])
def test_waivers_of_a_lock_that_are_none(
    tmp_path: Path, host: str, capsys: Capture, rows: Any
) -> None:
    path, lock = lock_of(tmp_path, host)
    lock["waivers"] = rows
    (tmp_path / "good.json").write_text(json.dumps(lock))
    capsys.readouterr()
    words = ["diff", "--locked", str(tmp_path / "good.json"), "--root", host, path]
    code, said = run(words), capsys.readouterr().err
    assert (code == 64, "no file that --lock wrote" in said) == (bool(rows), bool(rows))


def test_an_assumed_release_is_said_to_be_assumed(tmp_path: Path, capsys: Capture) -> None:
    """Nothing of Mooncake is on this host."""
    host = str(build_host(tmp_path / "bare", replace(gpu_host(), packages={})))
    path = launch(tmp_path, CLIENT)
    _, changes = differs(capsys, "--root", host, "--from", "mooncake=0.3.12", path)
    (release,) = (row for row in changes if row["name"] == "release")
    assert (release["from"], release["to"]) == (
        "0.3.12",
        "0.3.13.post1 (assumed: nothing says which)",
    )


def test_check_writes_a_lock_and_exec_compares_the_start_with_it(tmp_path: Path) -> None:
    """The same starts; what differs is said; what is worse does not start; --strict refuses all."""
    master = tmp_path / "mooncake_master"
    master.write_text("#!/bin/sh\necho started\n")
    master.chmod(0o755)
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run_(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "preflight.cli.main", *words],
            env=path,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def ask(command: str, port: str) -> tuple[int, str, str]:
        return run_(*command.split(), "--", "mooncake_master", f"--rpc_port={port}")

    # Nothing of Mooncake is installed for the interpreter of these tests. The ports are none that
    # the kernel gives to others' connections.
    good = "check --ignore software.mooncake-missing=a-script --lock good.json"
    assert ask(good, "31099")[0] in (0, 1)
    assert ask("check --lock good.json --only memory.*", "31099")[0] == 64
    code, out, said = ask("exec --locked good.json", "31099")
    assert (code, out) == (0, "started\n"), said
    assert "Flags and defaults" not in said  # of the host something may
    code, out, said = ask("exec --locked good.json", "31098")
    assert (code, out) == (0, "started\n"), said
    assert "mooncake_master: --rpc_port: 31099 -> 31098" in said
    code, out, said = ask("exec --strict --locked good.json", "31098")
    assert (code, out) == (78, "")
    assert said.endswith("not started: --strict, and it differs\n")
    code, out, said = ask("exec --locked good.json", "http")
    assert (code, out) == (78, "")
    assert "mooncake-flags-refused: command line: now fail" in said
    assert said.endswith("not started: the verdict is worse than the locked one\n")
    assert ask("exec --strict", "1")[0] == 64
    assert ask("exec --locked none.json", "31099")[0] == 64

    # As one object: the difference too, and the code that the start ends with.
    schema_of_check = json.loads(
        (ROOT / "preflight/report/schemas/check-v1.schema.json").read_text()
    )
    valid = jsonschema.Draft202012Validator(schema_of_check).validate
    port = {"section": "flags", "name": "--rpc_port", "from": "31099", "to": "31098"}
    for words, refused in (("", False), (" --strict", True)):
        code, out, said = ask(f"exec --json --locked good.json{words}", "31098")
        found = json.loads(said)
        valid(found)
        rows = [{**row, "subjects": 0} for row in found["answer"]["locked"]["changes"]]
        assert {**port, "subjects": 0} in rows
        assert (code == 78, out == "", found["exit_code"] == 78) == (refused,) * 3

    # What is no launch cannot be compared.
    shell = ("--", "sh", "-c", "echo shell")
    assert run_("exec", "--locked", "good.json", *shell)[:2] == (0, "shell\n")
    strict = ("exec", "--strict", "--locked", "good.json")
    code, out, said = run_(*strict, *shell)
    assert (code, out) == (78, "")
    assert said.endswith("--strict starts nothing that cannot be compared\n")
    code, out, said = run_(*strict, "--json", *shell)
    assert (code, out, json.loads(said)["exit_code"]) == (78, "", 78)
