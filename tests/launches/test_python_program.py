"""A Python program is read for its literal calls; all else that may start something is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from checks.framework.unknown import Unknown
from preflight.engines.programs.sglang_arguments import why_unresolved
from preflight.launches.source import SourceError, open_names
from preflight.processes.processes import understand
from preflight.processes.unread import count_of, unread
from tests.builders.launched import argv, argvs, ids
from tests.launches.test_other_kinds import read
from tests.tables import each_row

# What prints the words and variables of each start, in place of what would start.
STAND_IN = """\
import json, os, subprocess
OWN = ("MC_", "MOONCAKE_", "CUDA_")
def said(words, env):
    kept = {k: v for k, v in (os.environ if env is None else env).items() if k.startswith(OWN)}
    print(json.dumps([[str(word) for word in words], kept]))
class Popen:
    def __init__(self, words, env=None, **more):
        said(words, env)
    def wait(self):
        return 0
subprocess.Popen = subprocess.run = Popen
"""
SGLANG = """\
import json, sitecustomize
class Engine:
    def __init__(self, **given):
        words = ["python3", "-m", "sglang.launch_server"]
        for name, value in given.items():
            flag = "--" + name.replace("_", "-")
            value = json.dumps(value) if isinstance(value, dict) else value
            words += [flag] if value is True else [] if value in (False, None) else [flag, value]
        sitecustomize.said(words, None)
"""
PROGRAM = """\
import os, subprocess
import sglang as sgl
from subprocess import Popen as start
os.environ["MOONCAKE_MASTER"] = "127.0.0.1:50051"
with open("/dev/null") as log:
    start(["mooncake_master", "--rpc_port", "50061"], stdout=log)
def main():
    os.environ["MC_A"] = "1"
    subprocess.run(["mooncake_client"], env=os.environ).wait()
    sgl.Engine(model_path="Qwen/Qwen3-8B", tp_size=2, enable_hierarchical_cache=True,
               hicache_ratio=2.5, log_level=None, disable_cuda_graph=False,
               hicache_storage_backend_extra_config={"master_server_address": "a:1"})
if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_program_starts_what_python_starts(tmp_path: Path) -> None:
    """The interpreter is the judge, with stand-ins."""
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    (tmp_path / "sglang.py").write_text(SGLANG)
    (tmp_path / "serve.py").write_text(PROGRAM)
    run = [sys.executable, str(tmp_path / "serve.py")]
    path = {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(run, capture_output=True, text=True, check=True, env=path)
    started = [json.loads(line) for line in ran.stdout.splitlines()]
    found = read(tmp_path, PROGRAM, "serve.py")
    assert [
        [
            argv(each),
            {k: v.text for k, v in each.environment.items() if k.startswith(("MC_", "MOONCAKE_"))},
        ]
        for each in found.commands
    ] == started
    assert not any(each.doubts for each in found.commands)
    assert ids(found) == ["script-not-read"]  # what else it may start


@pytest.mark.parametrize(
    "call",
    [
        "subprocess.Popen([*cmd, '--port', '7'])",
        "subprocess.run([program, '--port', '7'])", "subprocess.run(' '.join(cmd), shell=True)",
        "subprocess.run(['bash'], input='mooncake_client')",
        "subprocess.run(['mooncake_client'], env=env)",
        "subprocess.run(['mooncake_client'], env={**os.environ, **env})",
        "subprocess.run(['mooncake_client'], env={'MC_B': '2'})", "os.system(text)",
        "os.execvp(sys.argv[1], sys.argv[1:])", "sglang.Engine(**given)",
        "popen_launch_server(MODEL, URL, timeout=9, other_args=['--tp', '2'])",
        "launch_server(args)", "asyncio.create_subprocess_exec('mooncake_client')", "exec(text)",
        "Store().setup('h', 'm', 1 << 40)", "system('x')",
    ],
)  # fmt: skip
def test_what_is_no_literal_call_is_named_with_its_line(call: str, tmp_path: Path) -> None:
    text = (
        "import asyncio, os, sglang, subprocess, sys; from os import *; "
        "from sglang.test.test_utils import popen_launch_server; "
        "from sglang.srt.entrypoints.http_server import launch_server; "
        f"from mooncake.store import MooncakeDistributedStore as Store\n{call}\n"
    )
    found = read(tmp_path, text, "serve.py")
    places = [note.origin.line for note in found.notes if note.id == "script-not-read"]
    if call == "system('x')":  # a literal one, by a name of *
        assert (argvs(found), places) == ([["x"]], [None])
        return
    assert found.commands == ()
    assert 2 in places


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("if args.pd:\n    START\n", True),
        ("for each in range(4):\n    START\n", False),
        ("while going():\n    START\n", False),
        ("every = [START for g in range(4)]\n", False),
        ("def start():\n    START\nif on:\n    start()\n", True),
        ("def start():\n    START\nstart()\nstart()\n", False),
        ("def start():\n    START\nfor i in range(4):\n    start()\n", False),
        ("def start():\n    START\n", True),
        ("class A:\n    def run_it(self):\n        START\n", True),
    ],
)
def test_what_a_call_hangs_on_is_a_doubt(text: str, counted: bool, tmp_path: Path) -> None:
    start = "subprocess.run(['mooncake_client', '--port=1'])"
    found = read(tmp_path, f"import subprocess\n{text.replace('START', start)}", "serve.py")
    (process,) = understand(found.commands, Unknown)
    assert process.command.doubts
    assert isinstance(count_of(process), Unknown) is not counted
    told = unread(found._replace(notes=()), (process,))
    assert told


@pytest.mark.parametrize("value", ["tp_size()", "os.environ['TP']", "f'{tp}'", "PAGE", "1 / 2"])
def test_what_is_not_literal_in_a_call_stays_open(value: str, tmp_path: Path) -> None:
    """Nothing outside of the program sets its names."""
    text = f"import os, sglang\nsglang.Engine(model_path='m', tp_size={value})\n"
    (command,) = read(tmp_path, text, "serve.py").commands
    assert command.words[-1].unresolved == (value,)
    assert open_names(command.words[-1]) == (f"the name {value}" if value == "PAGE" else value)
    assert why_unresolved(command.words[-1]).advice == ""
    text = f"import os, subprocess\nsubprocess.run(['mooncake_client', '--port', {value}])\n"
    (command,) = read(tmp_path, text, "serve.py").commands
    assert command.words[-1].unresolved == (value,)


@pytest.mark.parametrize(
    "change",
    [
        "load_dotenv()", "os.environ.update(values())", "os.environ.setdefault('A', '1')",
        "os.environ |= values()", "os.environ[name] = '1'", "del os.environ['A']",
        "os.putenv('A', '1')",
    ],
)  # fmt: skip
def test_variables_that_are_not_read_may_hold_the_master(change: str, tmp_path: Path) -> None:
    text = f"import os\nfrom subprocess import run\n{change}\nrun(['mooncake_client'])\n"
    found = read(tmp_path, text, "serve.py")
    (command,) = found.commands
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("MOONCAKE_MASTER",)
    assert 3 in [note.origin.line for note in found.notes]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("os.environ['MC_A'] = '1'\nrun(['x'], env=None)", "set"),
        ("run(['x'])\nos.environ['MC_A'] = '1'", "none"),
        ("def set():\n    os.environ['MC_A'] = '1'\nrun(['x'])", "open"),
        ("def go():\n    run(['x'])\nos.environ['MC_A'] = '1'\ngo()", "open"),
    ],
)
def test_a_variable_is_known_that_is_set_before(text: str, state: str, tmp_path: Path) -> None:
    found = read(tmp_path, f"import os\nfrom subprocess import run\n{text}\n", "serve.py")
    word = found.commands[0].environment.get("MC_A")
    assert ("none" if word is None else "open" if word.unresolved else "set") == state


def test_a_shell_s_line_is_read_as_one_and_nothing_runs(tmp_path: Path) -> None:
    never = tmp_path / "never"
    text = f"import os\nos.system('touch {never}; mooncake_master --rpc_port 7')\n"
    assert argvs(read(tmp_path, text, "serve.py"))[1] == ["mooncake_master", "--rpc_port", "7"]
    assert not never.exists()


@each_row(
    ("text", "said"),
    [
        ("def (", "is not Python"),
        (f"run({'+'.join(['a'] * 5000)})\n", "is not Python"),
        ("a = 1\n" * 200_000, "too long a program"),
    ],
)
def test_what_is_no_program_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said):
        read(tmp_path, text, "serve.py")


def test_functions_that_call_each_other_end(tmp_path: Path) -> None:
    start = "import subprocess\ndef f():\n    g()\ndef g():\n    f()\n    subprocess.run(['x'])\n"
    (command,) = read(tmp_path, start, "serve.py").commands
    assert command.doubts
