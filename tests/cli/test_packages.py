"""What is handed to others: the wheel, the one file, the image, each run as they would run it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from preflight.base.bundle import script_pythons
from preflight.cli.main import run
from tests.paths import ROOT

NOBODY = 65534
PARTS = ("checks", "preflight", "mooncake_preflight.py", "pyproject.toml", "README.md", "LICENSE")


def started_by_all(python: str) -> bool:
    """Whether nobody may start it: root's own may lie where only root is."""
    return all(above.stat().st_mode & 0o001 for above in Path(python).resolve().parents)


def public_python() -> str:
    """A Python of this release that nobody may start."""
    if os.geteuid() != 0 or started_by_all(sys.executable):
        return sys.executable
    found = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")
    if found is None:
        pytest.skip("no Python of this release that nobody may start")
    return found


def python_of(release: str, folder: Path) -> str:
    """A Python of that release that nobody may start: the machine's, or a copy of pyenv's."""
    name = f"python{release}"
    found = shutil.which(name, path="/usr/local/bin:/usr/bin")
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = found or next(map(str, sorted(kept.glob(f"{release}.*/bin/{name}"))), None)
    if found is None:
        pytest.skip(f"no Python {release} here")
    if os.geteuid() != 0 or started_by_all(found):
        return found
    left_out = shutil.ignore_patterns("test", "site-packages", "config-*", "share")
    shutil.copytree(Path(found).parents[1], folder / "python", symlinks=True, ignore=left_out)
    return str(folder / "python/bin" / name)


def as_nobody(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run as a user without a home and without a name, where this user may; else as this one."""
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    # Below a device even root makes no folder. A copied Python names its library where it was made.
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(folder), "HOME": "/dev/null/home"}
    environment["LD_LIBRARY_PATH"] = str(folder / "python/lib")
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True, **user}
    return subprocess.run(words, timeout=300, **options)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder of nobody's, which nobody may come to: pytest's own is for its user alone."""
    with TemporaryDirectory(prefix="mooncake-preflight-test.", dir="/tmp") as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "open"
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


# The one file -----------------------------------------------------------------------------------


@pytest.fixture
def one_file(open_folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = open_folder / "mooncake-preflight.pyz"
    assert run(["bundle", str(path)]) == 0
    assert "bytes; python3" in capsys.readouterr().out
    assert os.access(path, os.X_OK)
    return str(path)


@pytest.mark.slow
def test_the_one_file_needs_a_python_alone(one_file: str, open_folder: Path) -> None:
    """-I -S: no package of this machine is seen. Nothing of it stays."""
    python = (public_python(), "-I", "-S", one_file)
    said = as_nobody(open_folder, *python, "check", "--root", "demo:h800", "--format", "html")
    assert (said.returncode, "memlock.limit" in said.stdout) == (2, True), said.stderr
    assert (
        as_nobody(open_folder, *python, "--version").stdout == "mooncake-preflight, version 0.1.0\n"
    )
    said = as_nobody(open_folder, *python, "explain", "Failed to register memory")
    assert "mooncake.register-enomem" in said.stdout
    said = as_nobody(open_folder, *python, "exec", "--", "sh", "-c", "ls $TMPDIR")
    assert (said.returncode, said.stdout) == (0, "mooncake-preflight.pyz\n"), said.stderr
    assert [each.name for each in open_folder.iterdir()] == ["mooncake-preflight.pyz"]
    # Where Python has no tomllib, there is tomli.
    code = f"import sys; sys.path.insert(0, {one_file!r}); import tomli; print(tomli.loads('a=1'))"
    said = as_nobody(open_folder, *python[:-1], "-c", code)
    assert said.stdout == "{'a': 1}\n", said.stderr


@pytest.mark.slow
def test_the_one_file_reads_shell_scripts(one_file: str, open_folder: Path) -> None:
    """With the Python that made it; a compiled reader for another is carried if it lies beside."""
    server = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 8"
    (open_folder / "launch.sh").write_text(f"exec {server}\n")
    python = (public_python(), "-I", "-S", one_file)
    said = as_nobody(open_folder, *python, "check", "--root", "demo:h800", "launch.sh")
    assert "read: 1 SGLang server" in said.stdout, said.stderr
    words = ("exec", "--fail-on", "warn", "--", "bash", "-c", f"{server} --page-size 64")
    said = as_nobody(open_folder, *python, *words)
    assert "read: 1 SGLang server" in said.stderr
    with zipfile.ZipFile(one_file) as archive:
        compiled = re.findall(r"cpython-3(\d+)", " ".join(archive.namelist()))
    assert {f"3.{minor}" for minor in compiled} == {*script_pythons()}


# The wheel --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This program's wheel, of no Python of its own: made once for all of them."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, source / part)
    make(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(source))
    (made,) = folder.glob("*-py3-none-any.whl")
    return made


def make(*words: str) -> None:
    """Run pip, which needs a network; where it has none, skip."""
    made = subprocess.run([*words, "-q"], capture_output=True, text=True, timeout=600)
    if made.returncode:
        pytest.skip(f"pip cannot make wheels here: {made.stderr.strip()[-200:]}")


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
# The oldest and the newest.
@pytest.mark.parametrize("release", ["3.10", "3.13"])
def test_the_wheel_runs_readme_s_first_command_offline(
    release: str, open_folder: Path, wheel: Path
) -> None:
    """As nobody, without a home, from a folder of wheels, on each Python that is supported."""
    wheels, python = open_folder / "wheels", python_of(release, open_folder)
    nobody = partial(as_nobody, open_folder)
    said = nobody(python, "-m", "venv", "v")
    assert said.returncode == 0, said.stderr
    make(str(open_folder / "v/bin/pip"), "wheel", "-w", str(wheels), str(wheel))
    os.chmod(wheels, 0o755)
    said = nobody("v/bin/python", "-c", "import os, sys; print(*sys.version_info[:2], os.getuid())")
    user = os.geteuid() or NOBODY
    assert said.stdout == f"{release.replace('.', ' ')} {user}\n", said.stderr
    options = "-q --no-compile --no-cache-dir --no-index --find-links wheels".split()
    said = nobody("v/bin/pip", "install", *options, "mooncake-preflight")
    assert said.returncode == 0, said.stderr
    line = next(one for one in (ROOT / "README.md").read_text().splitlines() if "-m venv" in one)
    said = nobody(*shlex.split(line.split(" && ")[-1].replace(".venv", "v")))
    assert (said.returncode, said.stdout.partition(" ")[0]) == (0, "FITS"), said.stderr
    said = nobody("v/bin/mooncake-preflight", "check", "--root", "demo:h800", "-q")
    assert said.returncode == 2
    assert said.stdout.startswith("FAIL: launch.sh will not start on demo:h800")


# The image --------------------------------------------------------------------------------------


def test_the_image_has_all_that_the_wheel_is_made_of_and_ends_in_the_command() -> None:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    copied = [words for name, rest in lines if name == "COPY" for words in [rest.split()]]
    sources = {word for words in copied if not words[0].startswith("--") for word in words[:-1]}
    assert sources == set(PARTS)
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{part}" for part in PARTS} <= set(allowed)
    (entry,) = (rest for name, rest in lines if name == "ENTRYPOINT")
    (command,) = (rest for name, rest in lines if name == "CMD")
    assert [*json.loads(entry), *json.loads(command)] == ["mooncake-preflight", "check"]
    assert sum(name == "FROM" for name, _ in lines) == 2


@pytest.mark.slow
def test_the_image_is_built_where_there_is_a_builder() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no docker daemon")
    name = "mooncake-preflight:test"
    made = subprocess.run([docker, "build", "-q", "-t", name, str(ROOT)], capture_output=True)
    assert made.returncode == 0, made.stderr
    words = [docker, "run", "--rm", name, "check", "--root", "demo:h800", "-q"]
    assert subprocess.run(words, capture_output=True).returncode == 2
