"""``fleet manifest``: objects that Kubernetes takes, that ask for no rights, and hold no secret."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight.cli.main import run
from preflight.fleet.kubernetes.manifest import LABEL_NAME
from preflight.fleet.remote.reply import report_in
from preflight.fleet.remote.sent_launch import Sent, sent_launch
from preflight.inputs.host_source import launch_of, open_host
from preflight.inputs.launch_words import ALL_CHECKS, LaunchWords
from preflight.launches.kubernetes import read_kubernetes
from tests.builders.synthetic import build_host, gpu_host
from tests.fleet.conftest import LAUNCH
from tests.fleet.kubernetes_schema import VERSIONS, problems
from tests.paths import ROOT
from tests.valid import valid

EXAMPLES = sorted((ROOT / "docs/examples").rglob("*kubernetes*.yaml"))
NODE_SCHEMA = ROOT / "preflight/schemas/node-v1.schema.json"
ENTRYPOINT = ROOT / "docs/examples/kubernetes-entrypoint.yaml"

Json = dict[str, Any]


def manifest(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[Json], str, str]:
    code = run(["fleet", "manifest", "--image", "registry.example/sglang:1", *words])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return list(yaml.safe_load_all(printed.out)), printed.out, printed.err


def pod_of(objects: list[Json]) -> Json:
    spec: Json = objects[-1]["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def launch(tmp_path: Path) -> str:
    path = tmp_path / "launch.sh"
    path.write_text(LAUNCH)
    return str(path)


WAYS = [
    ["--nodes", "4"],
    ["--nodes", "gpu[01-03]", "--namespace", "ml", "--service-account", "there"],
    ["--kind", "daemonset"],
    ["--kind", "daemonset", "--nodes", "gpu[01-03]", "--node-selector", "pool=gpu"],
    [
        *["--nodes", "2", "--host-network", "--host-ipc", "--gpus", "8", "--memory", "64Gi"],
        *["--rdma-resource", "rdma/hca=8", "--hugepages", "2Mi=64Gi", "--capability", "IPC_LOCK"],
        *["--toleration", "a", "--toleration", "b=c:NoSchedule", "--runtime-class", "nvidia"],
        *["--image-pull-secret", "pull", "--name", "check-2"],
    ],
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("words", WAYS, ids=range(len(WAYS)))
@pytest.mark.parametrize("source", ["script", "manifest"])
def test_kubernetes_takes_every_object(
    words: list[str],
    version: str,
    source: str,
    launch: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By its own schema, with every field known."""
    objects, _, _ = manifest(capsys, *words, launch if source == "script" else str(ENTRYPOINT))
    assert {found["kind"] for found in objects} >= {"ConfigMap"}
    for found in objects:
        assert problems(found, version) == []


@pytest.mark.parametrize("kind", ["job", "daemonset"])
def test_no_right_is_asked_for(kind: str, launch: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a role, nor a token, nor anything of the node's file system."""
    nodes = ["--nodes", "2"] if kind == "job" else []
    objects, _, _ = manifest(capsys, "--kind", kind, *nodes, launch)
    assert [found["kind"] for found in objects[:-1]] == ["ServiceAccount", "ConfigMap"]
    assert objects[0]["automountServiceAccountToken"] is False
    pod = pod_of(objects)
    assert pod["automountServiceAccountToken"] is False
    assert "hostNetwork" not in pod
    assert all("hostPath" not in volume for volume in pod["volumes"])
    for container in pod.get("initContainers", []) + pod["containers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False}
        # A limit would be taken for one of the launch's own.
        assert "limits" not in container["resources"]


def test_each_pod_of_a_job_has_a_node_of_its_own(
    launch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects, _, _ = manifest(capsys, "--nodes", "gpu[01-03]", launch)
    spec = objects[-1]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    affinity = pod_of(objects)["affinity"]
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    (apart,) = affinity["podAntiAffinity"][key]
    assert apart["labelSelector"]["matchLabels"].items() <= (
        spec["template"]["metadata"]["labels"].items()
    )
    (term,) = affinity["nodeAffinity"][key]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["gpu01", "gpu02", "gpu03"]


def test_the_pod_is_given_what_the_launchs_own_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Read back as a launch, both containers are lent the same."""
    _, text, notes = manifest(capsys, "--nodes", "1", str(ENTRYPOINT))
    (own,) = read_kubernetes(ENTRYPOINT.read_text(), "own", {}).commands
    commands = read_kubernetes(text, "ours", {}).commands
    ours = next(command.container for command in commands)
    assert own.container is not None
    assert ours is not None
    for field in ("ipc", "network", "resources", "cap_add", "memory_bytes", "hugepages_bytes"):
        assert getattr(ours, field) == getattr(own.container, field), field
    assert ours.shm_size_bytes == own.container.shm_size_bytes
    assert "pod-security.kubernetes.io/enforce=privileged" in notes


def test_beside_a_server_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    objects, _, notes = manifest(capsys, "--nodes", "1", "--no-claim", str(ENTRYPOINT))
    assert set(pod_of(objects)["containers"][0]["resources"]["requests"]) == {"cpu", "memory"}
    assert "asks for no device" in notes


def test_folders_of_the_node_are_read_only_and_never_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = yaml.safe_load(ENTRYPOINT.read_text())
    (container,) = pod["spec"]["containers"]
    for name, path in (("models", "/srv/models"), ("zone", "/etc/zone.conf")):
        container["volumeMounts"].append({"name": name, "mountPath": f"/mnt/{name}"})
        pod["spec"]["volumes"].append({"name": name, "hostPath": {"path": path}})
    place = tmp_path / "pod.yaml"
    place.write_text(yaml.safe_dump(pod))
    objects, _, notes = manifest(capsys, "--nodes", "1", str(place))
    volumes = [volume for volume in pod_of(objects)["volumes"] if "hostPath" in volume]
    assert [volume["hostPath"] for volume in volumes] == [
        {"path": "/srv/models", "type": "Directory"}
    ]
    mounts = pod_of(objects)["containers"][0]["volumeMounts"]
    (mount,) = [mount for mount in mounts if mount["name"] == volumes[0]["name"]]
    assert mount == {"name": mount["name"], "mountPath": "/mnt/models", "readOnly": True}
    assert "/etc/zone.conf is not mounted at /mnt/zone" in notes


@pytest.mark.slow
def test_what_a_pod_prints_is_what_collect_reads(
    launch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The init container of the DaemonSet, run here as the kubelet would, and its log."""
    tool = f"{sys.executable} -m preflight.cli.main"
    words = ["--kind", "daemonset", "--remote-command", tool, launch]
    objects, _, _ = manifest(capsys, *words)
    (container,) = pod_of(objects)["initContainers"]
    for name, text in objects[1]["data"].items():
        (tmp_path / name).write_text(text)
    arguments = [word.replace("$(NODE_NAME)", "gpu7") for word in container["args"]]
    done = subprocess.run(
        [*container["command"], *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        cwd=tmp_path,
    )
    # Whatever the verdict on this machine, the pod has done its work.
    assert done.returncode == 0, done.stdout
    report = report_in(done.stdout)
    assert isinstance(report, dict)
    valid(report, json.loads(NODE_SCHEMA.read_text()))
    assert report["node"] == "gpu7"
    assert report["launch"]["source"] == "launch.sh"
    assert report["launch"]["segment_bytes"] == 64 << 30
    assert done.stdout.endswith(f"\n@mooncake-preflight end {report['exit_code']}\n".encode())


SECRETS = """\
# old: export HF_TOKEN=hf_aaaabbbbccccddddeeee
export HF_TOKEN="s3cret-1" ; export AWS_SECRET_ACCESS_KEY='s3cret-2'
MOONCAKE_REDIS=redis://user:s3cret-3@10.0.0.1/0
python3 -m sglang.launch_server --api-key s3cret-4 --admin-api-key=s3cret-5 \\
  --tokenizer-path /models/a --max-total-tokens 100000 --auth $TOKEN \\
  --hicache-storage-backend-extra-config '{"password": "s3cret-6", "master": "10.0.0.1:1"}'
curl -H "Authorization: Bearer s3cret-7" http://x
"""
OBJECTS = """\
apiVersion: v1
kind: Secret
metadata: {name: s}
data: {a: s3cret-8}
---
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: sglang
    command: [python3, -m, sglang.launch_server, --api-key, s3cret-9]
    env:
    - name: HF_TOKEN
      value: s3cret-10
    - {name: REDIS_PASSWORD, value: "s3cret-11"}
    - {value: s3cret-12, name: API_KEY}
    - name: OTHER_TOKEN
      valueFrom: {secretKeyRef: {name: s, key: a}}
    - {name: PLAIN, value: "64gb"}
"""


OPEN = """\
source ./env.sh
secret-tool hunter2 # made by jane
export MOONCAKE_LOCAL_HOSTNAME=$(hostname) MC_GID_INDEX=$GID PASSED=over
export MOONCAKE_MASTER=$(hostname -I | cut -d' ' -f1):50051
python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp $(nvidia-smi -L | wc -l) \\
  --enable-hierarchical-cache --hicache-size 32 --hicache-storage-backend mooncake \\
  --port ${PORT:-30000} "$@"
"""
LAUNCHES = [
    *(path for path in EXAMPLES if path.stem in ("kubernetes-entrypoint", "kubernetes-init")),
    *sorted(
        path for end in ("sh", "yaml") for path in (ROOT / "tests/data/launches").glob(f"*.{end}")
    ),
]


def _reported(
    sent: Sent,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Json:
    """What fleet node prints of what is sent, where it is all there is."""
    folder.mkdir()
    for name, content in sent.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    place = sent.words.index("--") if "--" in sent.words else len(sent.words)
    capsys.readouterr()
    monkeypatch.chdir(folder)
    run([*sent.words[:place], "--root=demo:h800", "--name=n", *sent.words[place:]])
    report: Json = json.loads(capsys.readouterr().out.replace(f"{folder}/", ""))
    del report["made_unix_seconds"]
    return report


@pytest.mark.slow
@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_the_record_gives_the_report_of_the_text(
    path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the sentence of why a file is not there, and of notices, which quote the text."""
    words = LaunchWords((str(path),))
    of_text = _reported(sent_launch(words, 10, ALL_CHECKS), tmp_path / "text", capsys, monkeypatch)
    recorded = sent_launch(words, 10, ALL_CHECKS, as_record=True)
    of_record = _reported(recorded, tmp_path / "record", capsys, monkeypatch)
    gone = r"(\[\w+\]: )(No such file or directory|not beside the launch)"
    for report in (of_text, of_record):
        for finding in report["findings"]:
            if finding["check"] in ("launch.misread", "launch.not-read"):
                del finding["text"]
    assert json.loads(re.sub(gone, r"\1", json.dumps(of_record))) == (
        json.loads(re.sub(gone, r"\1", json.dumps(of_text)))
    )


def test_what_a_record_leaves_open_is_the_nodes_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not this machine's: neither its variables nor its name go along."""
    (tmp_path / "launch.sh").write_text(OPEN)
    (tmp_path / "env.sh").write_text("export MOONCAKE_GLOBAL_SEGMENT_SIZE=4gb\n")
    monkeypatch.setenv("GID", "7")
    monkeypatch.setenv("MC_MTU", "1024")
    words = LaunchWords((str(tmp_path / "launch.sh"),))
    sent = sent_launch(words, 10, ALL_CHECKS, as_record=True)
    (record,) = (content.decode() for content in sent.files.values())
    for here in (os.uname().nodename, "hunter2", "jane", "PASSED", "MC_MTU", str(tmp_path)):
        assert here not in record
    (place,) = sent.files
    (tmp_path / place).write_bytes(sent.files[place])
    monkeypatch.setenv("GID", "3")
    tree = build_host(tmp_path / "node", gpu_host())
    (tree / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (tree / "proc/sys/kernel/hostname").write_text("gpu7\n")
    found = launch_of(LaunchWords(record=str(tmp_path / place)), open_host(str(tree)))
    assert found is not None
    (command,) = found[0].reading.commands
    on_node = {name: word.text for name, word in command.environment.items()}
    assert on_node["MC_GID_INDEX"] == "3"
    assert on_node["MC_MTU"] == "1024"
    assert on_node["MOONCAKE_LOCAL_HOSTNAME"] == "gpu7"
    assert on_node["MOONCAKE_GLOBAL_SEGMENT_SIZE"] == "4gb"
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("$(...)",)
    assert [word.text for word in command.words][-3:] == ["--port", "30000", "$@"]


ENGINES = {
    "lmcache": (
        "export MYPASS=hunter2 LMCACHE_CONFIG_FILE=lm.yaml\n"
        "secret-tool hunter2\n"
        "vllm serve Qwen/Qwen3-14B -tp 8 --nope hunter2 "
        """--kv-transfer-config '{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}'\n"""
    ),
    "vllm": "vllm serve --config v.yaml\n",
    "lmcache-server": (
        "lmcache server --l1-size-gb 60 --eviction-policy LRU --l2-adapter '{"
        """"type": "mooncake_store", "local_hostname": "a", "metadata_server": "P2PHANDSHAKE", """
        """"protocol": "rdma", "master_server_addr": "10.0.0.1:50051"}'\n"""
    ),
    "others": (
        "trtllm-serve Qwen/Qwen3-14B --tp_size 4 --extra_llm_api_options t.yaml\n"
        "python3 -m dynamo.sglang --model-path Qwen/Qwen3-14B --enable-hierarchical-cache\n"
        "python3 train.py --hf-checkpoint Qwen/Qwen3-14B --sglang-enable-hierarchical-cache "
        "--sglang-hicache-size 30\n"
        "python3 -m sglang_router.launch_router --worker-urls http://$H:$((P + 1)) http://:9\n"
    ),
}
BESIDE_ENGINES = {
    "lm.yaml": (
        "# hunter2\nmax_local_cpu_size: 60\nlocal_cpu_use_hugepages: true\nmine: hunter2\n"
        "extra_config:\n  first_rank_max_local_cpu_size: 90\n  api_key: hunter2\n"
    ),
    "v.yaml": "model: Qwen/Qwen3-14B\ntensor-parallel-size: 4\ncpu-offload-gb: 4\npw: hunter2\n",
    "t.yaml": "kv_cache_config:\n  host_cache_size: 100000000000\n  mine: hunter2\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_of_engines_too_goes_along_what_was_understood(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With their files; nothing of it is the launch's text."""
    place = tmp_path / "launch.sh"
    place.write_text(ENGINES[name])
    for file, text in BESIDE_ENGINES.items():
        (tmp_path / file).write_text(text)
    words = LaunchWords((str(place),))
    recorded = sent_launch(words, 10, ALL_CHECKS, as_record=True)
    assert b"hunter2" not in b"".join(recorded.files.values())
    of_record = _reported(recorded, tmp_path / "record", capsys, monkeypatch)
    of_text = _reported(sent_launch(words, 10, ALL_CHECKS), tmp_path / "text", capsys, monkeypatch)
    for report in (of_record, of_text):
        for finding in report["findings"]:
            # An address that nothing sets is named without its words.
            finding["text"] = finding["text"].replace("$H:$((P + 1))", "(removed)")
        report["launch"].pop("services")
    assert of_record == of_text


def test_a_record_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused in a sentence, whatever it is."""
    place = tmp_path / "launch.json"
    for text in ("", "{", "[]", "{}", '{"reading": {"Reading": {"x": 1}}}', "[" * 100_000):
        place.write_text(text)
        assert run(["fleet", "node", "--launch-record", str(place)]) == 64
        assert "launch-record" in capsys.readouterr().err
    assert run(["fleet", "node", "--launch-record", str(place), str(ENTRYPOINT)]) == 64
    assert run(["fleet", "node", "--launch-record", "/dev/zero"]) == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --nodes 8"),
        (["--nodes", "0"], "give --nodes 8"),
        (["--kind", "daemonset", "--nodes", "3"], "runs on every node"),
        (["--nodes", "2", "--namespace", "A_B"], "write small letters"),
        (["--nodes", "2", "--toleration", "a:Never"], "'Never' is none of NoSchedule"),
        (["--nodes", "2", "--node-selector", "pool"], "write name=value"),
        (["--nodes", "2", "--hugepages", "3Mi=1Gi"], "'3Mi' is none of"),
        (["--nodes", "2", "--memory", "many"], "no quantity"),
        (["--nodes", "2", "--rdma-resource", "hca"], "write rdma/hca"),
        (["--nodes", "2", "--remote-command", "'"], "No closing quotation"),
    ],
)
def test_mistakes(
    words: list[str], said: str, launch: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "manifest", "--image", "i", *words, launch]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_as_kubernetes_has_it(path: Path, version: str) -> None:
    for found in yaml.safe_load_all(path.read_text()):
        assert problems(found, version) == []


def test_a_misspelt_field_is_a_problem() -> None:
    """Of the schema that the other tests hold objects against."""
    pod = yaml.safe_load(ENTRYPOINT.read_text())
    assert problems(pod, "1.37") == []
    pod["spec"]["containers"][0]["resource"] = {}
    (problem,) = problems(pod, "1.37")
    assert "'resource' was unexpected" in problem
    del pod["spec"]["containers"][0]["resource"], pod["spec"]["containers"][0]["name"]
    assert len(problems(pod, "1.25")) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl (kubernetes-client)")
@pytest.mark.parametrize("words", WAYS[:4], ids=range(4))
def test_kubectl_reads_it_as_it_was_meant(
    words: list[str], launch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launch in the ConfigMap comes out to the byte."""
    objects, text, _ = manifest(capsys, "--keep-launch", *words, launch)
    place = tmp_path / "manifest.yaml"
    place.write_text(text)
    command = ["kubectl", "patch", "--local", "--type=merge", "--patch={}", "-o=json"]
    for found in objects:
        place.write_text(yaml.safe_dump(found))
        done = subprocess.run(
            [*command, f"--filename={place}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["metadata"]["labels"][LABEL_NAME]
    assert objects[-2]["data"]["launch.sh"] == LAUNCH
