"""Nothing passes over a program, an image or a cache that no reader knows, and each is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.launches.launch_files import read_text
from preflight.processes.processes import understand
from preflight.processes.unread import unread
from tests.builders.launched import written
from tests.command_inputs.reading.unread_launches import HICACHE, LAUNCHES, SERVER, UnreadLaunch

Out = pytest.CaptureFixture[str]

pytestmark = pytest.mark.slow


def judged(launch: Path, capsys: Out) -> tuple[int, list[str]]:
    """Return check's exit code, and what it says is not read."""
    only = ("--only", "launch.not-read", "--only", "gpu.count")  # one that passes
    code = run(["check", "--json", *only, "--root", "demo:h800", str(launch)])
    found = json.loads(capsys.readouterr().out)["findings"]
    return code, [
        " ".join((*(subject["name"] for subject in each["subjects"]), each["text"]))
        for each in found
        if each["check"] == "launch.not-read"
    ]


@pytest.mark.parametrize("launch", LAUNCHES, ids=[each.name for each in LAUNCHES])
def test_what_is_not_read_is_named_and_does_not_pass(
    launch: UnreadLaunch, tmp_path: Path, capsys: Out
) -> None:
    (tmp_path / launch.file).write_text(launch.text)
    code, said = judged(tmp_path / launch.file, capsys)
    assert code in (2, 3)
    assert any(launch.named in each for each in said), said


@pytest.mark.parametrize(
    ("server", "loader"),
    [(SERVER, "--enable-lmcache"), ("vllm serve Qwen/Qwen3-8B", "a kv_connector LMCache..")],
)
def test_what_would_load_a_cache_is_named_with_the_variables_to_remove(
    server: str, loader: str
) -> None:
    """Each variable, where it stands, and the way of this engine alone."""
    text = f"export LMCACHE_CHUNK_SIZE=256 LMCACHE_LOCAL_CPU=1\n{server}\n"
    reading = read_text(text, "run.sh", {})
    found = unread(reading, understand(reading.commands, lambda _: ""))
    (advice,) = (one.advice for one in found if one.what.startswith("LMCACHE_"))
    assert advice.startswith("remove LMCACHE_CHUNK_SIZE, LMCACHE_LOCAL_CPU from run.sh:1")
    assert advice.endswith(f"({loader} would)")


# What stands beside servers in many launches, and holds little.
BESIDE = (
    "docker run -d nginx:1.27",
    "docker run -d prom/prometheus --config.file=/etc/prometheus.yml",
    "podman run -d docker.io/grafana/grafana-oss",
    "docker run -d nvcr.io/nvidia/k8s/dcgm-exporter:4.1",
    "docker run -d otel/opentelemetry-collector-contrib:0.110.0",
    "docker run -d registry:2",
    "docker run -d gcr.io/cadvisor/cadvisor",
    "docker run -d cr.fluentbit.io/fluent/fluent-bit:3.1 -c /etc/fluent-bit.conf",
    "docker run -d grafana/promtail:3.0.0",
    "docker run -d quay.io/oauth2-proxy/oauth2-proxy:v7.6.0 --http-address=0.0.0.0:4180",
    "docker run -d prom/alertmanager",
    "docker run -d aibrix/runtime:v0.4.0 aibrix_runtime --port 8080",
    "docker run --rm curlimages/curl -s http://localhost:30000/health",
    "docker run -d quay.io/coreos/etcd:v3.5.9",
    "docker run --rm ubuntu:22.04 nvidia-smi",
    "docker exec -it kv nvidia-smi",
    "kubectl exec kv -- ls /",
    "kubectl get pods",
    "apptainer exec kv.sif nvidia-smi",
    "nginx -g 'daemon off;' &",
    "/usr/local/bin/node_exporter --web.listen-address=:9100 &",
    "tmux new-session -d -s logs",
    "tmux new-session -d -s logs 'tail -f /var/log/syslog'",
    "screen -dmS watch nvidia-smi dmon",
    "ssh other nvidia-smi",
    "srun --overlap nvidia-smi &",
    "python3 -m http.server 8000 &",
    "python3 -m dynamo.frontend --http-port 8000 &",
    "python3 bench_serving.py --port 30000",
    "python3 - <<'T'\nprint(1)\nT",
    "python3 - 30000 <<'T' &\nprint(1)\nT",
    "sleep infinity & tail -f server.log",
    "ray stop",
    "wrk -t4 http://localhost:30000/",
    "dcgmi dmon -e 203 > gpu.log &",
    "amd-smi metric -p -c > gpu.csv &",
    "npu-smi info watch -i 0 > npu.log &",
    "while true; do gpustat | ts >> gpu.log; sleep 5; done &",
    "ssh -fN -L 30000:localhost:30000 other",
    "ssh -N -p 22 -R 8000:localhost:30000 user@other &",
    "cloudflared tunnel run sglang &",
)


def test_what_holds_little_is_not_named(tmp_path: Path, capsys: Out) -> None:
    path = written(tmp_path, "\n".join([f"{SERVER} {HICACHE} &", *BESIDE, ""]))
    assert judged(path, capsys) == (0, [])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kvd --prepare\nSERVER\n", False),  # has ended
        ("kvd --prepare &\nSERVER\n", True),
        ("SERVER &\nkvd --prepare\n", True),
        ("SERVER\nkvd --prepare\n", False),  # once the server has ended
        ("kvd start\nSERVER\n", True),
        ("SERVER &\nkill $!\nkvd --prepare\n", False),
        ("SERVER &\nkvd_router --port 8000 &\n", False),  # small, by its name
        ("SERVER &\nkvd_router --pool 100G &\n", True),  # but not one that is told a size
        ("SERVER &\nkvd-proxy --cache=1.5TiB &\n", True),
    ],
)
def test_a_program_counts_where_it_runs_beside_a_server(
    text: str, named: bool, tmp_path: Path, capsys: Out
) -> None:
    path = written(tmp_path, text.replace("SERVER", SERVER))
    code, said = judged(path, capsys)
    assert (any("kvd" in each for each in said), code == 0) == (named, not named), said


def test_a_tunnel_is_told_from_a_program_on_the_other_host(tmp_path: Path, capsys: Out) -> None:
    path = written(tmp_path, f"{SERVER} &\nssh -f -L 1:a:2 other kvd --port 2\n")
    code, said = judged(path, capsys)
    assert (code, len(said)) == (3, 1)
    assert "kvd --port 2 (" in said[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("launch.sh", f"{SERVER} &\npython3 load.py --rate 8 &\n"),
        ("launch.sh", f"{SERVER} &\n./collect.sh --every 5 &\n"),
        ("launch.sh", f"{SERVER} &\ndocker run -d example/kv:1 example/llama --port 8002\n"),
        (
            "compose.yaml",
            f"services:\n  a:\n    image: lmsysorg/sglang:v0.5.9\n    command: {SERVER}\n"
            "  b:\n    image: example/kv:1\n    command: example/llama --port 8002\n",
        ),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
            "    - name: a\n      image: lmsysorg/sglang:v0.5.9\n"
            f"      command: [{', '.join(SERVER.split())}]\n"
            "    - name: b\n      image: example/kv:1\n"
            "      args: [example/llama, --port, '8002']\n",
        ),
    ],
    ids=["python", "script", "run", "compose", "pod"],
)
def test_a_program_that_the_reader_says_it_has_not_read_is_named_once(
    file: str, text: str, tmp_path: Path, capsys: Out
) -> None:
    (tmp_path / file).write_text(text)
    code, said = judged(tmp_path / file, capsys)
    assert code in (2, 3)
    assert len(said) == 1, said
    assert "not read" in said[0] or "does not show" in said[0]


def test_a_program_on_the_line_of_a_script_is_named_beside_it(tmp_path: Path, capsys: Out) -> None:
    path = written(tmp_path, f"{SERVER} &\npython3 load.py & kvd --port 2 &\n")
    _, said = judged(path, capsys)
    assert sorted("kvd" in each for each in said) == [False, True]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("LMCACHE_USE_EXPERIMENTAL=True", False),
        ("LMCACHE_LOG_LEVEL=DEBUG", False),
        ("LMCACHE_MAX_LOCAL_CPU_SIZE=20", True),
    ],
)
def test_a_cache_is_asked_about_where_a_variable_of_its_memory_is_set(
    setting: str, named: bool, tmp_path: Path, capsys: Out
) -> None:
    path = written(tmp_path, f"{setting} {SERVER}\n")
    code, said = judged(path, capsys)
    assert (any("LMCACHE" in each for each in said), code == 0) == (named, not named), said
