"""What Mooncake's compiled files need of the loader, and whose they are, without loading them.

ELF headers are read here because they are no text; the search for a library follows ld.so(8): the
needing object's DT_RPATH and those of what needed it (unless it has a DT_RUNPATH), LD_LIBRARY_PATH,
its DT_RUNPATH, /etc/ld.so.cache, the standard folders.
"""

import mmap
import os
import re
import shutil
import stat
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from checks.framework.installed import distribution_of, is_mooncake
from checks.framework.regex import regex
from checks.software.facts import TRANSPORTS

CACHE = "/etc/ld.so.cache"
# Debian's and Red Hat's; glibc itself has one pair of them built in.
STANDARD_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
# The files that programs of a launch load or run; others in the wheel are for other uses.
WANTED = ("engine", "store", "_store", "mooncake_master", "mooncake_client")
# Those of them that are programs: the same file for every Python, and with --version.
PROGRAMS = ("mooncake_master", "mooncake_client")
# What stands in a compiled file only where that part is built in: its class, or TENT's namespace.
# Read in the wheels 0.3.9 to 0.3.14, the EFA ones too, and in Mooncake's transfer_engine.cpp.
PARTS = {"efa": b"EfaTransport", "redis": b"RedisStoragePlugin", "tent": b"8mooncake4tent"}
# What builds with BUILD_SHARED_LIBS have their transports in, beside engine and store or elsewhere.
_SHARED = "libtransfer_engine.so"
_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_NT_GNU_BUILD_ID = 3
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 15, 29
_DYNAMIC_LIMIT_BYTES = 1 << 16
_STRINGS_LIMIT_BYTES = 1 << 22
# A program with its debug information has 91 MB (0.3.6).
_PROGRAM_LIMIT_BYTES = 1 << 28
# Files of a wheel that may be others in as many bytes: a patched line, and engine.so (0.3.12 and
# 0.3.12.post1). store.so has another size in each release, and programs have their build ids.
_HASHED = regex(r".*\.py|mooncake/engine\.[^/]*")
_RELEASE = re.compile(rb"\d+\.\d+\.\d+[\w.+-]*$")
_HEAD_BYTES = 1 << 12
_SCRIPT = re.compile(
    rb"#!\s*(?:/bin/sh\n\'\'\'exec' (?:\"([^\"\n]+)\"|(\S+))|(?:/usr/bin/env\s+)?(\S+))"
)
# What Mooncake's wheels install for programs to load; scripts in bin/ name another interpreter.
_OWN = regex(r"mooncake/|mooncake_transfer_engine\w*\.libs/")
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"


class Elf(NamedTuple):
    """The dynamic section of an ELF file, its e_machine, and the linker's build id or ""."""

    machine: int
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    build_id: str = ""


def search() -> dict[str, Any]:
    """Return this interpreter, its module folders, and the paths (or None) of programs on PATH."""
    names = ("python3", "numactl", "mooncake_master")
    # An empty part of PATH, or none, does not mean the current or the system's own folders here.
    path = os.pathsep.join(filter(None, os.environ.get("PATH", "").split(os.pathsep)))
    return {
        "interpreter": sys.executable,
        "folders": [os.path.abspath(folder) for folder in sys.path if folder],
        "on_path": {name: shutil.which(name, path=path) if path else None for name in names},
    }


def libraries(package: str) -> list[dict[str, Any]]:
    """Return a row for each compiled file of the ``mooncake`` folder ``package`` that launches use.

    ``file``: its name. ``missing``: pairs of a library and the file that needs it. ``rpath``: its
    folders of libraries, which name the wheel that it came in. A program's row has the keys of
    ``_identity`` too.
    """
    loader = Loader()
    files = []
    for name, path in _wanted(package):
        elf = read_elf(path)
        if elf is not None:
            missing = [list(pair) for pair in loader.missing(path)]
            search_path = [*elf.rpath, *elf.runpath]
            identity = _identity(path, elf) if name in PROGRAMS else {}
            files.append({"file": name, "missing": missing, "rpath": search_path, **identity})
    return files


def _wanted(package: str) -> list[tuple[str, str]]:
    """Return name and path of each file of a ``mooncake`` folder that a launch loads or runs."""
    names = [name for name in sorted(os.listdir(package)) if name.split(".")[0] in WANTED]
    paths = [os.path.join(package, name) for name in names if not name.endswith((".py", ".pyi"))]
    return [(os.path.basename(path), path) for path in paths if os.path.isfile(path)]


def parts(package: str) -> list[str]:
    """Return the names of ``PARTS`` that are built into the compiled files of a ``mooncake``
    folder, sorted.

    Raises OSError, also if the folder has no such file.
    """
    return _built_in(package, PARTS)


def transports(package: str) -> list[str]:
    """Return the names of ``TRANSPORTS`` that are built into a ``mooncake`` folder, sorted.

    Raises OSError, also if its files load the transports from another folder.
    """
    return _built_in(package, TRANSPORTS)


def _built_in(package: str, marks: Mapping[str, bytes]) -> list[str]:
    """Return the names whose mark, a regular expression, a compiled file has.

    Args:
        marks: By name.
    """
    loaded = [path for name, path in _wanted(package) if name not in PROGRAMS]
    if not loaded:
        raise FileNotFoundError(f"{package}: no compiled file")
    elves = [elf for elf in map(read_elf, loaded) if elf is not None]
    if any(_SHARED in elf.needed for elf in elves):
        loaded.append(os.path.join(package, _SHARED))
    names = set()
    for path in loaded:
        with open(path, "rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size <= _PROGRAM_LIMIT_BYTES:
                raise OSError(f"{path}: empty, or too large to be looked through")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                names |= {name for name, mark in marks.items() if re.search(mark, content)}
    return sorted(names)


def program(path: str) -> dict[str, str]:
    """Say what a file on PATH is, without running it: ``build_id`` and ``release`` ("" if not
    found) of a compiled program, ``script`` (the interpreter's path) of a script, {} of others.
    """
    elf = read_elf(path)
    if elf is not None:
        return _identity(path, elf)
    with open(path, "rb") as file:
        script = _SCRIPT.match(file.read(_HEAD_BYTES))
    return {} if script is None else {"script": os.fsdecode(script[script.lastindex or 0])}


def _identity(path: str, elf: Elf) -> dict[str, str]:
    """Return ``build_id``, and ``release``: what --version would print, or "".

    Runs nothing.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > _PROGRAM_LIMIT_BYTES:
            return {"build_id": elf.build_id, "release": ""}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            at = content.find(b" (git: ")
            version = _RELEASE.search(content[max(0, at - 40) : at]) if at >= 0 else None
    return {"build_id": elf.build_id, "release": version[0].decode() if version else ""}


def records(folder: str) -> list[dict[str, Any]]:
    """Compare the files of each Mooncake wheel in ``folder`` with the wheel's RECORD (PyPA's form).

    Of a row, ``info`` is the wheel's .dist-info. ``listed``: how many files of Mooncake RECORD
    lists, None without a RECORD. ``changed``: [name, bytes in RECORD, bytes on disk or None if
    absent] of each file that differs. Sizes are compared, and of some files the hash.
    """
    import csv

    wheels: list[dict[str, Any]] = []
    for info in sorted(os.listdir(folder)):
        wheel = distribution_of(info)
        if wheel is None or not is_mooncake(wheel[0]):
            continue
        path = os.path.join(folder, info, "RECORD")
        if not os.path.isfile(path):
            wheels.append({"info": info, "listed": None, "changed": []})
            continue
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            rows = [row for row in csv.reader(file) if len(row) == 3 and row[2].isdecimal()]
        rows = [row for row in rows if _OWN.match(row[0]) and ".." not in row[0].split("/")]
        changed = []
        for name, sha256, size in rows:
            have = _size(os.path.join(folder, name))
            if have != int(size) or (_HASHED.fullmatch(name) and not _hashed(folder, name, sha256)):
                changed.append([name, int(size), have])
        wheels.append({"info": info, "listed": len(rows), "changed": changed})
    return wheels


def _size(path: str) -> int | None:
    """Return the size of a regular file; None if it does not exist or is not regular (a pipe)."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _hashed(folder: str, name: str, listed: str) -> bool:
    """Tell whether a file has the hash ``listed`` in RECORD; True if RECORD lists none ("")."""
    import base64
    import hashlib

    with open(os.path.join(folder, name), "rb") as file:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read()).digest())
    return listed in ("", f"sha256={digest.rstrip(b'=').decode()}")


class Loader:
    """Finds libraries as ld.so does; each file is read once."""

    def __init__(self) -> None:
        self._elves: dict[str, Elf | None] = {}
        self._cache: dict[str, list[str]] | None = None
        paths = os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":")
        self._given = [path or "." for path in paths.split(":")] if paths else []

    def missing(self, path: str) -> list[tuple[str, str]]:
        """Return the libraries that ``path`` needs, directly or through other libraries, and that
        are not found: (library, name of the file that needs it).

        Returns:
            [] if ``path`` is no ELF file.
        """
        first = self._elf(path)
        missing: list[tuple[str, str]] = []
        seen: set[str] = set()
        waiting = [] if first is None else [(path, first, self._rpath(path, first, ()))]
        for owner, elf, inherited in waiting:
            for name in (name for name in elf.needed if name not in seen):
                seen.add(name)
                loaded = self._find(name, owner, elf, inherited)
                if loaded is None:
                    missing.append((name, os.path.basename(owner)))
                else:
                    waiting.append((*loaded, self._rpath(*loaded, inherited)))
        return missing

    def _rpath(self, path: str, elf: Elf, inherited: tuple[str, ...]) -> tuple[str, ...]:
        """Return the RPATHs for a file's libraries: only ``inherited`` if the file has a
        RUNPATH.
        """
        return (*_expand(elf.rpath, path), *inherited) if not elf.runpath else inherited

    def _find(
        self, name: str, owner: str, elf: Elf, rpath: tuple[str, ...]
    ) -> tuple[str, Elf] | None:
        """Find a library in the order of ld.so: RPATH, LD_LIBRARY_PATH, RUNPATH, cache, standard
        folders.

        Returns path and content, or None; a file for another processor is skipped.

        Args:
            owner, elf: Path and content of the file that needs the library.
        """
        candidates = [name]
        if "/" not in name:
            folders = [*(() if elf.runpath else rpath), *self._given, *_expand(elf.runpath, owner)]
            if self._cache is None:
                self._cache = read_cache(CACHE)
            candidates = [os.path.join(folder, name) for folder in folders]
            candidates += self._cache.get(name, [])
            candidates += [os.path.join(folder, name) for folder in STANDARD_FOLDERS]
        libraries = ((path, self._elf(path)) for path in candidates)
        return next(((p, x) for p, x in libraries if x and x.machine == elf.machine), None)

    def _elf(self, path: str) -> Elf | None:
        if path not in self._elves:
            self._elves[path] = read_elf(path)
        return self._elves[path]


def _expand(folders: tuple[str, ...], path: str) -> tuple[str, ...]:
    origin = os.path.dirname(os.path.realpath(path))
    return tuple(each.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for each in folders)


def read_elf(path: str) -> Elf | None:
    """Return the dynamic section of a 64-bit little-endian ELF file.

    Returns:
        None for any other file, and for one that is damaged or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return _read_elf(file.fileno())
    except (OSError, struct.error, ValueError, OverflowError):
        return None  # truncated or damaged: the loader refuses it too


def _read_elf(descriptor: int) -> Elf | None:
    """Read the dynamic section of an open ELF file.

    Raises struct.error or ValueError if the file is damaged.

    Returns:
        None if the file is not 64-bit little-endian, or no segment holds its strings.
    """
    header = os.pread(descriptor, 64, 0)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return None
    (machine,) = struct.unpack_from("<H", header, 18)
    (program_offset,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, entries = struct.unpack_from("<HH", header, 54)
    table = os.pread(descriptor, entry_bytes * entries, program_offset)
    loads: list[tuple[int, int, int]] = []
    dynamic = b""
    build_id = ""
    for index in range(entries):
        at = index * entry_bytes
        type_, _, offset, address, _, size, _, align = struct.unpack_from("<IIQQQQQQ", table, at)
        if type_ == _PT_LOAD:
            loads.append((address, offset, size))
        elif type_ == _PT_DYNAMIC:
            dynamic = os.pread(descriptor, min(size, _DYNAMIC_LIMIT_BYTES), offset)
        elif type_ == _PT_NOTE and not build_id:
            notes = os.pread(descriptor, min(size, _DYNAMIC_LIMIT_BYTES), offset)
            build_id = _build_id(notes, align)
    places = range(0, len(dynamic) // 16 * 16, 16)
    tags = [struct.unpack_from("<qQ", dynamic, place) for place in places]
    strings = next((value for tag, value in tags if tag == _DT_STRTAB), None)
    if strings is None:
        return Elf(machine, (), (), (), build_id)
    place = next((at for at in loads if at[0] <= strings < at[0] + at[2]), None)
    if place is None:
        return None
    start = strings - place[0] + place[1]
    # patchelf lets them reach past the segment's end, to that of its page (the wheel 0.3.12).
    size = next((value for tag, value in tags if tag == _DT_STRSZ), place[0] + place[2] - strings)
    size = min(size, _STRINGS_LIMIT_BYTES)
    block = os.pread(descriptor, size, start)

    def texts(wanted: int) -> tuple[str, ...]:
        starts = [value for tag, value in tags if tag == wanted]
        return tuple(block[at : block.index(b"\0", at)].decode(errors="replace") for at in starts)

    def folders(wanted: int) -> tuple[str, ...]:
        return tuple(folder for text in texts(wanted) for folder in text.split(":") if folder)

    return Elf(machine, texts(_DT_NEEDED), folders(_DT_RPATH), folders(_DT_RUNPATH), build_id)


def _build_id(notes: bytes, align: int) -> str:
    """Return the build id in notes (elf(5), Nhdr) as hex, or "".

    Args:
        align: Of the notes' segment.
    """
    align = 8 if align == 8 else 4
    start = 0
    while start + 12 <= len(notes):
        name_bytes, size, note_type = struct.unpack_from("<III", notes, start)
        value = start + -(-(12 + name_bytes) // align) * align
        if note_type == _NT_GNU_BUILD_ID and notes[start + 12 : start + 16] == b"GNU\0":
            return notes[value : value + size].hex()
        start = value + -(-size // align) * align
    return ""


def read_cache(path: str) -> dict[str, list[str]]:
    """Return ``/etc/ld.so.cache`` as library -> files, the preferred first.

    Source: glibc sysdeps/generic/dl-cache.h (struct cache_file_new); an old format may precede.

    Returns:
        {} if the file cannot be read or is of an unknown format.
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
    files: dict[str, list[str]] = {}
    for index in range(min(count, (len(data) - start - 48) // 24)):
        _, key, value = struct.unpack_from("<iII", data, start + 48 + 24 * index)
        name, target = _string(data, start + key), _string(data, start + value)
        if name and target:
            files.setdefault(name, []).append(target)
    return files


def _string(data: bytes, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start:end].decode(errors="replace") if end >= 0 else ""
