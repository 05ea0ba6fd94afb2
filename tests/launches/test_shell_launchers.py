"""Programs that start others: what stands behind them is read, and what they change is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from checks.base.needs import LIMIT_NAMES
from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.base.usage_error import NoLaunchError
from preflight.inputs.written_launch import read_launch
from preflight.launches.shell_script import read_script
from preflight.processes.host_groups import host_groups
from preflight.processes.processes import ProcessKind, understand

SERVER = "python3 -m sglang.launch_server --model-path m"


@pytest.mark.parametrize(
    ("line", "notes"),
    [
        (f"uv run {SERVER}", []),
        (f"uv run --python python3.12 --env-file e {SERVER}", ["env-file-not-read"]),
        ("uvx --from sglang sglang serve m", []),
        (f"conda run -n env --no-capture-output {SERVER}", []),
        (f"poetry run env A=1 {SERVER}", []),
        (f"nsys profile -o out numactl -N 0 -m 0 {SERVER}", []),
        (f"tmux new-session -d -s x '{SERVER}'", []),
        (f"prlimit --memlock=unlimited {SERVER}", []),
        ("accelerate launch -m sglang.launch_server --model-path m", []),
        ("torchrun --nproc-per-node 2 -m sglang.launch_server --model-path m", ["launcher"]),
        (f"srun -N1 --gres=gpu:8 {SERVER}", ["launcher"]),
        (f"srun -N1 bash -c 'export A=1; exec {SERVER}'", ["launcher"]),
        (f"mpirun -np 2 -x A=1 {SERVER}", ["launcher"]),
        (f"ray job submit --address a -- {SERVER}", ["launcher"]),
        (f"systemd-run --scope -p LimitMEMLOCK=infinity {SERVER}", ["launcher"]),
        (f"su - user -c '{SERVER}'", ["launcher"]),
        (f"ssh host '{SERVER}'", ["launcher"]),
        (f"kubectl exec pod -- bash -lc '{SERVER}'", ["launcher"]),
        (f"docker exec -it box {SERVER}", ["launcher"]),
        (f"docker compose exec box {SERVER}", ["launcher"]),
        (f"singularity exec --nv image.sif {SERVER}", ["launcher"]),
        (f"/opt/image/entrypoint.sh {SERVER}", ["script-not-read"]),
        ("python3 -X faulthandler -W ignore -m sglang.launch_server --model-path m", []),
        ("python3 -Bum sglang.launch_server --model-path m", []),
        ("python3 -msglang.launch_server --model-path m", []),
        (f"nohup {SERVER} > log 2>&1 &", []),
    ],
)
def test_servers_behind_others(line: str, notes: list[str]) -> None:
    reading = read_script(line, "s", {})
    kinds = [process.kind for process in understand(reading.commands, Unknown)]
    assert kinds == [ProcessKind.SGLANG] * (2 if "mpirun -np 2" in line else 1)
    assert [note.id for note in reading.notes] == notes


@pytest.mark.parametrize(
    "line",
    [
        "pkill -f mooncake_master",
        "ssh host pkill -f mooncake_master",
        "kubectl exec pod -- pgrep mooncake_client",
        "docker exec -it box bash",
        "docker ps --filter name=mooncake_master",
        "kubectl apply -f sglang.yaml",
        "tail -f entrypoint.sh.log mooncake_master",
        "entrypoint.sh stop",
        "xargs kill",
    ],
)
def test_what_starts_nothing(line: str) -> None:
    reading = read_script(line, "s", {})
    kinds = {process.kind for process in understand(reading.commands, Unknown)}
    assert kinds <= {ProcessKind.OTHER}


def test_the_environment_of_another_place() -> None:
    """A container that runs already does not get the caller's, but what exec names itself."""
    text = f"export A=1\ndocker exec -e B=2 box {SERVER}\nmpirun -x C=3 {SERVER}\n"
    exec_, mpi = read_script(text, "s", {}).commands
    open_ = {name: word for name, word in exec_.environment.items() if word.unresolved}
    assert sorted(open_) == ["MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"]  # the container's own
    assert {name: exec_.environment[name].text for name in {*exec_.environment} - {*open_}} == {
        "B": "2"
    }
    assert {name: word.text for name, word in mpi.environment.items()} == {"A": "1", "C": "3"}


SCRIPT = (
    "#!/bin/bash\nexport A=1\nif [ $# = 0 ]; then exit; fi\nexec numactl -N ${2:-0} $1 --tp $3\n"
)


@pytest.mark.parametrize("form", ["bash {} {}", "bash -e {} {}", "{} {}"])
def test_a_command_that_runs_a_script_is_the_script(form: str, tmp_path: Path) -> None:
    """With its arguments, as the shell would give them."""
    path = tmp_path / "launch.sh"
    path.write_text(SCRIPT)
    words = tuple(form.format(path, "mooncake_client 1 8").split())
    reading = read_launch(words, (), {}, Root("/")).reading
    command = reading.commands[-1]
    assert [word.text for word in command.words] == ["mooncake_client", "--tp", "8"]
    assert command.wrappers[-1] == ("numactl", "-N", "1")
    assert command.environment["A"].text == "1"
    assert command.origin.source == str(path)


def test_an_entrypoint_with_a_program(tmp_path: Path) -> None:
    """A script without the ending, which its first line makes one; a binary is none."""
    path = tmp_path / "entry"
    path.write_text('#!/usr/bin/env bash\nexport A=1\nexec "$@"\n')
    reading = read_launch((str(path), *SERVER.split()), (), {}, Root("/")).reading
    (command,) = reading.commands
    assert [word.text for word in command.words] == SERVER.split()
    assert command.environment["A"].text == "1"
    path.write_bytes(b"\x7fELF")
    reading = read_launch((str(path), "x"), (), {}, Root("/")).reading
    assert [word.text for word in reading.commands[0].words] == [str(path), "x"]


def test_why_nothing_is_started_is_said() -> None:
    with pytest.raises(NoLaunchError, match="runs its own command, which the launch does not show"):
        read_launch(("docker", "run", "image", "--tp", "8"), (), {}, Root("/"))
    words = ("docker", "run", "sglang:v0.5.9", "--gpus", "all", *SERVER.split())
    with pytest.raises(NoLaunchError, match="--gpus stands behind the image, so it is the program"):
        read_launch(words, (), {}, Root("/"))


JOB = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=1 # one\n"


@pytest.mark.parametrize(
    ("line", "copies"),
    [
        ("srun mooncake_client", [4]),
        ("srun --nodes=1 --ntasks=1 -w h mooncake_client", [1]),
        ("srun -N 2 -n 4 mooncake_client", [2, 2]),
        ("srun -n8 mooncake_client", [4, 4]),
        ("srun -N 2 --ntasks-per-node=3 mooncake_client", [2, 2, 2]),
        ("srun bash -c 'mooncake_client & mooncake_master'", [4, 4]),
        ("mpirun -np 3 mooncake_client", [1, 1, 1]),
        ("mpirun -np 3 --hostfile h mooncake_client", [3]),
        ("srun -N $NOBODY mooncake_client", [1]),  # not known, and told so
    ],
)
def test_how_many_slurm_starts_on_a_host_and_on_how_many(line: str, copies: list[int]) -> None:
    assert [command.copies for command in read_script(JOB + line, "s", {}).commands] == copies


def test_what_sbatch_sets_is_known_in_a_job() -> None:
    text = JOB + "mooncake_client --a $SLURM_NNODES --b $SLURM_NTASKS --c $SLURM_JOB_NUM_NODES"
    (command,) = read_script(text, "s", {}).commands
    assert [word.text for word in command.words[2::2]] == ["4", "4", "4"]
    (command,) = read_script(text, "s", {"SLURM_NNODES": "9"}).commands
    assert command.words[2].text == "9"


@pytest.mark.parametrize(
    ("option", "mib"),
    [
        ("--mem=200G", "204800"),
        ("--mem 1T", "1048576"),
        ("--mem=64000", "64000"),
        ("--mem=512000K", "500"),
        ("--mem=0", None),  # all of the node
        ("--mem=$MEM", None),
        ("--mem-per-cpu=4G", None),
    ],
)
def test_the_memory_of_a_job_is_told_in_mebibytes(option: str, mib: str | None) -> None:
    (command,) = read_script(f"#!/bin/bash\n#SBATCH {option}\nmooncake_client", "s", {}).commands
    word = command.environment.get("SLURM_MEM_PER_NODE")
    assert (None if word is None else word.text) == mib


def test_a_launcher_in_front_of_any_program_that_is_known() -> None:
    for words in ("vllm serve m", "lmcache_server 0.0.0.0 1", "etcd", "python3 -m dynamo.vllm"):
        (command,) = read_script(f"srun -N 1 -n 1 {words}", "s", {}).commands
        assert " ".join(word.text for word in command.words) == words


def test_exec_enters_the_container_that_the_script_ran() -> None:
    """What ``docker run --name`` gave is what ``docker exec`` finds: limits, image, variables."""
    text = (
        "docker run -dit --name box --ulimit memlock=-1 -e A=1 -e B=1 img:v1\n"
        f"docker exec -e B=2 box bash -c 'export C=3; {SERVER}'\n"
    )
    (command,) = read_script(text, "s", {}).commands
    assert command.container is not None
    assert (command.container.image, command.container.ulimits["memlock"]) == ("img:v1", (-1, -1))
    own = {name: word.text for name, word in command.environment.items()}
    assert own == {"A": "1", "B": "2", "C": "3"}
    assert (command.limits, command.run_as.user) == ((), "")


@pytest.mark.parametrize(
    "enters", ["docker exec -it box", "kubectl exec pod --", "podman exec box"]
)
def test_limits_of_a_container_that_runs_already_are_unknown(enters: str) -> None:
    """They are not this shell's: neither too small nor enough is known."""
    (command,) = read_script(f"ulimit -l 64\n{enters} {SERVER}\n", "s", {}).commands
    assert isinstance(command.run_as.user, Unknown)
    assert {one.name for one in command.limits} == set(LIMIT_NAMES)
    assert all(isinstance(one.hard, Unknown) for one in command.limits)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("--env A=1,B=x=y", {"A": "1", "B": "x=y", "C": "3"}),
        ("--env A=1 --env B=2", {"A": "1", "B": "2", "C": "3"}),
        ("--env=A=1 --nv", {"A": "1", "C": "3"}),
        ("--cleanenv --env A=1", {"A": "1"}),
        ("-C", {}),
        ("--env-file {file}", {"A": "0", "D": "4", "C": "3"}),
        ("--env-file {file} --env A=1", {"A": "1", "D": "4", "C": "3"}),
    ],
)
def test_what_apptainer_gives_a_program(
    options: str, settings: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "e.env").write_text("A=0\nD=4\n")
    line = f"apptainer exec {options.format(file=tmp_path / 'e.env')} i.sif {SERVER}"
    (command,) = read_script(line, "s", {"C": "3"}).commands
    assert {name: word.text for name, word in command.environment.items()} == settings


def test_a_variable_for_what_apptainer_runs() -> None:
    line = f"export APPTAINERENV_A=1 SINGULARITYENV_B=2; singularity run -e i.sif {SERVER}"
    (command,) = read_script(line, "s", {"C": "3"}).commands
    assert {name: word.text for name, word in command.environment.items()} == {"A": "1", "B": "2"}


@pytest.mark.parametrize("runner", ["apptainer exec --env-file e i.sif", "uv run --env-file e"])
def test_a_file_of_variables_that_is_not_here_may_hold_the_master(runner: str) -> None:
    reading = read_script(f"{runner} {SERVER}", "s", {})
    (command,) = reading.commands
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("MOONCAKE_MASTER",)
    assert "env-file-not-read" in [note.id for note in reading.notes]


SUBMITTED = f"#!/bin/bash\n#SBATCH -N1\n{SERVER}\n"


@pytest.mark.parametrize(
    "text",
    [
        SUBMITTED,
        f"#!/bin/bash\n#SBATCH -N1\nsrun {SERVER}\n",
        f"srun -N1 {SERVER}",
        f"sbatch --wrap '{SERVER}'",
        "sbatch job.sh",
    ],
)
def test_the_memlock_of_a_job_is_its_shells_or_slurmds(text: str) -> None:
    """slurm.conf says which: a low limit here is no reason that the job fails."""
    (command,) = read_script(text, "s", {}, beside={"job.sh": SUBMITTED}.get).commands
    assert [(one.name, isinstance(one.soft, Unknown)) for one in command.limits] == [
        ("memlock", True)
    ]
    (command,) = read_script(
        text, "s", {"SLURM_JOB_ID": "7"}, beside={"job.sh": SUBMITTED}.get
    ).commands
    assert command.limits == ()  # within the job its own limits are read


def test_a_job_that_lifts_its_memlock() -> None:
    text = f"#!/bin/bash\n#SBATCH -N1\nulimit -l unlimited\nsrun {SERVER}\n"
    (command,) = read_script(text, "s", {}).commands
    assert [one.soft for one in command.limits][-1:] != [command.limits[0].soft]
    assert len(command.limits) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "seq 3 5 | xargs -n1 -P4 mooncake_client --port",
        "seq 0 2 | xargs -I{} sh -c 'mooncake_client --port 3000{}'",
        "echo a b c d | xargs -n 2 -P 0 mooncake_client",
        "printf '%s\\n' 1 2 | xargs -IN mooncake_client --size=NGB --port=900N",
        "echo 7 8 | sudo xargs mooncake_client -v",
        "echo 1 2 | xargs -P2 -n1 env A=1 bash -c 'mooncake_client --port $1' _",
    ],
)
def test_xargs_starts_what_it_starts(line: str, tmp_path: Path) -> None:
    """The judge is xargs itself, with a program that prints its words."""
    for name, text in (("mooncake_client", 'echo "$*"'), ("sudo", 'exec "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.defpath}"}
    ran = subprocess.run(["bash", "-c", line], env=path, capture_output=True, text=True, check=True)
    found = read_script(line, "s", {})
    clients = [c for c in found.commands if c.words[0].text == "mooncake_client"]
    said = [" ".join(word.text for word in each.words[1:]) for each in clients]
    assert sorted(said) == sorted(ran.stdout.splitlines())
    assert "loop-not-counted" not in [note.id for note in found.notes]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("parallel -j 4 mooncake_client -s={}GB ::: 1 2", ["-s=1GB", "-s=2GB"]),
        ("parallel A=1 mooncake_client --port ::: 5 6", ["--port 5", "--port 6"]),
        ("parallel 'mooncake_client {1} {2}' ::: a b ::: 3", ["a 3", "b 3"]),
        ("seq 8 9 | parallel -j0 mooncake_client -n {#} {}", ["-n 1 8", "-n 2 9"]),
        ("parallel mooncake_client {/.} {//} ::: d/x.json", ["x d"]),
        ("parallel mooncake_client {} ::: 'a b'", ["a b"]),
    ],
)
def test_parallel_starts_one_for_each(line: str, words: list[str]) -> None:
    """As parallel(1) says it; it is seldom installed."""
    found = read_script(line, "s", {})
    clients = [c for c in found.commands if c.words[0].text == "mooncake_client"]
    assert [" ".join(w.text for w in c.words[1:]) for c in clients] == words
    assert not any(c.waited for c in clients)
    assert found.notes == ()


@pytest.mark.parametrize(
    "line",
    [
        f"cat ports | xargs -P4 -n1 {SERVER} --port",
        f"cat ports | xargs -I% {SERVER} --port %",
        f"cat ports | xargs -I% sh -c '{SERVER} --port %'",
        f"parallel -a ports {SERVER} --port {{}}",
        f"parallel {SERVER} --port {{}} :::: ports",
    ],
)
def test_what_is_added_and_is_not_known_stays_open(line: str) -> None:
    """A word that xargs adds was missing behind --port, or {} was read as it is written."""
    found = read_script(line, "s", {})
    (server,) = understand(found.commands[-1:], Unknown)
    assert server.server is not None
    assert server.server.arguments.error is None
    assert isinstance(server.server.value("port"), Unknown)
    assert "loop-not-counted" in [note.id for note in found.notes]


@pytest.mark.parametrize("line", ["ps | grep sglang | xargs kill -9", "ls x | xargs rm -rf"])
def test_xargs_that_ends_or_removes_starts_nothing(line: str) -> None:
    found = read_script(line, "s", {})
    assert found.notes == ()
    assert [c.words[0].text for c in found.commands][-1] == "xargs"


def test_each_part_of_a_heterogeneous_job_is_a_start_of_its_own() -> None:
    part = "--het-group=1 -N2 mooncake_client --global_segment_size=4gb"
    found = read_script(f"srun --het-group=0 -N1 {SERVER} : {part}", "s", {})
    processes = understand(found.commands, Unknown)
    kinds = [(each.kind, each.command.copies) for each in processes]
    assert kinds == [(ProcessKind.SGLANG, 1), (ProcessKind.CLIENT, 2)]
    assert [group.what for group in host_groups(processes)] == [
        "het group 0 of the job", "het group 1 of the job",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("front", "turns"),
    [
        ("ssh $host uptime", 1),
        ("timeout 5 ssh -o BatchMode=yes $host uptime", 1),
        ("ssh -n $host uptime", 3),
        ("ssh -nT $host uptime", 3),
        ("ssh $host uptime < /dev/null", 3),
        ("ssh $host uptime &", 3),
        ("echo a | ssh $host cat", 3),
        ("srun -w $host hostname", 1),
        ("srun --input=none -w $host hostname", 3),
        ("docker exec -i kv hostname", 1),
        ("docker exec kv hostname", 3),
        ("docker exec kv grep -i x /f", 3),
        ("docker exec -u root kv sed -i s/a/b/ /f", 3),
        ("docker run -e A=b -i kv cat", 1),
        ("kubectl exec -it $host -- date", 1),
        ("kubectl exec $host -i -- date", 1),
        ("kubectl exec $host -- grep -i x /f", 3),
    ],
)
def test_what_reads_standard_input_ends_the_loop_over_it(front: str, turns: int) -> None:
    """bash: ssh takes the rest of the list, and ``read`` finds none."""
    server = "mooncake_client --port=100$host"
    text = f"while read -r host; do\n  {front}\n  {server} &\ndone <<T\n1\n2\n3\nT\n"
    reading = read_script(text, "s", {})
    ports = [c.words[1].text for c in reading.commands if c.words[0].text == "mooncake_client"]
    assert ports == [f"--port=100{number}" for number in range(1, turns + 1)]
    said = [note.text for note in reading.notes if note.id == "loop-not-counted"]
    assert [text.partition(" reads")[0] for text in said] == (
        [next(n for n in ("ssh", "srun", "docker", "kubectl") if n in front)] if turns == 1 else []
    )
