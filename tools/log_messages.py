#!/usr/bin/env python3
"""Say which error messages of a release the tables of preflight/server_logs know, and which are
new.

    tools/log_messages.py mooncake 0.3.13.post1     the wheel: strings of its objects, its Python
    tools/log_messages.py sglang 0.5.23             the modules of HiCache, L3, PD and arguments
    tools/log_messages.py sglang FOLDER --all       an unpacked wheel; known and left out too

A message is known where a row of the tables finds it, left out where log_messages.toml gives the
reason, and new else; with new ones it exits with 1. Of a compiled message
only the fixed parts are in the object, each by itself.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

# What is printed in place of a value.
GAP = ".."
# Modules of SGLang whose messages are looked at; of Mooncake it is all of its Python.
SGLANG = re.compile(
    r"srt/(?:mem_cache|disaggregation|arg_groups|server_args|managers/cache_controller|"
    r"distributed/device_communicators/mooncake)"
)
_FAULT = re.compile(
    r"\b(?:[Ff]ail\w*|[Ee]rror|[Ii]nvalid|[Cc]annot|[Uu]nable|[Nn]ot|[Uu]nsupported|[Mm]issing|"
    r"exceed\w*|[Mm]ismatch|[Tt]imed? ?out|expired|[Rr]efus\w+|denied|[Ii]gnor\w+|[Cc]orrupt\w*)\b"
)
_STRING = re.compile(rb"[\x20-\x7e\t]{10,400}")
# A part of a text for people: two words, and no symbol, path or format of another language.
_CODE = re.compile(r"[{}<>;]|::|%\d|\$")
_WORDS = re.compile(r"[A-Za-z]{2,}[ :]+[A-Za-z\[(]")
LEFT_OUT = ROOT / "tools" / "log_messages.toml"
# Looked at last: they have the engine's strings compiled in, too.
_OTHER = re.compile(r"^(?:_?ep|_?pg|libmooncake|transfer_engine)")


def texts_of_python(source: str) -> Iterator[str]:
    """Yield what is raised, asserted, or logged as an error or warning, with gaps for values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            said = node.exc.args[0]
        elif isinstance(node, ast.Assert) and node.msg is not None:
            said = node.msg
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("error", "warning", "exception", "critical", "warning_once")
            and node.args
        ):
            said = node.args[0]
        else:
            continue
        text = " ".join(re.sub(r"%[-\d.]*[a-z]|\{[^}]*\}", GAP, _joined(said)).split())
        if _WORDS.search(text):
            yield text


def _joined(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_joined(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        right = _joined(node.right) if isinstance(node.op, ast.Add) else ""
        return _joined(node.left) + right
    return GAP


def texts_of_object(content: bytes) -> Iterator[str]:
    """Yield the strings of a compiled object that are parts of messages of a fault."""
    for found in _STRING.findall(content):
        text = found.decode("ascii").strip()
        if _FAULT.search(text) and _WORDS.search(text) and not _CODE.search(text):
            yield text


def messages(product: str, folder: Path) -> dict[str, str]:
    """Return the messages of a release, each with a file that has it."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*"), key=lambda file: (bool(_OTHER.match(file.name)), file)):
        name = str(path.relative_to(folder))
        texts: Iterator[str] = iter(())
        own = SGLANG.search(name) if product == "sglang" else name.startswith("mooncake/")
        if path.suffix == ".py" and own:
            if "/test" not in name:
                texts = texts_of_python(path.read_text(encoding="utf-8", errors="replace"))
        elif own and (path.suffix == ".so" or path.name in ("mooncake_master", "mooncake_client")):
            texts = texts_of_object(path.read_bytes())
        for text in texts:
            found.setdefault(text, name)
    return found


class Tables:
    """What the tables know."""

    def __init__(self) -> None:
        from preflight.server_logs.patterns import read_patterns

        self.patterns = read_patterns()
        self.parts = "\n".join(
            part for each in self.patterns for part in (*each.find, each.regex, each.example)
        ).replace("\\", "")
        self.finds = [part for each in self.patterns for part in each.find if len(part) >= 12]

    def knows(self, text: str, compiled: bool) -> bool:
        """Return whether a row finds a message; of a compiled one a part has to be in a row."""
        from preflight.server_logs.search import Search

        search = Search()
        search.add(f"{text}\n{text.replace(GAP, '12')}\n")
        part = text.strip(" :,=.[]'\"")
        if search.hits or not compiled:
            return bool(search.hits)
        inside = any(each in text for each in self.finds)
        return inside or (len(part) >= 10 and part in self.parts)


class LeftOut:
    """What the tables leave out, and why."""

    def __init__(self) -> None:
        blocks = tomllib.loads(LEFT_OUT.read_text(encoding="utf-8"))["left_out"]
        self.rules = [
            (re.compile(rule, re.IGNORECASE), block["why"])
            for block in blocks
            for rule in block.get("rules", ())
        ]
        self.texts = {
            text: block["why"]
            for block in blocks
            for text in block.get("texts", "").strip("\n").split("\n")
        }

    def why(self, name: str, text: str) -> str:
        """Return why a message of a file is left out, or ""."""
        of_rule = (why for rule, why in self.rules if rule.search(f"{name}\t{text}"))
        return self.texts.get(text) or next(of_rule, "")


def release_folder(product: str, release: str) -> Path:
    """Return the unpacked wheel of a release, or the folder that was given; fetched once."""
    if Path(release).is_dir():
        return Path(release)
    if product == "sglang":
        from sglang_wheels import unpacked

        return unpacked(release)
    from write_mooncake_flags import installed

    return installed(release)


def decided(product: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield of each message "known", why it is left out or "new", its file and its text."""
    tables, left_out = Tables(), LeftOut()
    for text, name in messages(product, folder).items():
        known = tables.knows(text, compiled=not name.endswith(".py"))
        yield "known" if known else left_out.why(name, text) or "new", name, text


def main() -> int:
    """Print the messages of each release that are new, and how many are known and left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("product", choices=("mooncake", "sglang"))
    parser.add_argument("release", nargs="+", help="a release, or the folder of its unpacked wheel")
    parser.add_argument("--all", action="store_true", help="what is known and left out, too")
    arguments = parser.parse_args()
    new = 0
    for release in arguments.release:
        counts: Counter[str] = Counter()
        for why, name, text in decided(
            arguments.product, release_folder(arguments.product, release)
        ):
            counts[why] += 1
            if arguments.all or why == "new":
                print(f"{why}\t{name}\t{text[:200]}")
        for why, count in counts.most_common():
            print(f"# {release}: {count} {why}")
        new += counts["new"]
    return int(new > 0)


if __name__ == "__main__":
    sys.exit(main())
