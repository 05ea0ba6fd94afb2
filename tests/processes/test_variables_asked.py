"""A variable that nothing sets is asked for where the shell that reads it finds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from checks.framework.unknown import Inside, OpenVariable, Unknown
from preflight.cli.main import run
from preflight.command_inputs.launch_record import launch_from, launch_record
from preflight.command_inputs.written_launch import WrittenLaunch
from preflight.launches.launch_files import read_text
from preflight.launches.source import give_variables
from preflight.processes.processes import LaunchOptions, understand
from preflight.processes.unread import not_set
from tests.tables import each_row

SERVER = "python3 -m sglang.launch_server --model-path m --tp ${TP}"
HERE = "give TP=... in an --env-file or, unless --root is a capture, in front of this command"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, "
SERVICE = "services:\n  s:\n    image: lmsysorg/sglang:v0.5.9\n    command: "


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("a.sh", SERVER, HERE),
        ("a.sh", f"bash -c '{SERVER}'", HERE),
        ("a.sh", f"docker run image {SERVER}", HERE),  # this shell fills it in
        ("a.sh", f'docker run image bash -c "{SERVER}"', HERE),
        ("a.sh", f"docker run -e TP=$TP image bash -c '{SERVER}'", HERE),
        (
            "a.sh",
            f"docker run image bash -c '{SERVER}'",
            "write -e TP=... into docker run (a.sh:1)",
        ),
        (
            "a.sh",
            f"podman run image bash -c '{SERVER}'",
            "write -e TP=... into podman run (a.sh:1)",
        ),
        (
            "a.sh",
            f"docker exec c bash -c '{SERVER}'",
            "set TP=... in what docker exec (a.sh:1) runs",
        ),
        ("a.sh", f"ssh host '{SERVER}'", "set TP=... in what ssh (a.sh:1) runs"),
        ("a.sh", f'ssh host "{SERVER}"', HERE),
        ("c.yaml", f"{SERVICE}{SERVER}\n", HERE),  # Compose fills it in
        (
            "c.yaml",
            f"{SERVICE}bash -c '{SERVER.replace('$', '$$')}'\n",
            "name TP under environment of service s",
        ),
        (
            "p.yaml",
            f"{POD}command: [sh, -c, '{SERVER}']}}]}}\n",
            "name TP under env of container c",
        ),
    ],
)
def test_the_place_is_that_of_the_shell_that_reads_it(name: str, text: str, advice: str) -> None:
    reading = read_text(text, name, {})
    record = launch_record(WrittenLaunch(reading, name, Unknown), LaunchOptions(), {})
    again, _ = launch_from(json.loads(json.dumps(record)), Unknown)
    for each in (reading, again.reading):  # as a capture has it, too
        (open_one,) = not_set(understand(each.commands, Unknown))
        assert (open_one.what, open_one.advice) == ("TP", advice)


def test_all_variables_are_one_step_each_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.sh"
    second = SERVER.replace("TP", "TP2") + " --port 30001"
    path.write_text(f"{SERVER} &\ndocker run --network host i bash -c '{second}'\n")
    run(["check", "--root", "demo:h800", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert f"{HERE}; write -e TP2=... into docker run (a.sh:2)" in out
    assert out.count("-e TP2") == 1


@each_row("kind", get_args(get_type_hints(Inside)["kind"]))
def test_every_kind_of_place_has_its_sentence(kind: Any) -> None:
    assert "TP" in give_variables([OpenVariable("TP", Inside(kind, "there"))])
