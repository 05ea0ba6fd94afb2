"""``fleet collect``: reports out of pods' logs, and what Kubernetes says where there is none.

``kubectl`` is a stand-in that answers as the real one does, from files: a cluster cannot be had
here.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.base.unknown import Unknown
from preflight.cli.main import run
from preflight.fleet.kubernetes.collect import pods_of
from preflight.fleet.node.report import absent, one_line
from preflight.fleet.remote.reply import report_in

pytestmark = pytest.mark.slow

Json = dict[str, Any]

# As kubectl 1.32: what it prints, on which stream, and how it ends.
KUBECTL = """\
#!/bin/sh
here={folder}
echo "$*" >> "$here/calls"
case $* in
*--context\\ broken*)
  echo 'error: context "broken" does not exist' >&2; exit 1 ;;
*" --namespace=forbidden"*)
  echo 'Error from server (Forbidden): pods is forbidden: User "u" cannot list resource "pods"' >&2
  exit 1 ;;
*" --namespace=text"*) echo 'Welcome to the cluster!'; exit 0 ;;
*get*)
  cat "$here/pods.json"
  test ! -e "$here/later.json" || mv "$here/later.json" "$here/pods.json" ;;
*logs*)
  for word in "$@"; do test ! -e "$here/log-$word" || exec cat "$here/log-$word"; done
  echo 'Error from server (NotFound): the server could not find the requested resource' >&2
  exit 1 ;;
*) echo "unknown command" >&2; exit 1 ;;
esac
"""


def report(node: str, status: str = "pass") -> str:
    codes = {"pass": 0, "fail": 2}
    found = absent(node, "memlock.limit", "too small", "8 MiB", "1 GiB")
    if status == "pass":
        counts = {**found["counts"], "unknown": 0, "pass": 1}
        passes = [["memlock.limit", "ranks", "unlimited"]]
        found |= {"findings": [], "counts": counts, "passes": passes}
    else:
        found["findings"][0]["status"] = status
    return one_line({**found, "status": status, "exit_code": codes[status], "reason": status})


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[Json] = []
        self.kubectl = folder / "kubectl"
        self.kubectl.write_text(KUBECTL.format(folder=folder))
        self.kubectl.chmod(self.kubectl.stat().st_mode | stat.S_IXUSR)

    def pod(self, name: str, node: str, state: Json, log: str | None = None, **more: Any) -> None:
        status = {"phase": "Running", "containerStatuses": [{"name": "preflight", **state}]}
        containers = [{"name": "preflight"}]
        self.pods.append(
            {
                "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"containers": containers, **({"nodeName": node} if node else {})},
                "status": {**status, **more},
            }
        )
        if log is not None:
            (self.folder / f"log-{name}").write_text(log)
        self.write()

    def write(self, name: str = "pods.json") -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": self.pods}
        (self.folder / name).write_text(json.dumps(listed))

    def collect(self, *words: str, kubectl: str = "") -> tuple[int, dict[str, Json]]:
        kept = self.folder / "reports"
        code = run(
            [
                *("fleet", "collect", "--kubectl", kubectl or str(self.kubectl), "--wait", "0"),
                *("--reports", str(kept), *words),
            ]
        )
        found = {path.stem: json.loads(path.read_text()) for path in kept.glob("*.json")}
        return code, found

    @property
    def calls(self) -> str:
        return (self.folder / "calls").read_text()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.write()
    return made


DONE: Json = {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
RUNNING: Json = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}


def waiting(reason: str, message: str = "") -> Json:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


def text_of(found: Json) -> str:
    (finding,) = found["findings"]
    return f"{finding['check']}: {finding['text']}"


def end(code: int) -> str:
    return f"\n@mooncake-preflight end {code}\n"


def test_reports_of_pods_that_are_done_or_stay(cluster: Cluster) -> None:
    """Between other lines of a log, and under the node's name in the cluster."""
    cluster.pod("a-1", "gpu1", DONE, f"motd\n{report('gpu1')}\nwarning: x\n{end(0)}")
    cluster.pod("a-2", "gpu2.example", RUNNING, f"{report('gpu2', 'fail')}{end(2)}")
    code, reports = cluster.collect("--namespace", "ml")
    assert code == 2
    assert {node: found["status"] for node, found in reports.items()} == {
        "gpu1": "pass",
        "gpu2.example": "fail",
    }
    assert reports["gpu2.example"]["node"] == "gpu2.example"
    first, *logs = sorted(cluster.calls.splitlines())
    assert first.startswith(
        "get pods --selector=app.kubernetes.io/name=mooncake-preflight --output=json"
    )
    assert {line.split()[1] for line in logs} == {"a-1", "a-2"}
    for call in (first, *logs):
        assert " --namespace=ml" in call
        assert " --request-timeout=20s" in call


TAINT = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
UNSCHEDULED = {
    "phase": "Pending",
    "containerStatuses": [],
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": TAINT,
        }
    ],
}
CRASHED = {"lastState": {"terminated": {"reason": "Error", "exitCode": 127}}}


@pytest.mark.parametrize(
    ("state", "log", "more", "said"),
    [
        ({}, None, UNSCHEDULED, f"fleet.pod: pod p: Unschedulable: {TAINT}"),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "x"'),
            None,
            {"phase": "Pending"},
            'fleet.pod: pod p: ImagePullBackOff: Back-off pulling image "x"',
        ),
        (waiting("ContainerCreating"), None, {}, "fleet.pod: pod p: ContainerCreating"),
        (
            {**waiting("CrashLoopBackOff"), **CRASHED},
            "sh: mooncake-preflight: not found\n",
            {},
            "fleet.pod: pod p: CrashLoopBackOff; before that Error: exit code 127: it printed no "
            "report; its last line: sh: mooncake-preflight: not found",
        ),
        (
            {},
            None,
            {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"},
            "fleet.pod: pod p: Evicted: low on resource: memory",
        ),
        (
            DONE,
            f"sh: 1: mooncake-preflight: not found\n{end(127)}",
            {},
            "fleet.report: the program ended with exit code 127 and no report: "
            "sh: 1: mooncake-preflight: not found",
        ),
        (DONE, report("gpu1")[:300], {}, "its report breaks off after 300 bytes"),
        (RUNNING, "", {}, "fleet.timeout: pod p runs, and had printed no report after 0 s"),
        (DONE, None, {}, "/kubectl: Error from server (NotFound)"),
    ],
)
def test_a_pod_without_a_report_is_a_finding(
    state: Json, log: str | None, more: Json, said: str, cluster: Cluster
) -> None:
    cluster.pod("p", "gpu1", state, log, **more)
    code, reports = cluster.collect()
    assert said in text_of(reports["gpu1"])
    assert reports["gpu1"]["status"] == "unknown"
    assert code == 3


def test_a_daemon_sets_pod_says_which_node_it_is_for(cluster: Cluster) -> None:
    cluster.pod("p", "", {}, None, **UNSCHEDULED)
    field = {"key": "metadata.name", "operator": "In", "values": ["gpu9"]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    cluster.pods[0]["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    cluster.write()
    assert list(cluster.collect()[1]) == ["gpu9"]


def test_of_two_pods_of_a_node_the_one_with_a_report_counts(cluster: Cluster) -> None:
    cluster.pod("p-1", "gpu1", {}, None, phase="Failed", reason="Evicted")
    cluster.pod("p-2", "gpu1", DONE, report("gpu1"))
    code, reports = cluster.collect()
    assert (code, reports["gpu1"]["status"]) == (0, "pass")


def test_the_daemon_sets_report_is_in_its_init_container(cluster: Cluster) -> None:
    cluster.pod("p", "gpu1", {}, report("gpu1"))
    (pod,) = cluster.pods
    pod["spec"] = {
        "nodeName": "gpu1",
        "initContainers": [{"name": "preflight"}],
        "containers": [{"name": "done"}],
    }
    pod["status"] = {"phase": "Running", "initContainerStatuses": [{"name": "preflight", **DONE}]}
    cluster.write()
    assert cluster.collect()[0] == 0
    assert "logs p --container=preflight" in cluster.calls


def test_nodes_that_must_be_there_and_have_no_pod(cluster: Cluster) -> None:
    cluster.pod("p", "gpu1", DONE, report("gpu1"))
    code, reports = cluster.collect("--nodes", "gpu[1-2]")
    assert "no pod ran there" in text_of(reports["gpu2"])
    assert code == 3


def test_it_waits_for_pods_that_are_not_done(cluster: Cluster) -> None:
    cluster.pod("p", "gpu1", DONE, report("gpu1"))
    cluster.write("later.json")
    cluster.pods[0]["status"]["containerStatuses"] = [
        {"name": "preflight", **waiting("ContainerCreating")}
    ]
    cluster.write()
    code, reports = cluster.collect("--wait", "60")
    assert (code, reports["gpu1"]["status"]) == (0, "pass")


@pytest.mark.parametrize(
    ("words", "kubectl", "said"),
    [
        ([], "", "no pod has app.kubernetes.io/name=mooncake-preflight"),
        (["--namespace", "forbidden"], "", "cannot list resource"),
        (["--namespace", "text"], "", "printed no JSON: Welcome to the cluster!"),
        # Whose words they are stands in front of them.
        ([], "{kubectl} --context broken", '/kubectl: error: context "broken" does not exist'),
        ([], "/no/such/kubectl", "/no/such/kubectl: No such file or directory"),
        ([], "'", "No closing quotation"),
    ],
)
def test_kubectl_that_cannot_be_asked_is_a_usage_error(
    words: list[str],
    kubectl: str,
    said: str,
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _ = cluster.collect(*words, kubectl=kubectl.format(kubectl=cluster.kubectl))
    assert code == 64
    assert said in capsys.readouterr().err


@given(before=st.binary(max_size=100), after=st.binary(max_size=100))
def test_a_report_is_found_between_whatever_bytes(before: bytes, after: bytes) -> None:
    line = report("gpu1").encode()
    assert report_in(before + line + b"\n" + after) == json.loads(line)


@given(st.integers(40, len(report("gpu1")) - 1))
def test_a_report_that_breaks_off_is_none(length: int) -> None:
    found = report_in(report("gpu1")[:length].encode())
    assert isinstance(found, Unknown)
    assert f"breaks off after {length} bytes" in found.reason


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "status", "name", "state", "containers", "x"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_list_of_pods_is_too_strange(listed: Any) -> None:
    pods_of(listed, None)
    pod = {"metadata": {"name": "p"}, "spec": listed, "status": listed}
    for container in ("c", None):
        pods_of({"items": [listed, pod]}, container)
