"""The gates of docs/examples in a real runtime: a healthy pod passes, a broken one is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.containers.container import DEFAULT_PROFILE, DOCKER_CAPABILITIES, Limits, Machine
from tests.paths import ROOT

pytestmark = pytest.mark.containers

EXAMPLES = ROOT / "docs/examples"
HEALTHY = "mooncake_master --rpc_port 50999"
BROKEN = f"{HEALTHY} --enable_gc=true --rpc_port 99999"
OWN = "mooncake-preflight"
# Of the image of the program alone, as job.Dockerfile has it; the server's runs as user 0.
OWN_USER = 65534
SIZES = {"Gi": 1 << 30, "Mi": 1 << 20}
POD = """
apiVersion: v1
kind: Pod
metadata: {name: own, labels: {mooncake-preflight: exec}}
spec:
  containers:
    - name: own
      image: own
      command: COMMAND
      securityContext: {capabilities: {add: [IPC_LOCK]}}
      volumeMounts:
        - {name: launch, mountPath: /launch}
"""


SERVER_ENVIRONMENT = {"PATH": "/opt/server/bin:/opt/programs:/usr/bin:/bin", "PYTHONPATH": ""}


def _bytes(text: str) -> int:
    return int(text[:-2]) * SIZES[text[-2:]]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The Python of a server's image: it has Mooncake, as far as one sees without running it."""
    folder = tmp_path / "server"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python3").symlink_to(Path(sys.executable).resolve())
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "lib" / version / "site-packages"
    (site / "mooncake").mkdir(parents=True)
    for name in ("engine.so", "mooncake_master"):
        shutil.copy("/bin/true", site / "mooncake" / name)
    (site / "mooncake_transfer_engine-0.3.13.post1.dist-info").mkdir()
    return folder


def run_pod(containers: Machine, pod: Any, launch: str, server: Path, place: Path) -> Iterator[int]:
    """Yield the exit code of each container of a pod, up to the first that fails."""
    volumes = {"/launch": place / "launch", "/preflight": place / "preflight"}
    for folder in volumes.values():
        folder.mkdir()
        folder.chmod(0o777)  # as an emptyDir is
    (volumes["/launch"] / "launch.sh").write_text(f"exec {launch}\n")
    spec = pod["spec"]
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        own = one["image"] == OWN
        given = one.get("resources", {}).get("limits", {})
        added = one.get("securityContext", {}).get("capabilities", {}).get("add", ())
        mounted = {mount["mountPath"] for mount in one["volumeMounts"]}
        limits = Limits(
            user=OWN_USER * own,
            capabilities=(*DOCKER_CAPABILITIES, *added),
            memlock=8 << 20,
            memory_bytes=_bytes(given["memory"]) if "memory" in given else None,
            hugetlb={"2MB": _bytes(given["hugepages-2Mi"])} if "hugepages-2Mi" in given else {},
            refused=DEFAULT_PROFILE,
            environment={} if own else SERVER_ENVIRONMENT,
            volumes={"/opt/server": server} | {k: v for k, v in volumes.items() if k in mounted},
        )
        words = [*one.get("command", [OWN] if own else ()), *one.get("args", ())]
        started = containers.start(limits, *words)
        out, errors = started.communicate(timeout=60)
        print(out, errors)
        yield started.returncode
        if started.returncode:
            return


@pytest.mark.parametrize(("launch", "codes"), [(HEALTHY, [0, 0, 0]), (BROKEN, [0, 2])])
def test_the_init_container(
    containers: Machine, server: Path, tmp_path: Path, launch: str, codes: list[int]
) -> None:
    found = list(yaml.safe_load_all((EXAMPLES / "kubernetes-init.yaml").read_text()))
    assert list(run_pod(containers, found[1], launch, server, tmp_path)) == codes


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl (kubernetes-client)")
@pytest.mark.parametrize(("launch", "codes"), [(HEALTHY, [0, 0]), (BROKEN, [0, 78])])
def test_the_component_puts_the_gate_in_front_of_ones_own_server(
    containers: Machine, server: Path, tmp_path: Path, launch: str, codes: list[int]
) -> None:
    shutil.copytree(EXAMPLES / "gate", tmp_path / "gate")
    (tmp_path / "pod.yaml").write_text(POD.replace("COMMAND", str(launch.split())))
    (tmp_path / "kustomization.yaml").write_text("components: [gate]\nresources: [pod.yaml]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, check=True)
    pod = yaml.safe_load(done.stdout)
    assert list(run_pod(containers, pod, launch, server, tmp_path)) == codes
