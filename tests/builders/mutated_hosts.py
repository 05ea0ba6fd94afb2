"""A host and a launch that are judged again and again, with one answer of the host exchanged."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from checks.framework.archive import TreeRoot
from checks.framework.finding import Finding
from checks.framework.needs import LaunchNeeds
from checks.framework.recording import Answers, RecordingRoot
from checks.framework.root import CALLS_FILE, Root, call_key
from checks.framework.unknown import Unknown
from checks.run_checks.facts import READERS, Facts
from checks.run_checks.runner import every_check, judge
from preflight.command_inputs.host_source import Host, Sized, size_and_needs
from preflight.command_inputs.launch_words import LaunchWords
from preflight.verdict.launch_checks import launch_findings
from tests.builders.synthetic import EVERY_HOST, SyntheticHost, tree_of
from tests.checks.test_synthetic import FITTED, script

# The kind of answer (a field of Answers) and the name that was asked for.
Key = tuple[str, str]
NICS = "mlx5_0,mlx5_4"
LAUNCH = script("Qwen/Qwen3-8B", 2, NICS, "16gb")
REGULAR = LAUNCH.replace("export MC_STORE_USE_HUGEPAGE=1\n", "")
CHECKS = list(every_check())


def two_of(host: SyntheticHost) -> SyntheticHost:
    """A GPU and a NIC of each node."""
    first_and_fifth = slice(0, 5, 4)
    return replace(host, gpus=host.gpus[first_and_fifth], nics=host.nics[first_and_fifth])


GOOD = two_of(FITTED)


class Mutated(Root):
    """A host with one answer exchanged."""

    def __init__(self, inner: Root, key: Key, answer: Any) -> None:
        super().__init__()
        self._inner, self._key, self._answer = inner, key, answer

    @property
    def live(self) -> bool:
        return False

    def locate(self, name: str) -> str:
        return self._inner.locate(name)

    def text(self, name: str) -> str | Unknown:
        return cast("str | Unknown", self._ask("texts", name, self._inner.text))

    def names(self, name: str) -> tuple[str, ...] | Unknown:
        found = self._ask("folders", name, self._inner.names)
        return cast("tuple[str, ...] | Unknown", found)

    def link(self, name: str) -> str | Unknown:
        return cast("str | Unknown", self._ask("links", name, self._inner.link))

    def mode(self, name: str) -> int | Unknown:
        return cast("int | Unknown", self._ask("modes", name, self._inner.mode))

    def call(self, name: str, *arguments: str | int) -> Any | Unknown:
        key = call_key(name, *arguments)
        return self._ask("calls", key, lambda _: self._inner.call(name, *arguments))

    def _ask(self, kind: str, name: str, ask: Any) -> Any:
        return self._answer if (kind, name) == self._key else ask(name)


class Bench:
    """A host and a launch, read once; a mutation reads again only what had asked for it."""

    def __init__(self, path: Path, host: SyntheticHost, text: str) -> None:
        tree = tree_of(host)
        files = {name: f"{content}\n".encode() for name, content in tree.files.items()}
        files[f"/{CALLS_FILE}"] = json.dumps(tree.calls).encode()
        self._root = TreeRoot(files, tree.links, {}, frozenset(EVERY_HOST))
        launch = path / "launch.sh"
        launch.write_text(text)
        self._words = LaunchWords(
            (str(launch),), mooncake_version="0.3.13.post1", sglang_version="0.5.23"
        )
        recording = RecordingRoot(self._root)
        self._sized = self._size(recording)
        self._asked = {"sizing": recording.answers}
        self._topics: dict[str, Any] = {}
        for topic in READERS:
            recording = RecordingRoot(self._root)
            self._topics[topic] = _read(topic, recording, self._sized.needs)
            self._asked[topic] = recording.answers
        self.findings = self._judge(self._topics, self._sized)

    def _size(self, root: Root) -> Sized:
        recording = root if isinstance(root, RecordingRoot) else RecordingRoot(root)
        sized = size_and_needs(self._words, Host(recording, "host", {}, None))
        assert sized is not None
        return sized

    def _judge(
        self, topics: Mapping[str, Any], sized: Sized, only: set[str] | None = None
    ) -> list[Finding]:
        checks = CHECKS if only is None else [one for one in CHECKS if one.id in only]
        of_launch = only is None or len(checks) < len(only)
        findings = judge(Facts(topics), sized.needs, checks)
        return [*findings, *(launch_findings(sized.sizing) if of_launch else ())]

    def keys(self, topics: set[str]) -> dict[Key, Any]:
        """What the readers of these topics, or the sizing, asked, one of a kind of device each."""
        found: dict[Key, Any] = {}
        shapes: set[Key] = set()
        for topic in sorted({*topics, "sizing"} & self._asked.keys()):
            for kind, name, answer in _answers(self._asked[topic]):
                shape = (kind, re.sub(r"[0-9a-f]*\d[0-9a-f]*", "0", name))
                if shape not in shapes:
                    found[kind, name] = answer
                shapes.add(shape)
        return found

    def mutated(self, key: Key, answer: Any, only: set[str] | None = None) -> list[Finding]:
        """What all checks say, or those of ``only``. Raises what a reader raises."""
        root = Mutated(self._root, key, answer)
        users = {topic for topic, asked in self._asked.items() if key[1] in getattr(asked, key[0])}
        sized = self._size(root) if "sizing" in users else self._sized
        again = users & READERS.keys() if sized.needs == self._sized.needs else READERS
        read = {topic: _read(topic, root, sized.needs) for topic in again}
        return self._judge({**self._topics, **read}, sized, only)


def _answers(answers: Answers) -> Iterator[tuple[str, str, Any]]:
    for kind in Answers._fields:
        for name, answer in getattr(answers, kind).items():
            yield kind, name, answer


def _read(topic: str, root: Root, needs: LaunchNeeds) -> Any:
    module, function = READERS[topic]
    return getattr(import_module(module), function)(root, needs)
