"""Programs that start others: what stands behind them is read, and what they change is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.framework.needs import LIMIT_NAMES
from checks.framework.root import Root
from checks.framework.unknown import Unknown
from preflight.command_inputs.written_launch import read_launch
from preflight.launches.shell_script import read_script
from preflight.processes.processes import ProcessKind, understand
from tests.builders.launched import argv, ids, variables, written
from tests.tables import each_row

SERVER = "python3 -m sglang.launch_server --model-path m"


@each_row(
    ("line", "notes"),
    [
        (f"uv run {SERVER}", []),
        (f"uv run --python python3.12 --env-file e {SERVER}", ["source-not-read"]),
        ("uvx --from sglang sglang serve m", []),
        (f"conda run -n env --no-capture-output {SERVER}", []),
        (f"poetry run env A=1 {SERVER}", []),
        (f"nsys profile -o out numactl -N 0 -m 0 {SERVER}", []),
        (f"tmux new-session -d -s x '{SERVER}'", []),
        (f"prlimit --memlock=unlimited {SERVER}", []),
        ("torchrun --nproc-per-node 2 -m sglang.launch_server --model-path m", ["launcher"]),
        (f"srun -N1 --gres=gpu:8 {SERVER}", ["launcher"]),
        (f"srun -N1 bash -c 'export A=1; exec {SERVER}'", ["launcher"]),
        (f"mpirun -np 2 -x A=1 {SERVER}", ["launcher"]),
        (f"ray job submit --address a -- {SERVER}", ["launcher"]),
        (f"su - user -c '{SERVER}'", ["launcher"]),
        (f"ssh host '{SERVER}'", ["launcher"]),
        (f"kubectl exec pod -- bash -lc '{SERVER}'", ["launcher"]),
        (f"docker exec -it box {SERVER}", ["launcher"]),
        (f"docker compose exec box {SERVER}", ["launcher"]),
        ("accelerate launch -m sglang.launch_server --model-path m", []),
        (f"singularity exec --nv image.sif {SERVER}", ["launcher"]),
        (f"/opt/image/entrypoint.sh {SERVER}", ["script-not-read"]),
        ("python3 -X faulthandler -W ignore -m sglang.launch_server --model-path m", []),
        ("python3 -Bum sglang.launch_server --model-path m", []),
        ("python3 -msglang.launch_server --model-path m", []),
    ],
)
def test_servers_behind_others(line: str, notes: list[str]) -> None:
    reading = read_script(line, "s", {})
    kinds = [process.kind for process in understand(reading.commands, Unknown)]
    assert kinds == [ProcessKind.SGLANG]
    assert ids(reading) == notes


@each_row(
    "line",
    [
        "pkill -f mooncake_master", "ssh host pkill -f mooncake_master",
        "kubectl exec pod -- pgrep mooncake_client", "docker exec -it box bash",
        "docker ps --filter name=mooncake_master", "tail -f entrypoint.sh.log mooncake_master",
        "entrypoint.sh stop", "xargs kill",
    ],
)  # fmt: skip
def test_what_starts_nothing(line: str) -> None:
    reading = read_script(line, "s", {})
    kinds = {process.kind for process in understand(reading.commands, Unknown)}
    assert kinds <= {ProcessKind.OTHER}


SCRIPT = (
    "#!/bin/bash\nexport A=1\nif [ $# = 0 ]; then exit; fi\nexec numactl -N ${2:-0} $1 --tp $3\n"
)


@pytest.mark.parametrize("form", ["bash {} {}", "bash -e {} {}", "{} {}"])
def test_a_command_that_runs_a_script_is_the_script(form: str, tmp_path: Path) -> None:
    """With its arguments, as the shell would give them."""
    path = written(tmp_path, SCRIPT)
    words = tuple(form.format(path, "mooncake_client 1 8").split())
    reading = read_launch(words, (), {}, Root("/")).reading
    command = reading.commands[-1]
    assert argv(command) == ["mooncake_client", "--tp", "8"]
    assert command.wrappers[-1] == ("numactl", "-N", "1")
    assert command.environment["A"].text == "1"
    assert command.origin.source == str(path)


JOB = "#!/bin/bash\n#SBATCH --job-name=x\n#SBATCH -N 4\n#SBATCH --ntasks-per-node=1 # one\n"


@each_row(
    ("line", "copies"),
    [
        ("srun mooncake_client", [4]),
        ("srun --nodes=1 --ntasks=1 -w h mooncake_client", [1]),
        ("srun -N 2 -n 4 mooncake_client", [2, 2]),
        ("srun -n8 mooncake_client", [4, 4]),
        ("srun -N 2 --ntasks-per-node=3 mooncake_client", [2, 2, 2]),
        ("srun bash -c 'mooncake_client & mooncake_master'", [4, 4]),
        ("srun -N $NOBODY mooncake_client", [1]),  # not known, and told so
    ],
)
def test_how_many_slurm_starts_on_a_host_and_on_how_many(line: str, copies: list[int]) -> None:
    assert [command.copies for command in read_script(JOB + line, "s", {}).commands] == copies


@pytest.mark.parametrize(
    ("option", "mib"),
    [
        ("--mem=200G", "204800"),
        ("--mem 1T", "1048576"),
        ("--mem=512000K", "500"),
        ("--mem=0", None),  # all of the node
        ("--mem=$MEM", None),
    ],
)
def test_the_memory_of_a_job_is_told_in_mebibytes(option: str, mib: str | None) -> None:
    (command,) = read_script(f"#!/bin/bash\n#SBATCH {option}\nmooncake_client", "s", {}).commands
    word = command.environment.get("SLURM_MEM_PER_NODE")
    assert (None if word is None else word.text) == mib


def test_exec_enters_the_container_that_the_script_ran() -> None:
    """What ``docker run --name`` gave is what ``docker exec`` finds: limits, image, variables."""
    text = (
        "docker run -dit --name box --ulimit memlock=-1 -e A=1 -e B=1 img:v1\n"
        f"docker exec -e B=2 box bash -c 'export C=3; {SERVER}'\n"
    )
    (command,) = read_script(text, "s", {}).commands
    assert command.container is not None
    assert (command.container.image, command.container.ulimits["memlock"]) == ("img:v1", (-1, -1))
    own = variables(command)
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


SUBMITTED = f"#!/bin/bash\n#SBATCH -N1\n{SERVER}\n"


@pytest.mark.parametrize(
    "text", [SUBMITTED, f"#!/bin/bash\n#SBATCH -N1\nsrun {SERVER}\n", f"srun -N1 {SERVER}"]
)
def test_the_memlock_of_a_job_is_its_shells_or_slurmds(text: str) -> None:
    """slurm.conf says which: a low limit here is no reason that the job fails."""
    (command,) = read_script(text, "s", {}).commands
    assert [(one.name, isinstance(one.soft, Unknown)) for one in command.limits] == [
        ("memlock", True)
    ]
    (command,) = read_script(text, "s", {"SLURM_JOB_ID": "7"}).commands
    assert command.limits == ()  # within the job its own limits are read
