"""Container runs: where the image stands, what the process gets, and what the host lends it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from checks.framework.root import Root
from preflight.base.usage_error import NoLaunchError
from preflight.command_inputs.written_launch import read_launch
from preflight.launches.container import docker_size
from preflight.launches.shell_script import read_argv
from preflight.launches.source import Reading
from tests.builders.launched import argv, ids, variables
from tests.tables import each_row


def run(text: str, **environment: str) -> Reading:
    return read_argv(shlex.split(text), environment)


@each_row(
    "options",
    [
        "", "-it --rm", "-itd --gpus=all --name s", "--gpus all --ipc host --network=host",
        "--ulimit memlock=-1 --ulimit=stack=67108864", "-v/a:/b -v /c:/d -p 30000:30000 -w /x",
        "-eA=1 -e B=2 --env C=3 --env=D=4", "-dite A=1 --privileged --privileged=true",
        "--cap-add IPC_LOCK --device /dev/infiniband --cpuset-mems 0",
        "--shm-size 32g --security-opt seccomp=unconfined --read-only --init --",
    ],
)  # fmt: skip
@each_row("engine", ["docker run", "podman run", "nerdctl -n k8s run", "docker container run"])
def test_the_image_is_found(engine: str, options: str) -> None:
    (command,) = run(f"{engine} {options} lmsysorg/sglang:latest python3 -m a --rm -e x").commands
    assert argv(command) == ["python3", "-m", "a", "--rm", "-e", "x"]
    assert command.container is not None
    assert command.container.image == "lmsysorg/sglang:latest"
    assert command.container.engine == engine.split()[0]


def test_the_environment_is_what_the_run_gives(tmp_path: Path) -> None:
    file = tmp_path / "prod.env"
    file.write_text("A=file\nB=file\nC\n")
    reading = run(
        f"docker run -e A=1 -e D -e E --env-file {file} --env-file missing i x",
        C="caller",
        D="caller",
        PATH="/bin",
    )
    environment = variables(reading.commands[0])
    known = {"A": "1", "B": "file", "C": "caller", "D": "caller"}
    unknown = {name: f"${name}" for name in ("MOONCAKE_MASTER", "MOONCAKE_CONFIG_PATH")}
    assert environment == known | unknown  # which the missing file may hold
    assert ids(reading) == ["env-file-not-read"]


def test_inside_a_container() -> None:
    reading = run("sudo -E docker run --entrypoint bash i -c 'A=1 numactl -m 0 x'")
    (command,) = reading.commands
    assert command.wrappers == (
        ("sudo", "-E"),
        ("docker", "run", "--entrypoint", "bash", "i"),
        ("bash", "-c"),
        ("numactl", "-m", "0"),
    )
    assert dict(command.environment)["A"].text == "1"
    assert command.container is not None
    assert command.container.image == "i"


@pytest.mark.parametrize(
    ("text", "note", "said"),
    [
        ("docker run i", "image-command", "runs its own command, which the launch does not show"),
        ("docker run i --tp 8", "image-command", "--tp stands behind the image, so it is the prog"),
        ("docker run -it", "image-missing", "names no image"),
    ],
)
def test_runs_that_do_not_show_their_program(text: str, note: str, said: str) -> None:
    """What is said is also why there is no launch."""
    reading = run(text)
    assert (reading.commands, ids(reading)) == ((), [note])
    assert said in reading.notes[0].text
    with pytest.raises(NoLaunchError, match=said):
        read_launch(tuple(text.split()), (), {}, Root("/"))


@each_row(
    ("text", "size"),
    [
        ("32g", 32 << 30), ("64m", 64 << 20), ("1.5gb", 3 << 29), ("128GiB", 128 << 30), ("7", 7),
        ("1b", 1), ("", None),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int | None) -> None:
    assert docker_size(text, "--memory") == size
