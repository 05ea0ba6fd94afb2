"""Launches that stand a little apart from the usual, of every kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.base.root import Root
from preflight.base.usage_error import UsageError
from preflight.inputs.written_launch import read_launch
from preflight.launches.container import image_words
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.launch_files import read_source
from preflight.launches.shell_script import read_argv
from preflight.launches.source import Reading
from tests.paths import ROOT
from tests.tables import each_row


def read(tmp_path: Path, name: str, text: str, **files: str) -> Reading:
    for beside, content in {name: text, **files}.items():
        path = tmp_path / beside.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return read_source(str(tmp_path / name), {})


def words(reading: Reading) -> list[str]:
    return [" ".join(word.text for word in command.words) for command in reading.commands]


def ids(reading: Reading) -> list[str]:
    return [note.id for note in reading.notes]


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


@each_row(
    ("texts", "front", "kept", "hidden"),
    [
        (["scripts/start.sh", "--a"], (), 2, False), (["tools/serve.py"], (), 1, False),
        (["bin/serve"], (), 1, False), (["Qwen/Qwen3-8B", "--a"], (), 2, True),
        (["--model", "m"], (), 0, True), ([], (), 0, True), (["bash", "-c", "x"], (), 3, False),
    ],
)  # fmt: skip
def test_what_an_unknown_image_is_given(
    texts: list[str], front: tuple[str, ...], kept: int, hidden: bool
) -> None:
    assert image_words("mine:1", texts, False) == (front, kept, hidden)


def test_the_items_of_a_config_map_are_mounted_by_their_keys() -> None:
    text = """\
kind: ConfigMap
metadata: {name: c}
data: {a: "1", b: "2"}
---
kind: Pod
spec:
  volumes: [{name: v, configMap: {name: c, items: [{key: a, path: sub/own}]}}]
  containers: [{name: m, image: i, command: [x], volumeMounts: [{name: v, mountPath: /etc/m}]}]
"""
    (command,) = read_kubernetes(text, "m.yaml", {}).commands
    assert {path: word.text for path, word in command.files.items()} == {"/etc/m/sub/own": "1"}


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
