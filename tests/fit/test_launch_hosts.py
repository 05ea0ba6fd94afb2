"""Hosts that share the store are taken from the launch where it says how many there are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli.main import run

SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {{name: sglang}}
spec:
  replicas: {replicas}
  leaderWorkerTemplate:
    size: {size}
    workerTemplate:
      spec:
        containers:
        - name: sglang
          image: lmsysorg/sglang:v0.5.23
          command: [python3, -m, sglang.launch_server, --model-path, Qwen/Qwen3-8B, --tp, "{tp}",
            --nnodes, $(LWS_GROUP_SIZE), --node-rank, $(LWS_WORKER_INDEX), --dist-init-addr,
            "$(LWS_LEADER_ADDRESS):20000", --page-size, "64", --enable-hierarchical-cache,
            --hicache-size, "20", --hicache-mem-layout, page_first,
            --hicache-storage-backend, mooncake]
          env:
          - {{name: MOONCAKE_MASTER, value: "master:50051"}}
          - {{name: MOONCAKE_PROTOCOL, value: tcp}}
          - {{name: MOONCAKE_GLOBAL_SEGMENT_SIZE, value: 32gb}}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "size", "tp", "gpus", "nodes", "hosts"),
    [
        (3, 1, 1, "1xA40", (), 3),
        (2, 2, 2, "1xA40", (), 4),
        (3, 1, 1, "1xA40", ("--nodes", "2"), 2),  # what is given counts
        (3, 1, 1, "4xA40", (), 1),  # three such pods may share a host
    ],
)
def test_l3_is_that_of_all_hosts(
    replicas: int,
    size: int,
    tp: int,
    gpus: str,
    nodes: tuple[str, ...],
    hosts: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "set.yaml"
    file.write_text(SET.format(replicas=replicas, size=size, tp=tp))
    words = ["--memory", "128gb", "--gpus", gpus, *nodes, "--clients", "20", "--rounds", "3"]
    run(["fit", *words, "--request-length", "1024", "--json", str(file)])
    found = json.loads(capsys.readouterr().out)["answer"]
    (now,) = (one for one in found["hits"]["tried"] if one["about"] == "now")
    (held,) = (tier["tokens"] for tier in now["tiers"] if tier["name"] == "L3")
    of_one_host = (32 << 30) / size * 0.9 / (144 << 10)
    assert held == pytest.approx(of_one_host * hosts, rel=0.07)  # bins of pages are whole
    said = " ".join(found["unread"])
    if not nodes:
        assert ("it is not known how many share a host" in said) == (hosts == 1)
        assert (f"is for {hosts} hosts like this one" in said) == (hosts > 1)
