"""A Python program starts what Python starts: the interpreter is the judge, with stand-ins."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from preflight.launches.source import SourceError
from tests.launches.test_other_kinds import read

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
import sitecustomize
class Engine:
    def __init__(self, **given):
        words = ["python3", "-m", "sglang.launch_server"]
        for name, value in given.items():
            flag = "--" + name.replace("_", "-")
            words += [flag] if value is True else [] if value in (False, None) else [flag, value]
        sitecustomize.said(words, None)
"""
PROGRAMS = {
    "an engine with constants and variables": """\
import os, sglang as sgl
os.environ["MOONCAKE_MASTER"] = f"127.0.0.1:{50051}"
os.environ.setdefault("MOONCAKE_PROTOCOL", "tcp")
os.environ.setdefault("MOONCAKE_MASTER", "other:1")
os.environ["MC_GONE"] = "1"
del os.environ["MC_GONE"]
TP, OFF = 4, False
TP, OFF = 4, False
common = dict(model_path="Qwen/Qwen3-8B", tp_size=TP, enable_hierarchical_cache=True)
common["hicache_ratio"] = 2.5
def main():
    engine = sgl.Engine(**common, page_size=64, disable_cuda_graph=OFF)
if __name__ == "__main__":
    main()
""",
    "servers that a function starts in a loop": """\
import json, os, subprocess
SEGMENT = 32 * 1024**3
extra = {"master_server_address": "a:1", "global_segment_size": SEGMENT, "on": True}
MASTER = "10.0.0.1"
MASTER += ":50051"
class Config:
    tp = 2
def start(mode, port, *, more=None):
    cmd = ["python3", "-m", "sglang.launch_server", "--model-path", os.environ.get("MODEL", "m"),
           "--tp", Config.tp, "--port", f"{port}"]
    if mode == "prefill":
        cmd += ["--hicache-size", "30"]
    elif mode == "never":
        cmd.append("--never")
    else:
        cmd.extend(["--extra", json.dumps(extra)])
    if more:
        cmd += more
    env = os.environ.copy()
    env["CUDA_VISIBLE_DEVICES"] = "2" if Config.tp > 2 else "0,1"
    env.update({"MOONCAKE_MASTER": MASTER}, MC_A="1")
    return subprocess.Popen(list(map(str, cmd)), env=env)
for mode, port in [("prefill", 30000), ("decode", 30100)]:
    start(mode, port)
for at, port in enumerate(range(4, 6)):
    start("prefill", port + at, more=["--last"])
""",
    "lists that functions return": """\
import os, shlex, subprocess
def build(tp, ratio=2):
    words = ["python3", "-m", "sglang.launch_server"] + ["--tp", str(tp)]
    words.append("--hicache-ratio")
    return words + [str(ratio)]
x = 4
held = {"a": x}
x = 5
subprocess.Popen(build(4), env={**os.environ, "MC_A": f"{held['a']}"})
subprocess.Popen(build(8, ratio=3), env=dict(os.environ, MC_B="7"))
subprocess.run(shlex.split("mooncake_client --global_segment_size=4GB --port 7"))
for host in ["a", "b"]:
    subprocess.run(["mooncake_client", f"--host={host}"]).wait()
env = os.environ
env["MC_C"] = "1"
flags = {"--rpc_port": 50000 + 51, "--v": 1}
words = ["mooncake_master"]
for flag, value in flags.items():
    words += [flag, str(value)]
subprocess.Popen([str(x) for x in words])
""",
    "texts that are split": """\
import os, subprocess
subprocess.Popen("mooncake_master --rpc_port  7".split())
model = "m"
cmd = f"sglang serve {model} --tp 2".split()
cmd += ["--port", "1"]
env = os.environ.copy()
env.update({"MC_A": "1"})
subprocess.Popen(cmd, env={"MC_B": "2", **env})
""",
    "a file of variables": """\
import os, subprocess
from dotenv import load_dotenv
os.environ["MC_A"] = "own"
load_dotenv()
subprocess.Popen(["mooncake_master"])
load_dotenv(".env", override=True)
subprocess.Popen(["mooncake_master"])
""",
}
FILE = "MC_A=file\nexport MC_B='x y'\nMC_C=1 # told\n"
# As much of python-dotenv as reads such a file.
DOTENV = """\
import os, shlex
def load_dotenv(path=".env", override=False):
    for line in open(os.path.join(os.path.dirname(__file__), path)):
        name, _, value = line.removeprefix("export ").partition("=")
        if override or name not in os.environ:
            os.environ[name] = shlex.split(value, comments=True)[0]
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_starts_what_python_starts(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    (tmp_path / "sglang.py").write_text(SGLANG)
    (tmp_path / "dotenv.py").write_text(DOTENV)
    (tmp_path / ".env").write_text(FILE)
    program = tmp_path / "serve.py"
    program.write_text(PROGRAMS[name])
    ran = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    started = [json.loads(line) for line in ran.stdout.splitlines()]
    commands = read(tmp_path, PROGRAMS[name], "serve.py").commands
    assert not [word for each in commands for word in each.words if word.unresolved]
    own = ("MC_", "MOONCAKE_", "CUDA_")
    assert [
        [
            [word.text for word in each.words],
            {k: v.text for k, v in each.environment.items() if k.startswith(own)},
        ]
        for each in commands
    ] == started


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("if args.pd:\n    run(['mooncake_master'])\n", "nothing here decides args.pd"),
        ("for each in hosts:\n    run(['mooncake_master'])\n", "how often for each in hosts goes"),
        ("while going():\n    run(['mooncake_master'])\n", "nothing here decides going()"),
        (
            "def start():\n    run(['mooncake_master'])\nif on:\n    start()\n",
            "nothing here decides on",
        ),
    ],
)
def test_what_nothing_decides_is_a_doubt_of_what_it_starts(
    text: str, said: str, tmp_path: Path
) -> None:
    (command,) = read(tmp_path, text, "serve.py").commands
    assert said in command.doubts[0].text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("tp_size()", "tp_size()"),
        ("os.environ['TP']", "TP"),
        ("f'{tp}'", "f'{tp}'"),
        ("1 / 2", "1 / 2"),
    ],
)
def test_what_is_not_known_stays_open(value: str, shown: str, tmp_path: Path) -> None:
    text = f"import os, sglang\nsglang.Engine(model_path='m', tp_size={value})\n"
    (command,) = read(tmp_path, text, "serve.py").commands
    assert command.words[-1].unresolved == (shown,)


@pytest.mark.parametrize(
    "text",
    [
        "load_dotenv()\nrun(['mooncake_client'])",
        "load_dotenv(find_dotenv())\nrun(['mooncake_client'])",
        "os.environ.update(dotenv_values())\nrun(['mooncake_client'])",
        "env = os.environ.copy()\nenv.update(load())\nrun(['mooncake_client'], env=env)",
        "run(['mooncake_client'], env=load())",
        "run(['mooncake_client'], env={**os.environ, **load(), 'A': '1'})",
        "run(['mooncake_client'], env=os.environ | load())",
        "env = {**os.environ, **load()}\nrun(['mooncake_client'], env=env)",
        "env = dict(os.environ, **load())\nrun(['mooncake_client'], env=env)",
    ],
)
def test_variables_that_are_not_read_may_hold_the_master(text: str, tmp_path: Path) -> None:
    (command,) = read(tmp_path, text, "serve.py").commands
    assert command.environment["MOONCAKE_MASTER"].unresolved == ("MOONCAKE_MASTER",)


def test_env_none_is_the_programs_own(tmp_path: Path) -> None:
    text = "os.environ['MC_A'] = '1'\nrun(['mooncake_client'], env=None)"
    (command,) = read(tmp_path, text, "serve.py").commands
    assert {name: word.text for name, word in command.environment.items()} == {"MC_A": "1"}


def test_a_shell_s_line_is_read_as_one_and_nothing_runs(tmp_path: Path) -> None:
    never = tmp_path / "never"
    text = f"import os\nos.system('touch {never}; mooncake_master --rpc_port 7')\n"
    names = [each.words[0].text for each in read(tmp_path, text, "serve.py").commands]
    assert names == ["touch", "mooncake_master"]
    assert not never.exists()


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'\n" + "a = f'{a}{a}'\n" * 40,
        "a = {}\n" + "a = {'a': a, 'b': a}\n" * 40 + "run(['x', json.dumps(a)])\n",
        "def f(x):\n    f(x)\n    f(x)\nf(1)\n",
        "def f():\n    g()\n    g()\ndef g():\n    h()\n    h()\ndef h():\n    f()\nf()\n" * 300,
        "for a in range(10**18):\n    run(['x'])\n",
        "run(['x', str(2 ** 10 ** 10)])\n",
    ],
)
def test_a_program_that_grows_or_goes_on_is_refused_or_read_soon(text: str, tmp_path: Path) -> None:
    with contextlib.suppress(SourceError):
        read(tmp_path, text, "serve.py")
