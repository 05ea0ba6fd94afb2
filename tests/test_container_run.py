"""Container runs: where the image stands, what the process gets, and what the host lends it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from preflight.command_line import read_argv
from preflight.container_run import container_settings, docker_size
from preflight.launch_source import Reading


def run(text: str, **environment: str) -> Reading:
    return read_argv(shlex.split(text), environment)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-it --rm",
        "-itd --gpus=all --name s",
        "--gpus all --ipc host --network=host",
        "--ulimit memlock=-1 --ulimit=stack=67108864",
        "-v/a:/b -v /c:/d -p 30000:30000 -w /x",
        "-eA=1 -e B=2 --env C=3 --env=D=4",
        "-dite A=1 --privileged --privileged=true",
        "--cap-add IPC_LOCK --device /dev/infiniband --cpuset-mems 0",
        "--shm-size 32g --security-opt seccomp=unconfined --read-only --init --",
    ],
)
@pytest.mark.parametrize(
    "engine", ["docker run", "podman run", "nerdctl -n k8s run", "docker container run"]
)
def test_the_image_is_found(engine: str, options: str) -> None:
    (command,) = run(f"{engine} {options} lmsysorg/sglang:latest python3 -m a --rm -e x").commands
    assert [word.text for word in command.words] == ["python3", "-m", "a", "--rm", "-e", "x"]
    settings = container_settings(command.wrappers[0])
    assert settings is not None
    assert settings.image == "lmsysorg/sglang:latest"


def test_the_environment_is_what_the_run_gives(tmp_path: Path) -> None:
    file = tmp_path / "prod.env"
    file.write_text("A=file\nB=file\nC\n")
    reading = run(
        f"docker run -e A=1 -e D -e E --env-file {file} --env-file missing i x",
        C="caller",
        D="caller",
        PATH="/bin",
    )
    environment = {name: word.text for name, word in reading.commands[0].environment.items()}
    assert environment == {"A": "1", "B": "file", "C": "caller", "D": "caller"}
    assert [note.id for note in reading.notes] == ["env-file-not-read"]


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


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("docker run i", "image-command"),
        ("docker run i --tp 8", "image-command"),
        ("docker run -it", "image-missing"),
    ],
)
def test_runs_that_do_not_show_their_program(text: str, note: str) -> None:
    reading = run(text)
    assert reading.commands == ()
    assert [found.id for found in reading.notes] == [note]


def test_settings() -> None:
    settings = container_settings(
        shlex.split(
            "docker run --ipc=host --net host --shm-size=32g --ulimit memlock=-1:-1 "
            "--ulimit stack=9 "
            "--device=/dev/infiniband/uverbs0 --device /dev/infiniband/rdma_cm --privileged "
            "--cap-add=IPC_LOCK -v /dev/hugepages:/dev/hugepages --cpuset-mems=0,1 -m 64g -u 0 "
            "--gpus all i"
        )
    )
    assert settings is not None
    assert settings._asdict() == {
        "image": "i",
        "ipc": "host",
        "network": "host",
        "shm_size_bytes": 32 * 2**30,
        "ulimits": {"memlock": ("-1", "-1"), "stack": ("9", "9")},
        "devices": ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"),
        "privileged": True,
        "cap_add": ("IPC_LOCK",),
        "mounts": ("/dev/hugepages:/dev/hugepages",),
        "cpuset_mems": "0,1",
        "memory_bytes": 64 * 2**30,
        "hugepages_bytes": {},
        "user": "0",
        "gpus": "all",
    }
    assert container_settings(["numactl", "-m", "0"]) is None
    assert container_settings(["docker", "ps"]) is None
    assert container_settings([]) is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("32g", 32 << 30),
        ("64m", 64 << 20),
        ("1.5gb", 3 << 29),
        ("128GiB", 128 << 30),
        ("7", 7),
        ("1b", 1),
        ("", None),
        ("x", None),
        ("-1", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert docker_size(text) == size
