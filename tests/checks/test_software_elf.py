"""The ELF reader and the search for libraries, held against ldd on real and on made files."""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from checks.software.calls import CACHE, Loader, libraries, program, read_cache, read_elf

pytestmark = pytest.mark.slow

LDD, GCC = shutil.which("ldd"), shutil.which("gcc")
needs_ldd = pytest.mark.skipif(LDD is None, reason="no ldd here")
needs_gcc = pytest.mark.skipif(LDD is None or GCC is None, reason="no gcc and ldd here")


def ldd_missing(path: str) -> set[str]:
    """What ldd does not find, in the environment as it is now."""
    assert LDD is not None
    run = subprocess.run([LDD, path], capture_output=True, text=True, check=False)
    return {line.split()[0] for line in run.stdout.splitlines() if "not found" in line}


def ours(path: str) -> set[str]:
    return {name for name, _ in Loader().missing(path)}


REAL = [
    os.path.realpath(sys.executable),
    *sorted(glob.glob(f"{sysconfig.get_path('stdlib')}/lib-dynload/*.so"))[:2],
    *(path for path in ("/bin/bash", "/usr/bin/curl") if os.path.exists(path)),
]


@needs_ldd
@pytest.mark.parametrize("path", REAL, ids=os.path.basename)
def test_this_machines_own_files(path: str) -> None:
    """Programs and modules that are in use here: ldd and we agree."""
    assert ours(path) == ldd_missing(path)
    elf = read_elf(path)
    assert elf is not None
    assert LDD is not None
    run = subprocess.run([LDD, path], capture_output=True, text=True, check=False)
    listed = {line.split()[0] for line in run.stdout.splitlines() if "=>" in line}
    assert listed >= {name for name in elf.needed if not name.startswith("ld-linux")}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
@pytest.mark.parametrize("path", REAL, ids=os.path.basename)
def test_build_ids_are_readelfs(path: str) -> None:
    """Of programs and libraries, those without one included."""
    run = subprocess.run(["readelf", "-nW", path], capture_output=True, text=True, check=True)
    ids = [line.split()[-1] for line in run.stdout.splitlines() if "Build ID:" in line]
    elf = read_elf(path)
    assert elf is not None
    assert elf.build_id == (ids[0] if ids else "")


@needs_gcc
@pytest.mark.parametrize("release", ["0.3.14", "0.3.15.dev1+git1a2b3c"])
def test_a_program_holds_what_its_version_flag_prints(tmp_path: Path, release: str) -> None:
    """As Mooncake's CMake writes it; other text of that form before it does not count."""
    source = tmp_path / "master.c"
    source.write_text(f'const char said[] = "{release} (git: c7ae97f)"; int main() {{ return 3; }}')
    built = tmp_path / "mooncake_master"
    assert GCC is not None
    build_id = "-Wl,--build-id=0x00112233445566778899aabbccddeeff00112233"
    subprocess.run([GCC, "-o", str(built), build_id, str(source)], check=True)
    known = {"build_id": "00112233445566778899aabbccddeeff00112233", "release": release}
    assert program(str(built)) == known
    source.write_text("int main() { return 3; }")
    subprocess.run([GCC, "-o", str(built), build_id, str(source)], check=True)
    assert program(str(built)) == {**known, "release": ""}


@needs_ldd
def test_the_cache_is_ldconfigs() -> None:
    """Every library of the interpreter that ldd finds by the cache is in it, at the same place."""
    cache = read_cache(CACHE)
    if not cache:
        pytest.skip("no cache of the new format here")
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if ldconfig is None:
        pytest.skip("no ldconfig here")
    run = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True)
    listed: dict[str, list[str]] = {}
    for line in run.stdout.splitlines()[1:]:
        name, arrow, target = line.strip().partition(" => ")
        if arrow:
            listed.setdefault(name.split()[0], []).append(target)
    assert cache == listed


def compile_library(folder: Path, name: str, needs: list[Path] | None = None, *flags: str) -> Path:
    """A shared library that needs others; the linker needs to see them, the loader may not."""
    assert GCC is not None
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    source.write_text(f"int {name.replace('.', '_')}(void) {{ return 1; }}\n")
    path = folder / f"lib{name}.so"
    command = [GCC, "-shared", "-fPIC", "-nostdlib", "-o", str(path), str(source)]
    command += [f"-Wl,-soname,lib{name}.so", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined"]
    command += [str(need) for need in needs or []]
    subprocess.run([*command, *flags], check=True)
    return path


RPATH = ("-Wl,--disable-new-dtags", "-Wl,-rpath")
RUNPATH = ("-Wl,--enable-new-dtags", "-Wl,-rpath")


@needs_gcc
@pytest.mark.parametrize("kind", [RPATH, RUNPATH], ids=["rpath", "runpath"])
@pytest.mark.parametrize(
    "path", ["$ORIGIN/deep", "${ORIGIN}/deep", "/nowhere", "/nowhere:$ORIGIN/deep"]
)
def test_a_library_beside_the_file(tmp_path: Path, kind: tuple[str, str], path: str) -> None:
    """$ORIGIN in both forms, and lists."""
    leaf = compile_library(tmp_path / "deep", "leaf")
    top = compile_library(tmp_path, "top", [leaf], kind[0], f"{kind[1]},{path}")
    assert ours(str(top)) == ldd_missing(str(top))


@needs_gcc
@pytest.mark.parametrize("kind", [RPATH, RUNPATH], ids=["rpath", "runpath"])
def test_what_a_library_needs_in_turn(tmp_path: Path, kind: tuple[str, str]) -> None:
    """An RPATH serves the libraries below, a RUNPATH only the file itself."""
    leaf = compile_library(tmp_path / "deep", "leaf")
    middle = compile_library(tmp_path / "deep", "middle", [leaf])
    top = compile_library(tmp_path, "top", [middle], kind[0], f"{kind[1]},$ORIGIN/deep")
    missing = ours(str(top))
    assert missing == ldd_missing(str(top))
    assert missing == (set() if kind is RPATH else {"libleaf.so"})
    assert dict(Loader().missing(str(top))).get("libleaf.so") in (None, "libmiddle.so")


@needs_gcc
def test_a_runpath_switches_off_inherited_rpaths(tmp_path: Path) -> None:
    """The RPATH of the needing file does not serve an object that has a RUNPATH."""
    leaf = compile_library(tmp_path / "deep", "leaf")
    flags = (RUNPATH[0], f"{RUNPATH[1]},/nowhere")
    middle = compile_library(tmp_path / "deep", "middle", [leaf], *flags)
    top = compile_library(tmp_path, "top", [middle], RPATH[0], f"{RPATH[1]},$ORIGIN/deep")
    assert ours(str(top)) == ldd_missing(str(top)) == {"libleaf.so"}


@needs_gcc
def test_ld_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As this process has it."""
    leaf = compile_library(tmp_path / "deep", "leaf")
    top = compile_library(tmp_path, "top", [leaf])
    assert ours(str(top)) == ldd_missing(str(top)) == {"libleaf.so"}
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}/deep")
    assert ours(str(top)) == ldd_missing(str(top)) == set()


@needs_gcc
def test_a_damaged_library_is_not_found(tmp_path: Path) -> None:
    """A file of the right name that is no library does not count."""
    leaf = compile_library(tmp_path / "deep", "leaf")
    top = compile_library(tmp_path, "top", [leaf], RPATH[0], f"{RPATH[1]},$ORIGIN/deep")
    leaf.write_text("not a library")
    assert ours(str(top)) == {"libleaf.so"}


@needs_gcc
def test_a_package_as_mooncake_lays_it_out(tmp_path: Path) -> None:
    """Only what a launch loads or runs is looked at, and a file names the wheel that it is of."""
    package = tmp_path / "mooncake"
    gone = compile_library(tmp_path / "gone", "nowhere")
    libraries_at = "$ORIGIN/../mooncake_transfer_engine_cuda13.libs"
    compile_library(package, "built", [gone], RPATH[0], f"{RPATH[1]},$ORIGIN:{libraries_at}")
    (package / "libbuilt.so").rename(package / "engine.so")
    shutil.copy(package / "engine.so", package / "transfer_engine_bench")
    (package / "store").mkdir()
    (package / "engine.pyi").write_text("")
    (package / "mooncake_master").write_text("#!/bin/sh\n")
    gone.unlink()
    assert libraries(str(package)) == [
        {
            "file": "engine.so",
            "missing": [["libnowhere.so", "engine.so"]],
            "rpath": ["$ORIGIN", libraries_at],
        }
    ]


def test_what_is_no_file_is_none(tmp_path: Path) -> None:
    """Missing files, folders, empty files."""
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "empty"):
        assert read_elf(str(path)) is None
    assert read_cache(str(tmp_path / "absent")) == {}
