"""Pods of operators' kinds, patched templates, and what Kubernetes makes of variables."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from checks.framework.unknown import Unknown
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.launches import kubernetes
from preflight.launches.documents import Node, load_documents
from preflight.launches.kubernetes import read_kubernetes
from preflight.launches.kubernetes_pods import apply_patch
from preflight.launches.source import Origin, Place, Reading, SourceError, Word
from preflight.processes.ports import ports
from preflight.processes.processes import understand
from tests.builders.launched import argv, ids, programs, written

GROUP = """\
apiVersion: workloads.x-k8s.io/v1alpha2
kind: RoleBasedGroup
metadata: {name: g}
spec:
  roleTemplates:
    - name: base
      template:
        spec:
          containers:
            - name: sglang
              image: i
              env:
                - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  roles:
    - name: store
      standalonePattern:
        templateRef:
          name: base
          patch:
            spec:
              containers:
                - name: sglang
                  env:
                    - {name: MOONCAKE_LOCAL_HOSTNAME, value: $(POD_IP)}
                    - {name: MOONCAKE_MASTER, value: "m:50051"}
                  command: [python3, -m, mooncake.mooncake_store_service]
                  resources: {limits: {memory: 16Gi}}
    - name: prefill
      engineRuntimes:
        - {profileName: p, containers: [{name: sidecar, command: [x]}]}
      leaderWorkerPattern:
        size: 2
        template:
          spec:
            containers:
              - name: engine
                command: [python3, -m, sglang.launch_server]
                args: [--nnodes, $(RBG_LWP_GROUP_SIZE), --node-rank, $(RBG_LWP_WORKER_INDEX)]
        workerTemplatePatch:
          spec:
            containers:
              - {name: engine, env: [{name: ROLE, value: worker}]}
"""


def read(text: str) -> Reading:
    return read_kubernetes(text, "k.yaml")


def test_a_role_based_group() -> None:
    """Its roles come from templates by name, and from a template with a patch for each pod."""
    reading = read(GROUP)
    store, leader, worker = reading.commands
    assert [command.place for command in reading.commands] == [
        Place("pod", ("RoleBasedGroup/g", "store"), "sglang"),
        Place("pod", ("RoleBasedGroup/g", "prefill", "leader"), "engine"),
        Place("pod", ("RoleBasedGroup/g", "prefill", "worker"), "engine"),
    ]
    assert store.environment["MOONCAKE_MASTER"].text == "m:50051"
    # A patch stands in front of its template, whose variables it cannot refer to.
    address = store.environment["MOONCAKE_LOCAL_HOSTNAME"]
    assert (address.text, address.unresolved) == ("$(POD_IP)", ())
    assert store.container is not None
    assert store.container.memory_bytes == 16 * 2**30
    assert argv(leader)[3:] == ["--nnodes", "2", "--node-rank", "0"]
    assert worker.words[6].text == "1"  # of two
    assert "ROLE" in worker.environment
    assert "ROLE" not in leader.environment
    # The second: what its engineRuntimes put in.
    assert ids(reading) == ["reference-unset", "resource-not-read", "pods-together"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # PodCliqueSet of Grove, Job of Volcano, extraPodSpec of Dynamo.
        (
            "kind: PodCliqueSet\nspec: {template: {cliques: [{name: c, spec: {podSpec: "
            "{containers: [{name: n, command: [a]}]}}}]}}",
            ["a"],
        ),
        (
            "kind: Job\napiVersion: batch.volcano.sh/v1alpha1\nspec: {tasks: [{name: t, template: "
            "{spec: {containers: [{name: n, command: [b]}]}}}]}",
            ["b"],
        ),
        (
            "kind: DynamoGraphDeployment\nspec: {services: {W: {extraPodSpec: {mainContainer: "
            "{command: [c]}}}}}",
            ["c"],
        ),
        ("kind: Service\nspec: {ports: [{name: p}]}", []),
        ("kind: CustomResourceDefinition\nspec: {containers: [{command: [d]}]}", []),
    ],
)
def test_pods_of_other_kinds(text: str, words: list[str]) -> None:
    assert programs(read(text)) == words


POD = "kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n    - name: c\n      {}\n"


def test_an_init_container_that_stays_is_read() -> None:
    reading = read(
        "kind: Pod\nspec: {initContainers: [{name: store, restartPolicy: Always, command: [s]}, "
        "{name: once, command: [o]}], containers: [{name: c, command: [m]}]}"
    )
    assert programs(reading) == ["s", "m"]
    assert ids(reading) == ["init-container"]


@pytest.mark.parametrize(
    ("env", "notes"),
    [
        ("[{name: A, value: $(B)}, {name: B, value: b}]", ["reference-unset"]),
        ("[{name: A, value: $(B)}]", ["reference-unset"]),
        ("[{name: A, value: $$(B)}]", []),
        ("[{name: B, value: b}, {name: A, value: $(B)}]", []),
        ("[{name: A, value: $(STORE_SERVICE_HOST)}]", []),
    ],
)
def test_references_that_stay_as_they_are_written(env: str, notes: list[str]) -> None:
    reading = read(POD.format(f"command: [x]\n      env: {env}"))
    assert ids(reading) == notes


VALUES = ["1", "true", "yes", "0x1", "1e3", ".5", "'1'", "4gb", "2026-01-01"]


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_is_no_text_is_refused(value: str, tmp_path: Path) -> None:
    """As kubectl refuses it, where there is one to ask."""
    text = "apiVersion: v1\n" + POD.format(
        f"image: i\n      command: [x]\n      env: [{{name: A, value: {value}}}]"
    )
    refused = any(note.id == "value-not-text" for note in read(text).notes)
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl to compare with")
    path = written(tmp_path, text, "p.yaml")
    command = ["kubectl", "set", "env", "--local", "-f", str(path), "--list"]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused is (judged.returncode != 0), judged.stderr


def test_numbers_among_arguments() -> None:
    reading = read(POD.format("command: [x]\n      args: [--tp, 8]"))
    (note,) = reading.notes
    assert note.id == "value-not-text"
    assert 'write "8"' in note.text


def test_as_many_containers_as_a_group_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_MOST_CONTAINERS", 100)
    roles = ", ".join(["{name: r, p: {templateRef: {name: t}}}"] * 12)
    inner = ", ".join(["{name: c}"] * 10)
    text = (
        "kind: RoleBasedGroup\nspec: {roleTemplates: [{name: t, template: {spec: {containers: ["
        f"{inner}]}}}}}}], roles: [{roles}]}}"
    )
    with pytest.raises(SourceError, match="more than 100 containers"):
        read(text)


def node(value: Any) -> Node:
    (found,) = load_documents(json.dumps(value), "n.json")
    return found


def plain(value: Node) -> Any:
    if value.fields:
        return {key: plain(inner) for key, inner in value.fields.items()}
    return [plain(inner) for inner in value.items] if value.items else value.text


BASE = {
    "containers": [
        {"name": "s", "args": ["1"], "env": [{"name": n, "value": n} for n in "ABCD"]},
        {"name": "t", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}},
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl to compare with")
@pytest.mark.parametrize(
    "patch",
    [
        {"containers": [{"name": "s", "env": [{"name": "X", "value": "$(A)"}]}]},
        {"containers": [{"name": "s", "env": [{"name": n, "value": "9"} for n in "DXB"]}]},
        {"containers": [{"name": "u"}, {"name": "t", "resources": {"limits": {"cpu": "3"}}}]},
        {"containers": [{"name": "s", "args": None, "env": [{"name": "B", "$patch": "delete"}]}]},
        {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}}]},
    ],
)
def test_patches_are_applied_as_kubectl_applies_them(patch: dict[str, Any], tmp_path: Path) -> None:
    """Order and all, which decides what ``$(NAME)`` refers to."""
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": BASE}
    path = written(tmp_path, json.dumps(whole), "p.json")
    command = ["kubectl", "patch", "--local", "-f", str(path), "-o", "json", "-p"]
    judged = subprocess.run(
        [*command, json.dumps({"spec": patch})], capture_output=True, text=True, check=True
    )

    def bare(value: Any) -> Any:
        """Without what is empty, which both may leave in or out."""
        if isinstance(value, dict):
            return {key: bare(inner) for key, inner in value.items() if inner not in ({}, [], None)}
        return [bare(inner) for inner in value] if isinstance(value, list) else value

    ours = plain(apply_patch(node(BASE), node(patch)))
    assert bare(ours) == bare(json.loads(judged.stdout)["spec"])


MAPS = """\
kind: ConfigMap
metadata: {name: cm}
data:
  run.sh: "mooncake_client --port 7 $@"
  m.json: '{"master_server_address": "h:1", "global_segment_size": "3gb"}'
---
kind: Secret
metadata: {name: s}
data: {k: cnBjX3BvcnQ6IDcwNwo=}
---
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: a
    command: [bash, /cm/run.sh, --protocol=rdma]
    volumeMounts: [{name: c, mountPath: /cm}]
  - name: b
    command: [mooncake_master, --config_path=/etc/m/renamed.yaml]
    volumeMounts: [{name: s, mountPath: /etc/m}]
  volumes:
  - {name: c, configMap: {name: cm}}
  - {name: s, secret: {secretName: s, items: [{key: k, path: renamed.yaml}]}}
"""


def test_config_maps_and_secrets_are_files_of_the_containers_that_mount_them() -> None:
    client, master = read_kubernetes(MAPS, "m.yaml").commands
    assert argv(client)[1:] == ["--port", "7", "--protocol=rdma"]
    assert client.files["/cm/m.json"].text.startswith("{")
    assert {path: word.text for path, word in master.files.items()} == {
        "/etc/m/renamed.yaml": "rpc_port: 707\n"
    }
    (_, process) = understand((client, master), lambda name: Unknown("no file"))
    assert next(ports(process)).port == 707


DYNAMO = """\
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  envs: [{name: MC_A, value: a}]
  services:
    Frontend: {componentType: frontend, extraPodSpec: {mainContainer: {image: x}}}
    decode:
      replicas: 2
      multinode: {nodeCount: 2}
      envs: [{name: MC_B, value: b}]
      resources: {limits: {memory: 200Gi}}
      sharedMemory: {size: 80Gi}
      extraPodSpec:
        mainContainer: {image: x, command: [python3, -m, dynamo.sglang], args: [--tp, "16"]}
---
kind: DynamoGraphDeployment
metadata: {name: b}
spec:
  components:
  - {name: Frontend, type: frontend, podTemplate: {spec: {containers: [{name: main, image: x}]}}}
  - name: decode
    multinode: {nodeCount: 2}
    podTemplate: {spec: {containers: [{name: main, command: [python3, -m, dynamo.sglang]}]}}
  env: [{name: MC_C, value: c}]
"""


def test_components_of_dynamo_have_what_their_graph_says_of_them() -> None:
    reading = read_kubernetes(DYNAMO, "m.yaml")
    assert ids(reading) == ["pods-together"]
    front, worker, following, other, second, last = reading.commands
    assert [c.words[2].text for c in (front, other)] == ["dynamo.frontend", "dynamo.frontend"]
    # Its operator tells each node of a component which it is (backend_sglang.go).
    assert [c.copies for c in (worker, following, second, last)] == [2, 2, 1, 1]
    assert argv(worker)[3:] == [
        *("--tp", "16", "--dist-init-addr", "$(LWS_LEADER_ADDRESS):29500"),
        *("--nnodes", "2", "--node-rank", "0"),
    ]
    assert following.words[-1].text == "1"  # the only one beside the leader
    own = {name: word.text for name, word in worker.environment.items() if name[:3] != "LWS"}
    assert own == {"MC_A": "a", "MC_B": "b"}
    assert worker.container is not None
    assert worker.container.shm_size_bytes == 80 << 30
    assert worker.container.memory_bytes == 200 << 30
    assert second.environment["MC_C"].text == "c"


COMPONENT = """\
kind: DynamoComponentDeployment
metadata: {name: d}
spec:
  envFromSecret: s
  volumeMounts: [{name: models, mountPoint: /models}]
  resources: {limits: {memory: 9Gi, gpu: "8", custom: {rdma/hca: "1", hugepages-2Mi: 4Gi}}}
  multinode: {}
  failover: {enabled: true}
  frontendSidecar: {image: f, envs: [{name: MC_F, value: f}]}
  extraPodSpec:
    containers: [{name: side, image: s, command: [mooncake_client]}]
    mainContainer: {image: x, command: [mooncake_client], args: ["--port=$(PORT)"]}
---
kind: Secret
metadata: {name: s}
stringData: {PORT: "7"}
"""


def test_a_component_of_dynamo_as_its_operator_makes_it() -> None:
    """deploy/operator/api/v1alpha1 and internal/dynamo/graph.go of ai-dynamo/dynamo."""
    reading = read_kubernetes(COMPONENT, "m.yaml")
    main, side = reading.commands
    assert argv(main) == ["mooncake_client", "--port=7"]
    assert [command.copies for command in reading.commands] == [2, 2]
    container = main.container
    assert container is not None
    assert side.container is not None
    assert container.resources == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
    assert container.hugepages_bytes == {"2Mi": 4 << 30}
    assert container.memory_bytes == 9 << 30
    assert (container.shm_size_bytes, side.container.shm_size_bytes) == (8 << 30, None)
    assert [mount.target for mount in container.mounts] == ["/models", "/dev/shm"]
    said = [note.text for note in reading.notes if note.id == "resource-not-read"]
    which = "DynamoComponentDeployment d"
    assert said == [
        f"the standby engines of a failover in {which} are not read",
        f"the frontendSidecar of {which} is not read",
        f"how the nodes of {which} share an engine is not read: give its pods",
    ]


@pytest.mark.parametrize(
    ("said", "size_bytes"),
    [
        ("sharedMemory: {disabled: true}", None),
        ("sharedMemory: {size: 2Gi}", 2 << 30),
        ('sharedMemorySize: "0"', None),
        ("sharedMemorySize: 3Gi", 3 << 30),
        ("replicas: 1", 8 << 30),
    ],
)
def test_the_shared_memory_of_a_component(said: str, size_bytes: int | None) -> None:
    containers = "[{name: log, command: [x]}, {name: main, command: [mooncake_client]}]"
    text = f"kind: DynamoComponentDeployment\nspec:\n  {said}\n  podTemplate: "
    commands = read_kubernetes(f"{text}{{spec: {{containers: {containers}}}}}\n", "m").commands
    found = [c.container.shm_size_bytes for c in commands if c.container is not None]
    assert sorted(found, key=str) == sorted([None, size_bytes], key=str)


RAY = """\
kind: RayService
metadata: {name: r}
spec:
  serveConfigV2: "applications: []"
  rayClusterConfig: {headGroupSpec: {template: {spec: {containers: [{name: h, command: [x]}]}}}}
"""
KTHENA = """\
kind: ModelServing
metadata: {name: s}
spec:
  template:
    roles: [{name: p, entryTemplate: {spec: {containers: [{name: e, command: [x]}]}}}]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: VLLMRuntime\nmetadata: {name: v}\nspec: {}\n", ["resource-not-read"]),
        ("kind: Service\nspec: {}\n", ["kind-not-read"]),
        (RAY, ["resource-not-read"]),
        (KTHENA, ["resource-not-read"]),
    ],
)
def test_a_resource_whose_pods_an_operator_makes_is_named(text: str, said: list[str]) -> None:
    assert ids(read_kubernetes(text, "m.yaml")) == said


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("$(MODEL)", "name MODEL under the container's env"),
        ("$(LWS_GROUP_SIZE)", "run this check in the pod: its operator sets LWS_GROUP_SIZE there"),
        (
            "$(LWS_LEADER_ADDRESS) $(MODEL)",
            "name MODEL under the container's env; run this check in the pod: its operator sets "
            "LWS_LEADER_ADDRESS there",
        ),
    ],
)
def test_a_variable_of_an_operator_is_not_asked_of_the_manifest(text: str, advice: str) -> None:
    names = tuple(re.findall(r"\((\w+)\)", text))
    assert why_unresolved(Word(text, Origin("pod.yaml"), names)).advice == advice


X_OF_LWS = "run this check in the pod: its operator sets LWS_X there"


@pytest.mark.parametrize(
    ("text", "advice"), [("$(LWS_X):1", X_OF_LWS), ("$(hostname)$(LWS_X)", ""), ("$(x LWS_X)", "")]
)
def test_a_shell_in_a_pod_does_not_run_what_its_operator_sets(text: str, advice: str) -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, "
    pod += f'image: i, command: [sh, -c, "mooncake_client --host={text}"]}}]}}\n'
    (command,) = read(pod).commands
    assert why_unresolved(command.words[1]).advice == advice


STORM = """\
kind: StormService
metadata: {name: s}
spec:
  template:
    spec:
      roles:
        - name: prefill
          podGroupSize: 2
          template: {spec: {containers: [{name: c, command: [sh, -c, "%s"]}]}}
"""


def test_what_aibrix_sets_in_a_pod_is_not_asked_of_the_manifest() -> None:
    """aibrix pkg/controller: roleset/utils.go and podset_controller.go add them to each one."""
    server = "python3 -m sglang.launch_server --dist-init-addr $PODSET_NAME-0.$STORM_SERVICE_NAME"
    (command,) = read(STORM % f"{server} --node-rank $POD_GROUP_INDEX --port $PORT").commands
    advice = [why_unresolved(word).advice for word in command.words if word.unresolved]
    assert advice == [
        "run this check in the pod: its operator sets PODSET_NAME, STORM_SERVICE_NAME there",
        "run this check in the pod: its operator sets POD_GROUP_INDEX there",
        "name PORT under env of container c",
    ]
