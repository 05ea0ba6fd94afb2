"""``plan`` and ``apply`` as users and scripts meet them: standard output, exit codes, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml

from preflight.base.command_frame import run_command
from preflight.cli.main import run as run_all
from preflight.cli.plan import apply, plan
from preflight.cli.sizing import run as run_sizing
from preflight.host_tuning.dialects import FORMATS
from tests.builders.synthetic import build_host, plain_host

Out = pytest.CaptureFixture[str]

SCRIPT = """\
export MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL=tcp MC_STORE_USE_HUGEPAGE=1
export MOONCAKE_GLOBAL_SEGMENT_SIZE={segment}
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B \\
  --enable-hierarchical-cache --hicache-size 1 --hicache-storage-backend mooncake
"""

Run = Callable[..., int]
SEGMENT = "67108864"
PAGES = ("sysctl", "sysfs", "cmdline", "k8s")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> str:
    files = {"/proc/sys/vm/max_map_count": "65530"}
    return str(build_host(tmp_path_factory.mktemp("host"), replace(plain_host(), files=files)))


@pytest.fixture
def launch(tmp_path: Path) -> str:
    return script(tmp_path, SEGMENT)


def script(folder: Path, segment: str) -> str:
    place = folder / "run.sh"
    place.write_text(SCRIPT.format(segment=segment))
    return str(place)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("SEGMENT", "NOBODY", "MC_STORE_USE_HUGEPAGE"):
        monkeypatch.delenv(name, raising=False)
    group = click.Group("mooncake-preflight", commands={"plan": plan, "apply": apply})

    def refuse(code: int, message: str) -> int:
        return code

    return lambda *words: run_command(group, "mooncake-preflight", words, refuse)


def test_the_exit_code_tells_of_changes_where_it_is_asked_to(
    run: Run, host: str, launch: str, tmp_path: Path, capsys: Out
) -> None:
    assert run("plan", "--root", host, "--exit-code", launch) == 1
    capsys.readouterr()
    # More than are wanted stay.
    for mappings, wanted, code in (
        *(("65530", "262144", 1), ("262144", "262144", 0)),
        ("1048576", "1048576", 0),
    ):
        files = {"/proc/sys/vm/max_map_count": mappings}
        ready = replace(plain_host(), pools={2 << 20: 600}, files=files)
        root = str(build_host(tmp_path / mappings, ready))
        # Without a launch the host alone is planned for.
        assert run("plan", "--root", root, "--format", "sysctl", "--exit-code") == code
        assert f"vm.max_map_count = {wanted}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*PAGES, "text", "json"])
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (SEGMENT, "$SEGMENT", "SEGMENT is not set"),
        # Without the size that was meant the default's counts, which is most of the memory.
        ("--hicache-size 1", "--hicache-size 1gb", "invalid int value: '1gb'"),
    ],
)
def test_no_page_is_taken_for_sizes_that_are_not_known_or_refused(
    name: str, right: str, wrong: str, said: str, run: Run, host: str, launch: str, capsys: Out
) -> None:
    """Refused whole; what is for people shows the gap and says so in its exit code."""
    place = Path(launch)
    place.write_text(place.read_text().replace(right, wrong))
    assert run("plan", "--root", host, "--format", name, launch) == 3
    out, err = capsys.readouterr()
    assert (out == "") is (name in PAGES)
    assert said in (err if name in PAGES else out)
    assert ("correct the launch first" in err) is (name in PAGES and right != SEGMENT)


@pytest.mark.parametrize("name", FORMATS)
def test_pages_that_the_host_cannot_give_are_printed_by_nobody(
    name: str, run: Run, host: str, tmp_path: Path, capsys: Out
) -> None:
    """As apply refuses them; what is about the container alone is whole."""
    too_much = script(tmp_path, str(1 << 50))
    takes_pages = bool(FORMATS[name].takes_pages)
    refused = takes_pages or name in ("text", "json")
    assert run("plan", "--root", host, "--format", name, too_much) == (2 if refused else 0)
    out, err = capsys.readouterr()
    if takes_pages:
        assert out == ""
        assert "mooncake-preflight fit, of the same launch, says what fits" in err
    if name == "text":
        assert "cannot be had now: mooncake-preflight fit" in out
        assert "vm.nr_hugepages" not in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "--format", "yaml"), "is not one of 'text', 'sysctl'"),
        (("plan", "--format", "docker"), "is about a launch"),
        (("plan", "--root", "/nowhere"), "no such file or folder"),
        (("apply", "--root", "/nowhere"), "apply changes this machine alone"),
        (("apply", "--force"), "which --persist writes"),
        (("apply", "--undo", "run.sh"), "give it alone"),
        (("apply", "--undo", "--persist"), "give it alone"),
    ],
)
def test_usage_errors(words: tuple[str, ...], said: str, run: Run, capsys: Out) -> None:
    assert run(*words) == 64
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True)


@pytest.mark.slow
def test_a_dry_run_of_apply_does_nothing_here(run: Run, launch: str, capsys: Out) -> None:
    """On this machine, whatever it has."""
    files = [Path("/proc/sys/vm/max_map_count"), Path("/proc/sys/vm/nr_hugepages")]
    before = [file.read_text() for file in files if file.exists()]
    assert run("apply", "--dry-run", launch) in (0, 2, 3)
    out, err = capsys.readouterr()
    assert "nothing was changed" in out + err or "nothing to change" in out
    assert [file.read_text() for file in files if file.exists()] == before


@pytest.mark.parametrize("form", ["sysctl", "cmdline"])
@pytest.mark.parametrize(
    ("words", "size", "check", "step"),
    [
        (
            *("Qwen3-32B --tp 8 --page-size 64", "--hicache-size 240 "),
            *("sglang.admission-gate", "lower --hicache-size"),
        ),
        ("Qwen3-32B --tp 16 --page-size 64", "--hicache-size 30 ", "gpu.count", "GPU"),
    ],
)
def test_no_page_is_taken_for_a_launch_that_ends_whatever_pages_there_are(
    run: Run, tmp_path: Path, capsys: Out, words: str, size: str, check: str, step: str, form: str
) -> None:
    """Neither now nor at the next boot; and check and sizing print no command for them either."""
    place = tmp_path / "run.sh"
    script = SCRIPT.format(segment="320gb").replace("Qwen3-8B", words)
    place.write_text(script.replace("--hicache-size 1 ", size))
    assert run("plan", "--root", "demo:h800", "--format", form, str(place)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "correct the launch first: " in err
    assert check in err
    assert run_all(["check", "--root", "demo:h800", str(place)]) == 2
    out = capsys.readouterr().out
    assert "nr_hugepages" not in out
    (line,) = (line for line in out.splitlines() if f". {check}" in line)
    assert step in line
    assert "huge pages" not in line
    assert run_sizing(["--root", "demo:h800", "--", str(place)]) == 2
    out = capsys.readouterr().out
    assert "Set: nothing yet: correct the launch first" in out
    assert "sudo" not in out


def test_no_larger_shared_memory_for_more_than_memory_holds(tmp_path: Path, capsys: Out) -> None:
    """vLLM's pool of 8,000 GiB lies in /dev/shm: neither a mount nor --shm-size makes it fit."""
    extra = '{"cpu_bytes_to_use": 8589934592000}'
    config = (
        '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", '
        f'"kv_connector_extra_config": {extra}}}'
    )
    place = tmp_path / "run.sh"
    place.write_text(f"vllm serve Qwen/Qwen3-32B -tp 8 --kv-transfer-config '{config}'\n")
    assert run_all(["check", "--root", "demo:h800", str(place)]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert "remount" not in out
    assert "shm.space: correct memory.host first: have " in out
    assert "memory.host: lower what vllm keeps there, or free memory" in out
    for form in ("docker", "compose", "json"):
        run_all(["plan", "--root", "demo:h800", "--format", form, str(place)])
        out, err = capsys.readouterr()
        assert "17179869184000" not in out
        assert "/dev/shm is left out: correct memory.host first" in out + err


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
  - name: engine
    image: i
    command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B, --tp-size, "2",
      --enable-hierarchical-cache, --hicache-size, "1", --hicache-storage-backend, mooncake]
    env:
    - {{name: MOONCAKE_MASTER, value: "m:50051"}}
    - {{name: MOONCAKE_PROTOCOL, value: rdma}}
    securityContext: {{capabilities: {{add: [SYS_PTRACE]}}}}
    resources: {{limits: {{{limits}}}}}
"""
OWN_NAMES = '"amd.com/gpu": "2", "rdma/rdma_shared_device_a": "1"'


@pytest.mark.parametrize(
    ("limits", "asked"), [("", {"nvidia.com/gpu": "2", "rdma/hca": "1"}), (OWN_NAMES, {})]
)
def test_a_pod_that_has_a_resource_is_not_asked_to_have_it_under_another_name_too(
    limits: str, asked: dict[str, str], run: Run, tmp_path: Path, capsys: Out
) -> None:
    """Kubernetes counts each name for itself: no node has both, and the pod stays Pending."""
    place = tmp_path / "pod.yaml"
    place.write_text(MANIFEST.format(limits=limits))
    assert run("plan", "--root", "demo:h800", "--format", "k8s", str(place)) == 0
    (container,) = yaml.safe_load(capsys.readouterr().out)["spec"]["containers"]
    found = container["resources"]["limits"]
    assert {name: count for name, count in found.items() if "/" in name} == asked
    # A strategic merge replaces the whole list: without its own names the pod would lose them.
    added = container["securityContext"]["capabilities"]["add"]
    assert {"IPC_LOCK", "SYS_PTRACE"} <= set(added)
    assert len(added) == len(set(added))
