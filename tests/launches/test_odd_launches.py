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
from preflight.launches.source import Reading
from tests.paths import ROOT


def read(tmp_path: Path, name: str, text: str, **files: str) -> Reading:
    for beside, content in {name: text, **files}.items():
        path = tmp_path / beside.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return read_source(str(tmp_path / name), {})


def words(reading: Reading) -> list[str]:
    return [" ".join(word.text for word in command.words) for command in reading.commands]


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
