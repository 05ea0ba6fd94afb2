"""What of a launch no reader here knows: with any of it no answer about memory passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from preflight.launches.source import Origin, Reading, brief
from preflight.processes.processes import Kind, LaunchProcess

# Programs that hold memory of their own, which nothing here counts.
UNCOUNTED = {
    Kind.VLLM: "the memory of vLLM and of what its KV connector takes",
    Kind.DYNAMO_VLLM: "the memory of vLLM and of what its KV connector takes",
    Kind.DYNAMO_SGLANG: "the memory of the SGLang server that it runs",
    Kind.LMCACHE: "the memory of LMCache's own pools",
    Kind.ENGINE: "the memory that it takes",
}
# Notices of the readers that tell of settings or programs that were not read.
_NOTICES = frozenset(
    "config-not-read env-file-not-read env-from-not-read extends-not-read "
    "image-command include-not-read loop-not-counted script-not-read source-not-read".split()
)
# Variables that a program which is read here takes.
_READ = re.compile(r"(MC|MOONCAKE|SGLANG|SGL|LMCACHE|VLLM|CUDA|NCCL)_")


class Unread(NamedTuple):
    """what: the program, file or condition. why: what is not known for want of it."""

    what: str
    why: str
    origin: Origin

    @property
    def text(self) -> str:
        return f"{self.what} ({self.origin}): {self.why}"


def unread(reading: Reading, processes: Sequence[LaunchProcess]) -> tuple[Unread, ...]:
    """Return everything of a launch that was not read and may count, each once, in its order."""
    return tuple(
        dict.fromkeys(
            [*_programs(processes), *_notices(reading), *_files(processes), *_doubts(processes)]
        )
    )


def _programs(processes: Sequence[LaunchProcess]) -> Iterator[Unread]:
    for process in processes:
        why = UNCOUNTED.get(process.kind)
        if why is not None:
            words = [word.text for word in process.command.words]
            what = brief(" ".join(words[: 4 if process.kind is not Kind.VLLM else 3]))
            yield Unread(what, f"{why} is not counted", process.command.origin)


def _notices(reading: Reading) -> Iterator[Unread]:
    for note in reading.notes:
        if note.id in _NOTICES:
            yield Unread(note.id, note.text, note.origin)


def _doubts(processes: Sequence[LaunchProcess]) -> Iterator[Unread]:
    """Conditions that nothing decides and that a program or a setting of it follows from."""
    for process in processes:
        if process.kind in (Kind.OTHER, Kind.BENCHMARK):
            continue
        command = process.command
        settings = [word for name, word in command.environment.items() if _READ.match(name)]
        found = [*command.doubts, *(note for word in command.words for note in word.doubts)]
        for note in (*found, *(note for word in settings for note in word.doubts)):
            yield Unread("condition", note.text, note.origin)


def _files(processes: Sequence[LaunchProcess]) -> Iterator[Unread]:
    for process in processes:
        if process.unread is not None:
            yield Unread(process.kind.value, process.unread.reason, process.command.origin)
