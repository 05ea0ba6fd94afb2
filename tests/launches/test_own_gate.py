"""This program's own commands in a launch: ``exec`` is a wrapper, and the others start nothing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pytest

from checks.framework.unknown import Unknown
from preflight.cli.exec import exec_
from preflight.cli.main import run
from preflight.launches import wrappers
from preflight.launches.launch_files import read_source
from preflight.launches.shell_script import read_argv, read_script
from preflight.launches.source import Reading
from preflight.processes.processes import understand
from preflight.processes.unread import unread
from tests.builders.launched import argv, ids
from tests.paths import ROOT
from tests.tables import each_row

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 8"
GATES = (
    "mooncake-preflight exec --",
    "/opt/venv/bin/mooncake-preflight exec --fail-on unknown --skip 'rdma.*' --apply-env --",
    "python3 -u /preflight/mp.pyz exec --timeout=5 --",
    "python3 -m preflight exec --report /tmp/r.json --",
)
FOLDER = ROOT / "tests/data/launches"
REAL = sorted(path for path in FOLDER.iterdir() if path.suffix not in (".json", ".env"))
_STARTS = re.compile(
    r"(?P<list>\[\s*\"(?:python3|mooncake_client)\", )"
    r"|(?:/usr/bin/)?python3? -m \w|(?<![\w./\"])mooncake_(?:master|client) "
)


def gated(text: str, gate: str) -> str:
    """Return a launch's text with the gate in front of each program."""
    words = "".join(f'"{word}", ' for word in gate.replace("'", "").split())

    def put_in_front(match: re.Match[str]) -> str:
        if match["list"]:
            return match[0].replace('"', words + '"', 1)
        return f"{gate} {match[0]}"

    return _STARTS.sub(put_in_front, text)


def told(reading: Reading) -> list[str]:
    """Return everything that is known of each command, but for its gates."""
    return [
        repr(
            each._replace(
                wrappers=tuple(one for one in each.wrappers if not wrappers.is_gate(one)),
                environment=dict(each.environment),
                files=dict(each.files),
            )
        )
        for each in reading.commands
    ]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
@pytest.mark.parametrize("gate", GATES, ids=range(len(GATES)))
def test_a_real_launch_behind_the_gate_is_the_same_launch(
    path: Path, gate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    plain = read_source(path.name, {})
    text = gated(path.read_text(), gate)
    assert text != path.read_text() or not plain.commands
    Path(path.name).write_text(text)
    behind = read_source(path.name, {})
    assert told(behind) == told(plain)
    assert ids(behind) == ids(plain)


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the JSON answer of a command on the made host."""
    run([*words[:1], "--json", "--root", "demo:h800", *words[1:]])
    printed = capsys.readouterr().out
    return json.loads(re.sub(r'"read_unix_seconds": \d+', '"read_unix_seconds": 0', printed))


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_a_real_launch_behind_the_gate_has_the_same_answer(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    plain = [answered(capsys, command, path.name) for command in ("read", "check")]
    Path(path.name).write_text(gated(path.read_text(), GATES[1]))
    assert [answered(capsys, command, path.name) for command in ("read", "check")] == plain


@each_row("command", ["read", "check", "plan", "fit", "capacity", "topology"])
def test_every_command_takes_a_launch_behind_the_gate(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g.sh").write_text(
        f"exec mooncake-preflight exec -- {SERVER} --enable-hierarchical-cache --hicache-size 9\n"
    )
    code = run([command, "--root", "demo:h800", str(tmp_path / "g.sh")])
    assert code in range(4), capsys.readouterr().err


KINDS = {
    "launch.sh": "exec {gate} {server}\n",
    "text.sh": "bash -c 'exec {gate} {server}'\n",
    "srun.sh": "srun -N1 -n1 {gate} {server}\n",
    "docker.sh": "docker run --network host lmsysorg/sglang:v0.5.9 {gate} {server}\n",
    "two.sh": "{gate} {gate} env A=1 numactl -N 0 {server}\n",
    "compose.yaml": "services:\n  s:\n    image: lmsysorg/sglang:v0.5.9\n"
    "    entrypoint: {gate}\n    command: {server}\n",
    "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {{name: s}}\nspec:\n  containers:\n"
    "  - name: s\n    image: lmsysorg/sglang:v0.5.9\n    command: [{gate_list}]\n"
    "    args: [{server_list}]\n",
    "sglang.service": "[Service]\nExecStart={gate} {server}\n",
    "Dockerfile": "FROM lmsysorg/sglang:v0.5.9\nENTRYPOINT [{gate_list}]\nCMD [{server_list}]\n",
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("gate", [GATES[0], GATES[2], GATES[3]], ids=["name", "file", "module"])
def test_the_gate_is_read_in_every_kind_of_launch(name: str, gate: str, tmp_path: Path) -> None:
    lists = {
        f"{key}_list": ", ".join(f'"{word}"' for word in text.split())
        for key, text in (("gate", gate), ("server", SERVER))
    }
    path = tmp_path / name
    path.write_text(KINDS[name].format(gate=gate, server=SERVER, **lists))
    reading = read_source(str(path), {})
    assert [" ".join(argv(each)) for each in reading.commands] == [SERVER]


def test_the_gate_is_read_behind_two_dashes() -> None:
    words = ["mooncake-preflight", "exec", "--fail-on", "warn", "--", *SERVER.split()]
    assert [" ".join(argv(each)) for each in read_argv(words, {}).commands] == [SERVER]


def test_the_options_that_take_a_word_are_those_of_exec() -> None:
    options = [each for each in exec_.params if isinstance(each, click.Option)]
    valued = {opt[2:] for each in options if not each.is_flag for opt in each.opts}
    assert valued == set(wrappers.GATE.long.split())
    assert all(opt.startswith("--") for each in options for opt in each.opts)


@each_row(
    "script",
    [
        f"mooncake-preflight check \"$0\" && exec {SERVER}",
        f"if mooncake-preflight check x.sh; then exec {SERVER}; fi",
        f"python3 mp.pyz check -- {SERVER} && exec {SERVER}",
        f"python3 -m preflight check -- {SERVER} && exec {SERVER}",
        f"sudo mooncake-preflight apply --yes x.sh\nexec {SERVER}",
        f"mooncake-preflight measure --rehearse x.sh\nexec {SERVER}",
        f"mooncake-preflight observe x.sh &\nexec {SERVER}",
        f"mooncake-preflight plan x.sh >plan.conf\nexec {SERVER}",
    ],
)  # fmt: skip
def test_what_looks_or_sets_starts_nothing_and_hides_nothing(script: str) -> None:
    reading = read_script(script, "s", {})
    assert [" ".join(argv(each)) for each in reading.commands] == [SERVER]
    assert not ids(reading)
    assert not any(command.doubts for command in reading.commands)


@each_row(
    "line", ["{gate} || exit 1", "if ! {gate}; then exit 1; fi", "until {gate}; do sleep 5; done"]
)
def test_what_waits_for_a_check_hides_nothing(line: str, tmp_path: Path) -> None:
    path = tmp_path / "g.sh"
    path.write_text(f"{line.format(gate='mooncake-preflight check x.sh')}\nexec {SERVER}\n")
    reading = read_source(str(path), {})
    assert [" ".join(argv(each)) for each in reading.commands] == [SERVER]
    assert not any(command.doubts for command in reading.commands)
    assert not unread(reading, understand(reading.commands, Unknown))


def test_what_starts_where_the_gate_says_no_is_read_too() -> None:
    script = f"if mooncake-preflight check x.sh; then {SERVER}; else {SERVER} --page-size 64; fi"
    reading = read_script(script, "s", {})
    assert len(reading.commands) == 2
    assert "condition" in ids(reading)


@each_row("line", [f"mooncake-preflight $WHAT -- {SERVER}", f"python3 tool.pyz exec -- {SERVER}"])
def test_what_is_not_known_is_not_taken_for_the_gate(line: str) -> None:
    assert [" ".join(argv(each)) for each in read_script(line, "s", {}).commands] == [line]


def test_what_the_gate_is_told_counts_where_the_reader_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.env").write_text("MOONCAKE_MASTER=10.0.0.1:50051\nMOONCAKE_PROTOCOL=rdma\n")
    Path("b.env").write_text("MOONCAKE_PROTOCOL=tcp\n")
    server = f"{SERVER} --enable-hierarchical-cache --hicache-storage-backend mooncake"
    options = "--sglang-version=0.5.9 --env-file a.env --nic-numa-nodes 1"
    Path("g.sh").write_text(f"mooncake-preflight exec {options} -- {server}\n")
    Path("plain.sh").write_text(f"{server}\n")

    def settings(*words: str) -> tuple[Any, Any, Any]:
        answer = answered(capsys, "read", *words)["answer"]
        (process,) = answer["processes"]
        found = process["settings"]
        master, protocol = found["store.master_server_address"], found["store.protocol"]
        return master["value"], protocol["value"], process["release"]["sglang"]["version"]

    assert settings("g.sh") == ("10.0.0.1:50051", "rdma", "0.5.9")
    given = settings("--sglang-version", "0.5.10", "--env-file", "b.env", "g.sh")
    assert given == ("10.0.0.1:50051", "tcp", "0.5.10")
    typed = options.replace("=", " ").split()
    assert settings(*typed, "plain.sh") == settings("g.sh")


@each_row(
    "options",
    [
        "--sglang-version $V", "--gpu-memory 80", "--model-config no.json", "--nic-numa-nodes x",
        "--rank-numa-nodes 0,,x",
    ],
)  # fmt: skip
def test_what_the_gate_is_told_and_cannot_be_read_is_unknown(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "g.sh").write_text(f"mooncake-preflight exec {options} -- {SERVER}\n")
    answer = answered(capsys, "check", str(tmp_path / "g.sh"))
    assert answer["status"] == "unknown"
    assert options.split()[0] in json.dumps(answer)


def test_gates_that_differ_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"mooncake-preflight exec --sglang-version 0.5.{n} -- {SERVER} --port {n}000{end}"
        for n, end in ((9, " &"), (8, ""))
    ]
    (tmp_path / "g.sh").write_text("\n".join(lines))
    answer = answered(capsys, "check", str(tmp_path / "g.sh"))
    assert "0.5.9, 0.5.8" in json.dumps(answer)


def test_env_files_count_for_a_command_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.env").write_text("MOONCAKE_MASTER=10.0.0.1:50051\n")
    server = f"{SERVER} --enable-hierarchical-cache --hicache-storage-backend mooncake".split()
    Path("plain.sh").write_text(" ".join(server))
    for words in (server, ["mooncake-preflight", "exec", "--", *server], ["sh", "plain.sh"]):
        answer = answered(capsys, "read", "--env-file", "a.env", "--", *words)["answer"]
        (process,) = answer["processes"]
        assert process["settings"]["store.master_server_address"]["value"] == "10.0.0.1:50051"
    assert run(["read", "--env-file", "no.env", "--", *server]) == 64
