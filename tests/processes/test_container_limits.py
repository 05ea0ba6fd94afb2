"""What a launch's own containers hand to its processes, from docker, Compose and Kubernetes."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.needs import ContainerLimits
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from preflight.launches.launch_files import read_source
from preflight.launches.source import Command
from preflight.processes.containers import container_limits, unknown_settings
from tests.tables import each_row

NODES = ("/dev/infiniband",)
SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B"


def _command(path: Path, text: str) -> Command:
    path.write_text(text)
    return read_source(str(path), {}).commands[0]


def _docker(tmp_path: Path, options: str) -> ContainerLimits:
    command = _command(tmp_path / "run.sh", f"docker run {options} image {SERVER}\n")
    found = container_limits(command)
    assert found is not None
    return found


RUN = "docker run {} image " + SERVER
PODMAN = f"podman run {{}} image {SERVER}"
COMPOSE = f"services:\n  x:\n    image: image\n    command: {SERVER}\n    {{}}\n"
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec:\n  containers:\n"
    f"    - name: x\n      image: image\n      command: [{', '.join(SERVER.split())}]\n      {{}}\n"
)
RULE = "-v /dev/infiniband:/dev/infiniband --device-cgroup-rule 'c {}:* rmw'"


@each_row(
    ("name", "text", "written", "nodes"),
    [
        ("run.sh", RUN, "", ()),
        ("run.sh", RUN, "--gpus all --device /dev/nvidia0 --device nvidia.com/gpu=all", ()),
        ("run.sh", RUN, "--device=/dev/infiniband", NODES),
        ("run.sh", RUN, "--device /dev/infiniband/rdma_cm", ()),
        ("run.sh", RUN, "--privileged", ("/dev",)),
        ("run.sh", RUN, RULE.format(231), NODES),
        # Of these the launch does not tell whether they are among what the container gets.
        ("run.sh", RUN, "-v /dev/infiniband:/dev/infiniband", None),
        ("run.sh", RUN, RULE.format(195), None),
        ("run.sh", RUN, "--device $NIC", None),
        ("run.sh", RUN, "--device nvidia.com/mofed=all", None),
        # NVIDIA's gives them where NVIDIA_MOFED, which the image may set, is enabled.
        ("run.sh", RUN, "--runtime nvidia", None),
        ("run.sh", RUN, "--runtime kata", None),
        ("run.sh", RUN, "$MORE", None),
        # Podman may be given devices by its own configuration.
        ("run.sh", PODMAN, "", None),
        ("run.sh", PODMAN, "--device /dev/infiniband", NODES),
        ("run.sh", PODMAN, "--privileged", ("/dev",)),
        ("Dockerfile", "FROM image\nCMD {}\n", SERVER, None),
        ("compose.yaml", COMPOSE, "", ()),
        ("compose.yaml", COMPOSE, "devices: [/dev/infiniband]", NODES),
        ("compose.yaml", COMPOSE, "privileged: true", ("/dev",)),
        (
            "compose.yaml",
            COMPOSE,
            "volumes: ['/dev:/dev']\n    device_cgroup_rules: ['c *:* rmw']",
            ("/dev",),
        ),
        ("pod.yaml", POD, "resources: {limits: {nvidia.com/gpu: 8}}", None),
        ("pod.yaml", POD, "resources: {limits: {rdma/hca_shared: 1}}", NODES),
        ("pod.yaml", POD, "securityContext: {privileged: true}", ("/dev",)),
    ],
)
def test_which_nodes_of_rdma_a_container_gets(
    tmp_path: Path, name: str, text: str, written: str, nodes: tuple[str, ...] | None
) -> None:
    found = container_limits(_command(tmp_path / name, text.format(written)))
    assert found is not None
    given = found.verbs_nodes
    assert isinstance(given, Unknown) if nodes is None else given == nodes


@pytest.mark.parametrize(
    ("options", "size", "host"),
    [
        ("", None, False),
        ("--ipc=host", None, True),
        # docker passes over --shm-size with the host's own /dev/shm.
        ("--ipc=host --shm-size=32g", None, True),
        ("-v /dev/shm:/dev/shm", None, True),
        ("--tmpfs /dev/shm:size=64m", 64 * MIB, False),
    ],
)
def test_whose_dev_shm_it_is(tmp_path: Path, options: str, size: int | None, host: bool) -> None:
    found = _docker(tmp_path, options)
    assert (found.shm_bytes, found.host_ipc) == (size, host)


def test_what_nobody_sets_is_unknown_and_never_a_default(tmp_path: Path) -> None:
    command = _command(
        tmp_path / "run.sh",
        f"docker run --ulimit memlock=$LOCK --shm-size $SHM --memory $MEM image {SERVER}\n",
    )
    found = dict(unknown_settings(command))
    assert set(found) == {"ulimit memlock", "shm size", "memory limit"}
    assert all("$" in why.reason for why in found.values())


def test_a_pod(tmp_path: Path) -> None:
    command = _command(
        tmp_path / "pod.yaml",
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: x}}
spec:
  containers:
    - name: sglang
      image: sglang
      command: [{", ".join(SERVER.split())}]
      securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
      resources:
        limits: {{memory: 64Gi, hugepages-2Mi: 28Gi, hugepages-1Gi: 2Gi}}
      volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
  volumes:
    - name: shm
      emptyDir: {{medium: Memory}}
""",
    )
    found = container_limits(command)
    assert found is not None
    assert (found.runtime, found.memory_bytes) == ("kubernetes", 64 * GIB)
    assert found.hugepages_bytes == {2 * MIB: 28 * GIB, GIB: 2 * GIB}
    assert found.capabilities == ("IPC_LOCK",)
    assert found.memlock_bytes is None  # Kubernetes has no field for it
    assert found.shm_bytes == 64 * GIB  # a memory volume without a size: the container's own


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ("", True),
        ("--network bridge", True),
        ("--network host", False),
        # It may be the host's, or one that a plugin moves devices into.
        ("--network container:other", False),
        ("--network fabric", False),
    ],
)
def test_whether_a_container_has_a_network_of_its_own(
    tmp_path: Path, options: str, own: bool
) -> None:
    assert _docker(tmp_path, options).own_network == own
