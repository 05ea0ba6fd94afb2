"""With which kernel command line the host boots next: read as GRUB reads it.

Sources: GRUB's manual (Simple configuration, default, grubenv), the Boot Loader Specification
(entries of /boot/loader/entries, which Fedora's and RHEL's GRUB shows by blscfg).
"""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown

GRUB_FOLDERS = ("/boot/grub", "/boot/grub2")
BLS_ENTRIES = "/boot/loader/entries"
_LINUX = ("linux", "linux16", "linuxefi")


class BootEntry(NamedTuple):
    """One entry of the menu. names: of the entry and the submenus above it, the outermost first:
    number, id and title of each. words: of the kernel command line."""

    names: tuple[tuple[str, ...], ...]
    words: tuple[str, ...]


def read_next_words(root: Root) -> tuple[str, ...] | Unknown:
    """Return the command line of the entry that starts next; Unknown if no menu says it."""
    missing = Unknown("")
    for folder in GRUB_FOLDERS:
        path = f"{folder}/grub.cfg"
        menu = root.text(path)
        if isinstance(menu, Unknown):
            missing = menu
            continue
        saved = _grubenv(root, folder)
        entries = _bls(root, saved) if "blscfg" in menu else parse_menu(menu)
        return _chosen(entries, _default(menu, saved), path)
    why = f"no menu of a boot loader is read here: {missing.reason}"
    return Unknown(why, missing.absent)


def parse_menu(text: str) -> list[BootEntry]:
    """Return the entries of a grub.cfg, in order."""
    entries: list[BootEntry] = []
    above: list[tuple[str, ...] | None] = []  # None: of a function, which is no menu
    counts = [0]
    for line in text.splitlines():
        words = _words(line)
        if not words:
            continue
        if words[0] in ("menuentry", "submenu") and words[-1] == "{" and len(words) > 2:
            ids = [after for word, after in pairwise(words) if "id_option" in word]
            above.append((str(counts[-1]), *ids, words[1]))
            counts[-1] += 1
            counts.append(0)
        elif words[-1] == "{":
            above.append(None)
            counts.append(0)
        elif words == ["}"] and above:
            above.pop()
            counts.pop()
        elif words[0] in _LINUX and len(words) > 1 and above and above[-1] is not None:
            names = tuple(each for each in above if each is not None)
            entries.append(BootEntry(names, tuple(words[2:])))
    return entries


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote over several lines: no line that is looked for
        return []


def _default(menu: str, saved: dict[str, str]) -> str:
    """Return the entry that the menu takes, before any variable of grubenv is put in."""
    if "next_entry" in menu and saved.get("next_entry"):
        return saved["next_entry"]
    given = [each for each in re.findall(r'set default="([^"]*)"', menu) if "next_" not in each]
    default = given[-1] if given else "0"
    return saved.get("saved_entry", "0") if "saved_entry" in default else default


def _chosen(entries: list[BootEntry], default: str, source: str) -> tuple[str, ...] | Unknown:
    wanted = default.split(">")
    for one in entries:
        fits = (name in names for name, names in zip(wanted, one.names, strict=False))
        if len(one.names) >= len(wanted) and all(fits):
            return one.words  # of a submenu alone the first, which is its own default
    return Unknown(f"{source}: no entry is {default!r}")


def _grubenv(root: Root, folder: str) -> dict[str, str]:
    text = root.text(f"{folder}/grubenv")
    lines = [] if isinstance(text, Unknown) else text.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def _bls(root: Root, saved: dict[str, str]) -> list[BootEntry]:
    """Read the entries that have a file each, the newest version first, as in GRUB's blscfg."""
    found = []
    for name in root.listed(BLS_ENTRIES):
        path = f"{BLS_ENTRIES}/{name}"
        text = root.text(path)
        if isinstance(text, Unknown) or not name.endswith(".conf"):
            continue
        keys = dict(
            line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) > 1
        )
        options = keys.get("options", "").replace("$kernelopts", saved.get("kernelopts", ""))
        order = [int(part) if part.isdecimal() else -1 for part in re.split(r"[.-]", name)]
        found.append((order, name.removesuffix(".conf"), keys.get("title", ""), options))
    found.sort(reverse=True)
    return [
        BootEntry(((str(at), stem, title),), tuple(options.split()))
        for at, (_, stem, title, options) in enumerate(found)
    ]
