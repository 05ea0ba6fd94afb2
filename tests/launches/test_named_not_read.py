"""What is named, with its line and with what to give in its place, instead of being read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.launches.launch_files import read_source
from preflight.launches.source import SourceError
from tests.builders.launched import written

CLIENT = "mooncake_client --global_segment_size=1500GB"

# A line, and what has to be said of it.
LINES = (
    ("ansible-playbook -i hosts serve.yml", "one host"),
    (f"pdsh -w n1,n2 {CLIENT}", "one host"),
    ("sky launch -c x serve.yaml", "one host"),
    ("terraform apply", "one host"),
    (f"seq 2 | sudo xargs -I{{}} sh -c '{CLIENT} --port {{}}'", "a line of its own"),
    ("docker ps -q | xargs -r docker start", "a line of its own"),
    (f"srun -N 1 xargs -a ports {CLIENT} --port", "a line of its own"),
    (f"kubectl exec p -- sh -c 'seq 2 | xargs -n1 {CLIENT} --port'", "a line of its own"),
    (f"parallel {CLIENT} --port ::: 5 6", "a line of its own"),
    ("srun -n 3 --multi-prog ranks.conf", "a line of its own"),
    (f"srun -N1 {CLIENT} : --het-group=1 -N2 {CLIENT}", "a line of its own"),
    (f"mpirun -np 1 {CLIENT} : -np 2 {CLIENT}", "a line of its own"),
    ("at -f job.sh now + 1 minute", "give the command itself"),
    (f"(crontab -l; echo '@reboot {CLIENT}') | crontab -", "give the command itself"),
    (f"tmux send-keys -t s:0 '{CLIENT}' Enter", "give the command itself"),
    (f"tmux new -d -s s \\; send-keys '{CLIENT}' C-m", "give the command itself"),
    (f"screen -S s -p 0 -X stuff '{CLIENT}\\n'", "give the command itself"),
    (f"su-exec llm {CLIENT}", "sudo -u NAME"),
    (f"unshare -r {CLIENT}", "sudo -u NAME"),
    (f"setpriv --bounding-set=-ipc_lock {CLIENT}", "put the settings behind it"),
    (f"setpriv --reset-env {CLIENT}", "put the settings behind it"),
    (f"su -w MC_X - root -c '{CLIENT}'", "put the settings behind it"),
    (f"sudo --preserve-env=MC_X -i {CLIENT}", "put the settings behind it"),
    ("supervisorctl start store", "behind command="),
    ("sudo systemctl enable --now vllm@1", "systemctl cat UNIT"),
    ("service mooncake-client start", "systemctl cat UNIT"),
    (f"env -S 'A=1 {CLIENT}'", "write its words apart"),
    (f"apptainer exec --env A=1,B=2 i.sif {CLIENT}", "put the settings in front"),
    (f"singularity exec --cleanenv i.sif {CLIENT}", "put the settings in front"),
    (f"APPTAINERENV_A=1 apptainer run i.sif {CLIENT}", "put the settings in front"),
    (f"uv run --env-file e {CLIENT}", "put the settings in front"),
    (f"systemd-run -p LimitMEMLOCK=infinity {CLIENT}", "a unit of its own"),
    ("docker start mooncake-client", "the run that made the container"),
    ("make -C deploy up", "make -n"),
    ("cd deploy && just serve", "just --dry-run"),
    ("helm upgrade --install x ./charts/sglang", "helm template CHART"),
    ("docker compose up -d --scale m=4", "docker compose config"),
    ("docker compose run m bash -c something", "docker compose config"),
    ("docker-compose up m", "docker compose config"),
    ("kubectl apply -f pod.yaml", "the manifest itself"),
    ("kubectl -n a create -f - <<E\nkind: Pod\nmetadata: {name: $X}\nE", "the manifest itself"),
    ("sbatch -N 2 --time 9 job.sbatch 77", "the script of the job on its own"),
    ("srtctl apply -f job.yaml", "the file of the job on its own"),
    ("while read h; do ssh $h true; done < hosts", "how many times it runs is not known"),
)


def test_a_command_that_is_not_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``read`` ends with 3, which no check passes; the line stands beside what is said."""
    (tmp_path / "hosts").write_text("n1\nn2\n")
    path = written(tmp_path, "\n".join(["#!/bin/bash", *(f"( {line}\n)" for line, _ in LINES), ""]))
    assert run(["read", "--json", "--root", "demo:h800", str(path)]) == 3
    named = json.loads(capsys.readouterr().out)["answer"]["unread"]
    reasons = {(one["origin"], one["reason"]) for one in named}
    row = 2
    for line, said in LINES:
        assert any(o == f"{path}:{row}" and said in reason for o, reason in reasons), (line, named)
        row += line.count("\n") + 2


@pytest.mark.parametrize(
    "line",
    [
        "systemctl start docker nvidia-persistenced; systemctl restart sshd.service slurmd",
        "systemctl stop mooncake; systemctl status mooncake; systemctl enable mooncake",
        "systemctl start dev-hugepages.mount; systemctl daemon-reload; service ssh restart",
        "docker stop m; docker ps; docker compose ls; docker pull start",
        "supervisorctl status; crontab -l; crontab -r; echo x | at -l; helm list; terraform plan",
        "ps | grep sglang | xargs kill -9; ls x | xargs rm -rf; docker ps -q | xargs docker stop",
        "cat urls | xargs -P 4 -n 1 wget -q; ls | xargs; parallel wget {} ::: a b",
        "kubectl delete -f m.yaml; kubectl create namespace x; docker compose down; oc get pods",
        "make -j 8; make install; make -C kv build; sky status",
        "tmux new-session -d -s logs; tmux kill-session -t logs",
    ],
)
def test_what_starts_no_server_is_quiet(line: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1\nn2\n")
    path = written(tmp_path, f"{line}\n")
    assert [note for note in read_source(str(path), {}).notes if note.id != "launcher"] == []


# A job of srt-slurm.
JOB = "model: {path: m}, resources: {agg_nodes: 1}, backend: {sglang_config: {aggregated: {a: 1}}}"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("s.conf", "; x\n[program:m]\ncommand=mooncake_master\n", "behind command= as a script"),
        ("s.conf", "[supervisord]\n[include]\nfiles=x\n", "behind command= as a script"),
        ("Makefile", "serve:\n\tmooncake_master --port $(PORT)\n", "make -n"),
        ("serve.mk", "serve:\n\tmooncake_master\n", "make -n"),
        ("justfile", "serve:\n\tmooncake_master\n", "just --dry-run"),
        ("serve.timer", "[Timer]\nOnCalendar=daily\n", r"give that unit: serve\.service"),
        ("kustomization.yaml", "resources: [a.yaml]\n", "kubectl kustomize"),
        ("values.yaml", "servingEngineSpec: {}\n", "helm template CHART -f values.yaml"),
        (
            "c.yaml",
            "model-path: m\ntp-size: 2\n",
            "python3 -m sglang.launch_server --config c.yaml",
        ),
        ("c.yaml", "model_path: m\n", "python3 -m sglang.launch_server --config c.yaml"),
        ("c.yaml", "model: m\ntensor-parallel-size: 2\n", "give vllm serve --config c.yaml"),
        ("j.yaml", f"base: {{{JOB}}}\noverride_a: {{x: 1}}\n", "variants of a job: give one"),
        ("j.yaml", f"{JOB.replace(', ', chr(10))}\nsweep: {{tp: [1, 2]}}\n", "variants of a job"),
        ("x.container", "[Container]\nImage=i\n", "podman-system-generator --dryrun"),
        ("x.service", "[Container]\nImage=i\n[Service]\nRestart=no\n", "podman-system-generator"),
        (
            "a.yaml",
            "metadata:\n  name: {{ .Values.name | quote }}\nkind: Pod\n",
            "helm template CHART",
        ),
    ],
)
def test_a_file_that_is_not_read_says_what_to_give(
    name: str, text: str, said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(SourceError, match=said):
        read_source(str(path), {})
