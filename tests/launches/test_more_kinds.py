"""Folders, what lies beside a Compose file, and what a hook starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.base.root import Root
from preflight.base.usage_error import UsageError
from preflight.inputs.written_launch import read_launch
from preflight.launches.launch_files import read_source
from preflight.launches.source import Reading
from preflight.processes.processes import understand
from preflight.reading.understood import PROGRAMS


def kind(tmp_path: Path, name: str, text: str, **environment: str) -> Reading:
    path = tmp_path / name
    path.write_text(text)
    return read_source(str(path), environment)


def words(reading: Reading) -> list[str]:
    return [" ".join(word.text for word in command.words) for command in reading.commands]


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 3
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i, command: [mooncake_client, --port, "5"]}]}
"""


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
    for name, text in {
        "some.env": 'MOONCAKE_PROTOCOL="rdma"\n',
        "run.sh": "mooncake_client --port $1\n",
    }.items():
        (tmp_path / name).write_text(text)
    found = kind(tmp_path, "compose.yaml", COMPOSE, PORT="707")
    assert words(found) == [
        "mooncake_master --config_path=/etc/mc.yaml",
        "mooncake_client --port 7",
    ]
    master, _ = found.commands
    assert master.environment["MOONCAKE_PROTOCOL"].text == "rdma"
    assert found.notes == ()
    assert {PROGRAMS[p.kind] for p in understand(found.commands, str)} == {
        "mooncake_master",
        "mooncake_client",
    }


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
    (command,) = kind(tmp_path, name, text).commands
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
        (tmp_path / name).write_text(text)
        found = read_source(str(tmp_path / name), {})
        assert [c.words[0].text for c in found.commands] == ["mooncake_master"]
        assert [(n.id, n.origin.line) for n in found.notes] == [("script-not-read", line)]
