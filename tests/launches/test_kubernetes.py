"""Kubernetes manifests: each container's process, its environment, and what its pod lends it."""

from __future__ import annotations

import pytest

from preflight.launches.container import ContainerSettings, Mount
from preflight.launches.kubernetes import quantity, read_kubernetes
from preflight.launches.source import Origin, Place
from preflight.processes.containers import container_limits
from tests.builders.launched import argv, ids, variables
from tests.tables import each_row

POD = """\
spec:
  hostNetwork: true
  hostIPC: true
  securityContext: {runAsUser: 1000, seccompProfile: {type: Unconfined}}
  initContainers:
    - {name: fetch, command: [fetch]}
  volumes:
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: 32Gi}}
    - {name: huge, emptyDir: {medium: HugePages-2Mi}}
    - {name: model, hostPath: {path: /models}}
  containers:
    - name: sglang
      image: lmsysorg/sglang:v1
      command: ["/bin/bash", "-c"]
      args:
        - |
          export B=2
          exec python3 -m sglang.launch_server --x $(A)-$$(A) --y $C
      env:
        - {name: A, value: "1"}
        - {name: AA, value: "$(A)/$(LATER)"}
        - {name: LATER, value: "x"}
        - {name: EMPTY}
        - name: IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - {name: HOST, value: "http://$(IP):1"}
      envFrom: [{configMapRef: {name: m}}]
      resources:
        requests: {hugepages-2Mi: 64Gi}
        limits: {hugepages-2Mi: 64Gi, memory: 128Gi, nvidia.com/gpu: 8, rdma/hca: 1}
      securityContext: {privileged: true, capabilities: {add: [IPC_LOCK]}}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
        - {name: huge, mountPath: /dev/hugepages}
        - {name: model, mountPath: /m, readOnly: true}
        - {name: secret, mountPath: /s}
    - name: master
      command: [mooncake_master]
      args: [--port=1]
    - name: bare
      args: [--x]
"""


def indent(text: str, by: int) -> str:
    return "".join(" " * by + line + "\n" for line in text.splitlines())


def test_a_pod() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n" + POD
    reading = read_kubernetes(text, "pod.yaml")
    server, master = reading.commands
    assert argv(server) == [*"python3 -m sglang.launch_server --x 1-$(A) --y $C".split()]
    assert server.wrappers == (("/bin/bash", "-c"), ("exec",))
    assert server.place == Place("pod", ("Pod/p",), "sglang")
    assert variables(server) == {
        "A": "1",
        "AA": "1/$(LATER)",
        "LATER": "x",
        "EMPTY": "",
        "IP": "$(IP)",
        "HOST": "http://$(IP):1",
        "B": "2",
        # envFrom, of which the manifest has nothing, may hold them.
        "MOONCAKE_MASTER": "$MOONCAKE_MASTER",
        "MOONCAKE_CONFIG_PATH": "$MOONCAKE_CONFIG_PATH",
    }
    assert server.environment["HOST"].unresolved == ("IP",)
    assert server.environment["A"].origin == Origin("pod.yaml", 23)
    assert argv(master) == ["mooncake_master", "--port=1"]
    assert ids(reading) == "env-from-not-read reference-unset image-command init-container".split()
    assert server.container is not None
    assert server.container == ContainerSettings(
        engine="kubernetes",
        image="lmsysorg/sglang:v1",
        ipc="host",
        network="host",
        shm_size_bytes=32 * 2**30,
        resources={"nvidia.com/gpu": "8", "rdma/hca": "1"},
        pod_resources=("nvidia.com/gpu", "rdma/hca"),
        privileged=True,
        cap_add=("IPC_LOCK",),
        security_opt=("seccomp=unconfined",),
        mounts=(
            Mount("/dev/shm", "tmpfs", size_bytes=32 * 2**30),
            Mount("/dev/hugepages", "hugepages", "2Mi"),
            Mount("/m", "bind", "/models", read_only=True),
            Mount("/s", "volume", "secret"),
        ),
        memory_bytes=128 * 2**30,
        hugepages_bytes={"2Mi": 64 * 2**30},
        user="1000",
    )
    assert master.container is not None
    assert master.container.memory_bytes is None
    assert master.container.user == "1000"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_templates(kind: str) -> None:
    above = "  template:\n" if kind != "CronJob" else "  jobTemplate:\n    spec:\n      template:\n"
    depth = 4 if kind != "CronJob" else 8
    text = f"kind: {kind}\nmetadata: {{name: p}}\nspec:\n{above}{indent(POD, depth)}"
    commands = read_kubernetes(text, "p.yaml").commands
    assert len(commands) == 2
    for command in commands:
        assert command.container is not None
        assert (command.container.ipc, command.container.user) == ("host", "1000")


@pytest.mark.parametrize(("users", "own"), [("true", False), ("false", True)])
def test_a_user_namespace_of_its_own(users: str, own: bool) -> None:
    text = f"kind: Pod\nspec: {{hostUsers: {users}, containers: [{{name: c, command: [x]}}]}}"
    (command,) = read_kubernetes(text, "p.yaml").commands
    limits = container_limits(command)
    assert limits is not None
    assert limits.own_users is own


@each_row(
    ("resources", "why"),
    [
        ("limits: {cpu: 1, hugepages-2Mi: 320G}", "is 320G, no multiple of 2Mi: write 305176Mi"),
        ("limits: {cpu: 1, hugepages-1Gi: 1.5Gi}", "is 1.5Gi, no multiple of 1Gi: write 2048Mi"),
        ("limits: {cpu: 1, hugepages-2MB: 4Mi}", "hugepages-2MB names no size of a page"),
        ("limits: {memory: 100g}", "memory is 100g, which is not a quantity: write a size as 64Gi"),
        ("limits: {memory: 4Gi}, requests: {memory: 5Gi}", "write no more than the limit"),
        ("limits: {memory: 5Gi}, requests: {memory: 4Gi}", None),
        ("limits: {gpu.x/gpu: 2}, requests: {gpu.x/gpu: 1}", "1 under requests and 2 under limits"),
        ("requests: {nvidia.com/gpu: 1}", "has a request and no limit: write it under limits"),
        ("requests: {memory: 1Gi, cpu: 500m}", None),
        (
            "limits: {memory: 9Gi, hugepages-2Mi: 2Gi}, requests: {hugepages-2Mi: 1Gi}",
            "hugepages-2Mi is 1Gi under requests and 2Gi under limits: write the same under both",
        ),
        ("limits: {memory: 9Gi, hugepages-2Mi: 2Gi}, requests: {hugepages-2Mi: 2048Mi}", None),
        ("limits: {hugepages-2Mi: 2Gi}", "write memory under limits"),
        ("limits: {hugepages-2Mi: 2Gi}, requests: {cpu: 1}", None),
        ("limits: {memory: $SIZE, cpu: '{{cpu}}', nvidia.com/gpu: <count>}", None),
    ],
)
@each_row("kind", ["Pod", "StatefulSet", "Deployment", "LeaderWorkerSet"])
def test_resources_that_the_api_server_refuses(kind: str, resources: str, why: str | None) -> None:
    pod = f"{{containers: [{{name: c, command: [x], resources: {{{resources}}}}}]}}"
    spec = {
        "Pod": pod,
        "LeaderWorkerSet": f"{{leaderWorkerTemplate: {{workerTemplate: {{spec: {pod}}}}}}}",
    }.get(kind, f"{{template: {{spec: {pod}}}}}")
    reading = read_kubernetes(f"kind: {kind}\nmetadata: {{name: p}}\nspec: {spec}", "p.yaml")
    said = [note.text for note in reading.notes if note.id == "container-refused"]
    assert len(reading.commands) == 1
    if why is None:
        assert not said
        return
    (text,) = said
    assert text.startswith("Kubernetes refuses container c: ")
    assert why in text
    assert ("LimitRange" in text) == (kind == "Pod" and "neither" in text)


@each_row(
    ("text", "size"),
    [
        ("64Gi", 64 << 30), ("1G", 10**9), ("1.5Gi", 3 << 29), ("1e3", 1000), ("500m", 1),
        ("7", 7), ("100M", 10**8), ("0.5", 1), ("", None), ("+.5Gi", 1 << 29), ("1e-3", 1),
        ("2000u", 1), ("1g", None), ("64K", None), ("64ki", None), ("-1", None), ("x", None),
    ],
)  # fmt: skip
def test_quantities(text: str, size: int | None) -> None:
    assert quantity(text) == size


def test_an_object_of_which_none_is_asked_for_is_no_process() -> None:
    text = "kind: Deployment\nmetadata: {name: p}\nspec:\n  replicas: 0\n  template:\n"
    reading = read_kubernetes(text + indent(POD, 4), "p.yaml")
    assert (reading.commands, reading.published) == ((), ())
    assert [(note.id, note.text) for note in reading.notes] == [
        ("not-started", "Deployment p is not started: the manifest asks for 0 of it")
    ]
