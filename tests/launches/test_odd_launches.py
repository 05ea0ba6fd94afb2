"""Launches that stand a little apart from the usual: words, folders, hooks, files beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.framework.root import Root
from preflight.base.usage_error import UsageError
from preflight.command_inputs.written_launch import read_launch
from preflight.launches.launch_files import read_source
from preflight.launches.shell_script import read_argv
from preflight.launches.source import Origin, Reading
from tests.builders.launched import argv, ids, programs, variables
from tests.paths import ROOT


def read(tmp_path: Path, name: str, text: str, **files: str) -> Reading:
    for beside, content in {name: text, **files}.items():
        path = tmp_path / beside.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return read_source(str(tmp_path / name), {})


def words(reading: Reading) -> list[str]:
    return [" ".join(word.text for word in command.words) for command in reading.commands]


@pytest.mark.parametrize(
    "line",
    ["docker run --entrypoint '' vllm/vllm-openai x y", "docker run --entrypoint= redis x y"],
)
def test_an_empty_entrypoint_clears_the_images_own(line: str, tmp_path: Path) -> None:
    assert words(read(tmp_path, "a.sh", line)) == ["x y"]
    service = "services: {s: {image: vllm/vllm-openai, entrypoint: %s, command: x y}}"
    for empty in ("[]", "''"):
        assert words(read(tmp_path, "c.yaml", service % empty)) == ["x y"]
    assert words(read(tmp_path, "c.yaml", service % "null")) == ["vllm serve x y"]


BASE = "services: {m: {image: i, command: mooncake_master --port 1, environment: {A: '1'}}}\n"


def test_a_folder_of_compose_with_an_env_file_and_with_an_override(tmp_path: Path) -> None:
    text = BASE.replace("--port 1", "--port $PORT")
    (tmp_path / "compose.yaml").write_text(text)
    (tmp_path / "own.env").write_text("PORT=7\n")
    given = (str(tmp_path),), (str(tmp_path / "own.env"),)
    assert words(read_launch(*given, {}, Root("/")).reading) == ["mooncake_master --port 7"]
    (tmp_path / "compose.override.yml").write_text("services: {m: {command: x}}\n")
    with pytest.raises(UsageError, match=f"docker compose config prints in {tmp_path}"):
        read_launch(*given, {}, Root("/"))


PIECES = [
    "\n", " ", "\t", "; \n", "# x\n", "[", '"', "a", "a=", "\\\n", "[program:x]\n", "FROM a\n",
]  # fmt: skip


@pytest.mark.slow
def test_no_text_takes_a_reader_longer_than_it_is_long() -> None:
    """A pattern that tries each way through blank lines held check for ever, its time limit too."""
    code = (
        "import sys\n"
        "from preflight.launches.launch_files import read_text\n"
        "from preflight.launches.source import SourceError\n"
        "for name in ('x.conf', 'x.service', 'Dockerfile', 'x.sh', 'x.yaml'):\n"
        f"    for piece in {PIECES!r}:\n"
        "        try:\n"
        "            read_text(piece * (4000 // len(piece)) + 'x', name, {})\n"
        "        except SourceError:\n"
        "            pass\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_words_behind_dashes_are_read_as_a_file_is() -> None:
    assert words(read_argv(["docker", "run", "i", "scripts/start.sh"], {})) == ["scripts/start.sh"]


def test_words_stay_as_they_are() -> None:
    (command,) = read_argv(["python3", "-m", "a", "$X y", ""], {"PATH": "/bin"}).commands
    assert argv(command) == ["python3", "-m", "a", "$X y", ""]
    assert {word.origin for word in command.words} == {Origin("command line")}
    assert not any(word.unresolved for word in command.words)
    assert command.environment["PATH"].origin == Origin("environment")


def test_assignments_in_front() -> None:
    (command,) = read_argv(["A=1 2", "B=", "x"], {"A": "0"}).commands
    assert variables(command) == {"A": "1 2", "B": ""}


def test_nothing_to_start() -> None:
    for given in ([], [""], ["cd", "/"], ["sudo"], ["A=1"], ["numactl", "-m"], ["bash", "-c"]):
        assert programs(read_argv(given, {})) in ([], ["bash"])
    assert ids(read_argv(["--tp", "8"], {})) == ["not-a-program"]


def test_a_folder_says_what_it_is_and_what_renders_it(tmp_path: Path) -> None:
    place = tmp_path / "k"
    place.mkdir()
    (place / "kustomization.yaml").write_text("resources: [d.yaml]\n")
    with pytest.raises(UsageError, match=f"give what kubectl kustomize {place} prints"):
        read_launch((str(place),), (), {}, Root("/"))
    chart = tmp_path / "chart"
    chart.mkdir()
    with pytest.raises(UsageError, match=r"a folder without compose\.yaml"):
        read_launch((str(chart),), (), {}, Root("/"))
    (chart / "Chart.yaml").write_text("name: c\n")
    with pytest.raises(UsageError, match=f"helm template {chart} prints"):
        read_launch((str(chart),), (), {}, Root("/"))
    (chart / "compose.yaml").write_text("services: {m: {image: i, command: mooncake_master}}\n")
    (master,) = read_launch((str(chart),), (), {}, Root("/")).reading.commands
    assert master.words[0].text == "mooncake_master"


COMPOSE = """\
services:
  s:
    image: i
    command: mooncake_master --config_path=/etc/mc.yaml
    env_file: [{path: ./none.env, required: false}, ./some.env]
  r:
    image: i
    volumes: ["./run.sh:/run.sh"]
    command: bash /run.sh 7
"""


def test_what_compose_takes_from_other_files(tmp_path: Path) -> None:
    files = {"some.env": 'MOONCAKE_PROTOCOL="rdma"\n', "run.sh": "mooncake_client --port $1\n"}
    found = read(tmp_path, "compose.yaml", COMPOSE, **files)
    assert words(found) == [
        "mooncake_master --config_path=/etc/mc.yaml",
        "mooncake_client --port 7",
    ]
    master, _ = found.commands
    assert master.environment["MOONCAKE_PROTOCOL"].text == "rdma"
    assert found.notes == ()


_SERVER = "python3 -m sglang.launch_server --model-path m"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"docker run --env-file missing.env lmsysorg/sglang:v0.5.9 {_SERVER}\n"),
        (
            "compose.yaml",
            "services:\n  a:\n    image: lmsysorg/sglang:v0.5.9\n    env_file: missing.env\n"
            f"    command: {_SERVER}\n",
        ),
        ("a.service", f"[Service]\nEnvironmentFile=/no/such.env\nExecStart=/usr/bin/{_SERVER}\n"),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n"
            f"    image: lmsysorg/sglang:v0.5.9\n    command: [bash, -c, '{_SERVER}']\n"
            "    envFrom: [{secretRef: {name: elsewhere}}]\n",
        ),
    ],
)
def test_what_a_file_that_is_not_here_may_set_is_unknown(
    name: str, text: str, tmp_path: Path
) -> None:
    """An env file with the master's address is often a secret: a server may well have one."""
    (command,) = read(tmp_path, name, text).commands
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("MOONCAKE_MASTER",)


def test_what_a_hook_starts_beside_the_program_is_named(tmp_path: Path) -> None:
    """A client of 1.5 TB in a postStart was neither shown nor named."""
    client = "mooncake_client --global_segment_size=1500GB"
    pod = (
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n"
        "    command: [mooncake_master]\n"
        f"    lifecycle: {{postStart: {{exec: {{command: [bash, -c, '{client} &']}}}}}}\n"
    )
    service = (
        "services:\n  c:\n    image: i\n    command: mooncake_master\n"
        f"    post_start: [{{command: {client}}}]\n"
    )
    for name, text, line in (("pod.yaml", pod, 8), ("compose.yaml", service, 5)):
        found = read(tmp_path, name, text)
        assert words(found) == ["mooncake_master"]
        assert [(n.id, n.origin.line) for n in found.notes] == [("script-not-read", line)]
