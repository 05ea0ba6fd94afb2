"""What Mooncake's compiled files need of the loader, without loading them.

ELF headers are read here because they are no text; the search for a library follows ld.so(8): the
needing object's DT_RPATH and those of what needed it (unless it has a DT_RUNPATH), LD_LIBRARY_PATH,
its DT_RUNPATH, /etc/ld.so.cache, the standard folders.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import Any, NamedTuple

CACHE = "/etc/ld.so.cache"
# Debian's and Red Hat's; glibc itself has one pair of them built in.
STANDARD_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# The files that programs of a launch load or run; others in the wheel are for other uses.
WANTED = ("engine", "store", "_store", "mooncake_master", "mooncake_client")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 1, 5, 15, 29
_DYNAMIC_LIMIT_BYTES = 1 << 16
_STRINGS_LIMIT_BYTES = 1 << 22
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"


class Elf(NamedTuple):
    """The dynamic section of one file; ``machine`` is e_machine, so as to skip foreign ones."""

    machine: int
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


def search() -> dict[str, Any]:
    """Return where this interpreter looks for modules, and the programs that are on PATH."""
    return {
        "interpreter": sys.executable,
        "folders": [os.path.abspath(folder) for folder in sys.path if folder],
        "on_path": {name: _on_path(name) for name in ("python3", "numactl", "mooncake_master")},
    }


def _on_path(name: str) -> str | None:
    """Return the real file of a program on PATH."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = os.path.join(folder, name)
        if folder and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def libraries(package: str) -> list[dict[str, Any]]:
    """Return what is not found of each compiled file of a ``mooncake`` folder that a launch uses.

    ``missing`` is pairs of a library and the file that needs it; ``rpath`` is the file's own, which
    names the wheel that it came in.
    """
    loader = Loader()
    found = []
    for name in sorted(os.listdir(package)):
        if name.split(".")[0] not in WANTED or name.endswith((".py", ".pyi")):
            continue
        path = os.path.join(package, name)
        if not os.path.isfile(path):
            continue
        elf = read_elf(path)
        if elf is not None:
            missing = [list(pair) for pair in loader.missing(path)]
            own = [*elf.rpath, *elf.runpath]
            found.append({"file": name, "missing": missing, "rpath": own})
    return found


class Loader:
    """Finds libraries as ld.so does; what it has read once it does not read again."""

    def __init__(self) -> None:
        self._elves: dict[str, Elf | None] = {}
        self._cache: dict[str, list[str]] | None = None
        paths = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        self._given = [path or "." for path in paths.split(":")] if paths else []

    def missing(self, path: str) -> list[tuple[str, str]]:
        """Return libraries that ``path`` needs, itself or through others, and that are nowhere."""
        first = self._elf(path)
        if first is None:
            return []
        missing: list[tuple[str, str]] = []
        seen: set[str] = set()
        waiting = [(path, first, self._rpath(path, first, ()))]
        while waiting:
            owner, elf, inherited = waiting.pop(0)
            for name in elf.needed:
                if name in seen:
                    continue
                seen.add(name)
                found = self._find(name, owner, elf, inherited, first.machine)
                if found is None:
                    missing.append((name, os.path.basename(owner)))
                    continue
                target, library = found
                waiting.append((target, library, self._rpath(target, library, inherited)))
        return missing

    def _rpath(self, path: str, elf: Elf, inherited: tuple[str, ...]) -> tuple[str, ...]:
        """Return the RPATHs that count for what ``path`` needs.

        Its own, and those of its needers.
        """
        return (*_expand(elf.rpath, path), *inherited) if not elf.runpath else inherited

    def _find(
        self, name: str, owner: str, elf: Elf, rpath: tuple[str, ...], machine: int
    ) -> tuple[str, Elf] | None:
        if "/" in name:
            candidates = [name]
        else:
            before = () if elf.runpath else rpath
            folders = [*before, *self._given, *_expand(elf.runpath, owner)]
            candidates = [os.path.join(folder, name) for folder in folders]
            candidates += self._cached().get(name, [])
            candidates += [os.path.join(folder, name) for folder in STANDARD_FOLDERS]
        for candidate in candidates:
            library = self._elf(candidate)
            if library is not None and library.machine == machine:
                return candidate, library
        return None

    def _elf(self, path: str) -> Elf | None:
        if path not in self._elves:
            self._elves[path] = read_elf(path)
        return self._elves[path]

    def _cached(self) -> dict[str, list[str]]:
        if self._cache is None:
            self._cache = read_cache(CACHE)
        return self._cache


def _expand(folders: tuple[str, ...], path: str) -> tuple[str, ...]:
    origin = os.path.dirname(os.path.realpath(path))
    return tuple(
        folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders
    )


def read_elf(path: str) -> Elf | None:
    """Return the dynamic section of a 64-bit little-endian ELF file; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read_elf(descriptor)
    except (OSError, struct.error, ValueError, OverflowError):
        return None  # truncated or damaged: the loader refuses it too
    finally:
        os.close(descriptor)


def _read_elf(descriptor: int) -> Elf | None:
    header = os.pread(descriptor, 64, 0)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return None
    (machine,) = struct.unpack_from("<H", header, 18)
    (program_offset,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, entries = struct.unpack_from("<HH", header, 54)
    table = os.pread(descriptor, entry_bytes * entries, program_offset)
    loads: list[tuple[int, int, int]] = []
    dynamic = b""
    for index in range(entries):
        kind, _, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", table, index * entry_bytes
        )
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = os.pread(descriptor, min(size, _DYNAMIC_LIMIT_BYTES), offset)
    tags = [
        struct.unpack_from("<qQ", dynamic, offset)
        for offset in range(0, len(dynamic) // 16 * 16, 16)
    ]
    strings = next((value for tag, value in tags if tag == _DT_STRTAB), None)
    if strings is None:
        return Elf(machine, (), (), ())
    place = next((at for at in loads if at[0] <= strings < at[0] + at[2]), None)
    if place is None:
        return None
    start = strings - place[0] + place[1]
    size = min(place[0] + place[2] - strings, _STRINGS_LIMIT_BYTES)
    block = os.pread(descriptor, size, start)

    def texts(wanted: int) -> tuple[str, ...]:
        return tuple(
            block[value : block.index(b"\0", value)].decode(errors="replace")
            for tag, value in tags
            if tag == wanted
        )

    def folders(wanted: int) -> tuple[str, ...]:
        return tuple(folder for text in texts(wanted) for folder in text.split(":") if folder)

    return Elf(machine, texts(_DT_NEEDED), folders(_DT_RPATH), folders(_DT_RUNPATH))


def read_cache(path: str) -> dict[str, list[str]]:
    """Return ``/etc/ld.so.cache`` as library -> files, the preferred first; empty where there is
    none.

    Source: glibc sysdeps/generic/dl-cache.h (struct cache_file_new); an old format may precede.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    start = data.find(_CACHE_MAGIC)
    if start < 0 or len(data) < start + 48:
        return {}
    (count,) = struct.unpack_from("<I", data, start + 20)
    found: dict[str, list[str]] = {}
    for index in range(min(count, (len(data) - start - 48) // 24)):
        _, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * index)
        name, target = _string(data, start + key), _string(data, start + value)
        if name and target:
            found.setdefault(name, []).append(target)
    return found


def _string(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start:end].decode(errors="replace") if end >= 0 else ""
