"""``fit`` by a workload: which hosts keep a part of it, how many share a store, a trace's hits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checks.framework.units import GIB
from checks.host_snapshot.described import Description, gpu_kinds, known_models
from preflight.cache_sizing.capacity.workload import WorkloadOptions
from preflight.cache_sizing.fit.judged_values import CompareBy
from preflight.cache_sizing.fit.machines import BUFFERED, _HostKind
from preflight.cli.main import run
from preflight.command_inputs.launch_words import LaunchWords
from tests.cache_sizing.capacity.test_capacity_published import A10, DGX_SSD, H800_POOL
from tests.cache_sizing.fit.test_fit_divisions import best_of
from tests.paths import ROOT
from tests.report.pictures.markup import Markup
from tests.valid import valid

WORKLOAD = ("--clients", "40", "--rounds", "10", "--request-length", "2048")
SMALL = ("fit", "--model", "Qwen/Qwen3-8B", "--gpus", "1xA40", *WORKLOAD, "--keep", "80%")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = run([*words, "--json"])
    found = json.loads(capsys.readouterr().out)
    valid(found, json.loads((ROOT / "preflight/report/schemas/fit-v1.schema.json").read_text()))
    return code, found["answer"]


@pytest.mark.slow
def test_the_memory_of_a_row_is_enough_and_half_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """More hosts need less each; fit itself keeps as much with the memory of the row."""
    code, found = told(capsys, *SMALL)
    assert code == 0
    rows = found["machines"]
    assert [row["hosts"] for row in rows] == [1, 2, 4]
    assert all(row["kept"] >= 0.8 and row["enough"] for row in rows)
    sizes = [row["memory_bytes"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert rows[0]["half"] is None or rows[0]["half"] < 0.7
    assert rows[0]["twice"] >= rows[0]["kept"]
    assert (rows[0]["buffer_only_memory_bytes"] or 0) <= sizes[0]
    numbers = WorkloadOptions(40, 10, 2048)
    for row in rows[1:2]:
        described = Description(f"{row['memory_bytes']}b", "1xA40")
        answered = best_of("Qwen/Qwen3-8B", described, basis=CompareBy(numbers, hosts=row["hosts"]))
        assert answered.choice is not None
        assert answered.choice.tried[0].kept > 0.77, row


@pytest.mark.slow
def test_what_is_fixed_stays(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = told(capsys, *SMALL, "--memory", "32gb", "--nodes", "2")
    (row,) = found["machines"]
    assert (row["hosts"], row["memory_bytes"], row["gpus"]) == (2, 32 * GIB, ["A40"])
    assert code == (0 if row["enough"] else 2)


def test_a_model_that_no_gpu_holds_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--model", "deepseek-ai/DeepSeek-V3", "--gpus", "8xT4", *WORKLOAD]
    assert run([*words, "--keep", "80%"]) == 3
    assert "the weights do not fit" in capsys.readouterr().out


def test_kinds_of_gpus_are_each_in_one_row_with_the_least_of_them() -> None:
    kinds = list(gpu_kinds(None, 8))
    models = known_models("gpus")
    assert sorted(name for names, _ in kinds for name in names) == sorted(models)
    for names, devices in kinds:
        assert devices.model["memory_mib"] == min(models[name]["memory_mib"] for name in names)


def test_l2_stays_below_what_the_last_rank_is_let_have() -> None:
    """As the checks have it: fit --goal l2 of the same host finds 55 GB."""
    basis = CompareBy(WorkloadOptions(200, 10, 4096))
    host = _HostKind(LaunchWords(()), "Qwen/Qwen3-32B", Description("4tb", "8xH100"), basis, 30)
    values = host.values(808 * GIB, 1.0)
    assert values is not None
    assert (values.l2_bytes or 0) // 10**9 == 55
    staged = host.values(808 * GIB, BUFFERED)
    assert staged is not None
    assert (staged.segment_bytes or 0) > 1.8 * (values.segment_bytes or 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--keep 80% run.sh", "--keep 80% goes with --model"),
        ("--model Qwen/Qwen3-8B --keep 80%", "give --clients, --rounds"),
        ("--buffer-only run.sh", "--buffer-only goes with --model"),
        ("--format svg run.sh", "give --trace FILE"),
        ("--goal hits run.sh", "--goal hits goes with --trace FILE"),
        ("--goal l2 --trace t.jsonl run.sh", "a workload is for --goal best"),
        ("--trace t.jsonl --clients 5 run.sh", "give the one or the other"),
    ],
)
def test_what_belongs_together(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", *words.split()]) == 64
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "host", "theirs", "full"),
    [
        (DGX_SSD, ("--memory", "1tb", "--gpus", "8xA100-80G"), "l2", {"L1": 5, "L3": 7}),
        (H800_POOL, ("--memory", "2tb", "--gpus", "8xH800"), "best", {"L1": 1, "L3": None}),
    ],
    ids=["DGX with SSD", "H800"],
)
def test_published_setups_overflow_as_published_and_fit_keeps_all(
    launch: str,
    host: tuple[str, ...],
    theirs: str,
    full: dict[str, int | None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The segment of 80 GiB of the DGX is full in round 7, as tests/cache_sizing/capacity has it of
    the run; with fit's own division it never is. Of the H800 L2 alone overflows in round 4."""
    (tmp_path / "run.sh").write_text(launch)
    _, found = told(capsys, "fit", *host, "--nics", "8xmlx5", "--numa", "2", f"{tmp_path}/run.sh")
    rows = {one["about"]: one for one in found["hits"]["tried"]}
    tiers = {one["name"]: one["full_in_round"] for one in rows[theirs]["tiers"]}
    assert {name: tiers[name] for name in full} == full
    own = {one["name"]: one["full_in_round"] for one in rows["best"]["tiers"]}
    assert own["L3"] is None
    assert rows["best"]["servers"][0]["least"] == 1


@pytest.mark.slow
def test_published_a10_overflows_as_published_and_fit_keeps_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its servers give no segment; three hosts lend 50 GB each. 20 clients overflow L1 and L2 in
    the first round, and L3 never (412,160 tokens). Of L1 it is not certain that it holds one
    conversation, so it is not that L3 gives all back. $DEVICE_LIST is nowhere: what a device
    decides is unknown, and the sizes come all the same. With the segment in the servers fit's own
    division keeps all too."""
    host = ("--memory", "256gb", "--gpus", "2xA10", "--nics", "1xmlx5")
    launch = tmp_path / "run.sh"
    launch.write_text(A10)
    assert run(["capacity", *host, "--other-segments", "150gb", "--json", str(launch)]) == 0
    (server,) = json.loads(capsys.readouterr().out)["answer"]["servers"]
    assert [one["may_evict"] for one in server["rounds"]] == [["L1", "L2"]] * 10
    assert server["rounds"][-1]["held_tokens"] == 412_160
    hits = server["rounds"][-1]["hits"][-1]
    assert (hits["least"], hits["most"]) == (0, 1)
    assert any("less than the longest prompt" in note for note in server["notes"])
    code, found = told(capsys, "fit", *host, str(launch))
    assert (code, found["goal"]) == (3, "l2")
    unknowns = {one["check"] for one in found["unknowns"]}
    assert unknowns == {"rdma.region-too-large", "rdma.table-capacity"}
    assert found["sizes"]["l2"]["size_bytes"]
    lent = A10.replace("SEGMENT_SIZE=0", "SEGMENT_SIZE=50gb").replace("$DEVICE_LIST", "mlx5_0")
    launch.write_text(lent)
    code, found = told(capsys, "fit", *host, "--nodes", "3", str(launch))
    assert code == 0
    best = found["hits"]["tried"][0]
    full = {one["name"]: one["full_in_round"] for one in best["tiers"]}
    assert (full["L1"], full["L3"]) == (1, None)
    assert best["servers"][0]["most"] == 1
    assert best["unique_tokens"] > 412_160


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


SCRIPT = """\
export MOONCAKE_MASTER=127.0.0.1:1 MOONCAKE_PROTOCOL=tcp MOONCAKE_GLOBAL_SEGMENT_SIZE=1gb
python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --page-size 64 \\
  --max-total-tokens 4096 --enable-hierarchical-cache --hicache-size 2 \\
  --hicache-storage-backend mooncake
"""
# On 24 GiB: what is left for the cache is some 90,000 tokens of 144 KiB.
HOST = ("--memory", "24gb", "--gpus", "1xH800")


def cycle(blocks: int) -> str:
    """Prompts of 8 blocks of 512 tokens, one after the other, and all of them once more."""
    prompts = [[1000 * number + at for at in range(8)] for number in range(blocks // 8)]
    lines = [{"input_length": 4096, "hash_ids": prompt} for prompt in prompts * 3]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.mark.slow
def test_the_share_with_the_most_hits_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trace that only all of the memory in one tier holds: halves answer nothing of it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "t.jsonl").write_text(cycle(120))
    words = ["fit", *HOST, "--json", "--keep", "1gb", "--goal", "hits", "--trace", "t.jsonl"]
    words += ["--format", "html", "--output", "o.html", "--format", "svg", "--output", "o.svg"]
    assert run([*words, "run.sh"]) in (0, 1, 3)
    found = json.loads(capsys.readouterr().out)
    valid(found, json.loads((ROOT / "preflight/report/schemas/fit-v1.schema.json").read_text()))
    found = found["answer"]
    hits = found["hits"]
    assert next(one["about"] for one in hits["tried"]) == "best"
    assert {one["about"] for one in hits["tried"]} >= {"now", "l2", "pool"}
    assert all(each["least"] <= each["most"] for one in hits["tried"] for each in one["servers"])
    assert hits["ceiling"] == pytest.approx(2 / 3)
    rates = {one["about"]: one["servers"][0]["least"] for one in hits["tried"]}
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    assert rates["best"] == pytest.approx(2 / 3)
    assert rates["balanced"] < 0.5
    assert f"--hicache-size {found['sizes']['l2']['value']} " in hits["tried"][0]["sizes"]
    assert [one["tokens"] for one in hits["next_gib"] if one["size"] == "l2"] in ([0], [])
    # The curve has what fits, and what the launch has now; the page says the same numbers.
    drawn = (tmp_path / "o.svg").read_text()
    assert "ceiling 66.7%" in drawn
    assert "as large as L2 66.7%" in drawn
    assert "as large as now: L2 " in drawn
    page = (tmp_path / "o.html").read_text()
    assert "66.7%" in page
    assert "knee: one cache of" in page


@pytest.mark.slow
def test_requests_are_spread_as_the_launchs_router_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two servers that are alike answer one stream, once; with more of a prompt than a part of it
    known a request goes where it was before: half of each prompt is its own here."""
    monkeypatch.chdir(tmp_path)
    prompts = [[*range(4), *(100 * number + at for at in range(4))] for number in range(1, 40)]
    lines = [{"input_length": 4096, "hash_ids": prompt} for prompt in prompts * 2]
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    # Nothing is fetched from the store, which both share.
    own = """--hicache-storage-backend-extra-config '{"prefetch_threshold": 99999}'"""
    server = f"{SCRIPT.rstrip()} {own}"
    second = server.replace("launch_server", "launch_server --port 30001")
    found = []
    for threshold in ("0.2", "0.8"):
        router = "python3 -m sglang_router.launch_router --policy cache_aware --cache-threshold"
        (tmp_path / "run.sh").write_text(f"{router} {threshold} &\n{server} &\n{second}")
        words = ["--memory", "60gb", "--gpus", "2xH800", "--json", "--keep", "1gb"]
        run(["fit", *words, "--goal", "hits", "--trace", "t.jsonl", "run.sh"])
        out = json.loads(capsys.readouterr().out)["answer"]
        assert all(len(one["servers"]) == 1 for one in out["hits"]["tried"])
        assert any("the router spreads requests over it" in note for note in out["hits"]["notes"])
        found.append(out["hits"]["tried"][0]["servers"][0]["least"])
    # 0.2: all go to one cache after the first; 0.8: the first of each prompt to either.
    assert found[0] > found[1]


@pytest.mark.slow
def test_the_page_has_the_table_and_both_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same run as the JSON: each tier of each division is a bar with its tokens."""
    file = tmp_path / "fit.html"
    words = "--model Qwen/Qwen3-8B --memory 128gb --gpus 1xA40 --clients 20 --rounds 4".split()
    words += ["--request-length", "2048", "--format", "html", "--output", str(file), "--json"]
    assert run(["fit", *words]) == 0
    found = json.loads(capsys.readouterr().out)["answer"]
    markup = Markup(file.read_text())
    assert markup.problems == []
    labels = {
        attributes.get("aria_label") or attributes.get("aria-label")
        for _, attributes in markup.elements
    }
    for one in found["hits"]["tried"]:
        for tier in one["tiers"] if one["about"] != "now" else ():
            assert f"{one['about']} {tier['name']}: {tier['tokens']:,} tokens" in labels
    assert any(str(label).startswith("host with the launch: ") for label in labels)
    assert found["sizes"]["segment"]["value"] in markup.text
    assert "what limits it, at --hicache-size" in markup.text
