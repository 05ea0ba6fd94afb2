"""A job of srt-slurm: the servers of its ``backend``, as many as its ``resources`` say.

Source: github.com/NVIDIA/srt-slurm ``docs/config.md`` (``backend.sglang_config``, whose keys are
SGLang's own flags for each kind of worker, and ``<kind>_environment``).
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.launches.container import ContainerSettings
from preflight.launches.documents import Node
from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.source import Command, Origin, Reading, Word
from preflight.launches.variables import Layers

_WORKERS = {"aggregated": "agg", "prefill": "prefill", "decode": "decode"}
_PROGRAMS = {
    ("sglang", False): "sglang.launch_server",
    ("sglang", True): "dynamo.sglang",
    ("vllm", False): "vllm.entrypoints.openai.api_server",
    ("vllm", True): "dynamo.vllm",
    ("trtllm", False): "tensorrt_llm.commands.serve",
    ("trtllm", True): "dynamo.trtllm",
}
# More workers than any job has.
_MOST_WORKERS = 1024


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    commands: list[Command] = []
    for job in _jobs(launch):
        backend, image = job.at("backend"), job.at("model", "container").text or ""
        dynamo = job.at("frontend", "type").text in (None, "dynamo")
        program = _PROGRAMS.get((backend.at("type").text or "sglang", dynamo))
        configs = backend.at(f"{backend.at('type').text or 'sglang'}_config")
        for kind, short in _WORKERS.items():
            node = configs.at(kind)
            if not node.fields or program is None:
                continue
            own = {
                name: Word(value.text or "", Origin(launch.path, value.line))
                for name, value in backend.at(f"{kind}_environment").fields.items()
            }
            words = tuple(_words(program, node, job, launch.path))
            count = _number(job.at("resources", f"{short}_workers"))
            one = Command(
                words,
                Layers(variables, own),
                (("docker", "compose", "up", f"{kind} worker"),),
                Origin(launch.path, node.line),
                ContainerSettings(engine="docker", image=image, network="host"),
            )
            commands += [one] * count
    return Reading(tuple(commands), notes)


def _number(node: Node) -> int:
    text = node.text or "1"
    return min(int(text), _MOST_WORKERS) if text.isdecimal() and len(text) < 6 else 1


def _words(program: str, node: Node, job: Node, path: str) -> Iterator[Word]:
    origin = Origin(path, node.line)
    yield from (Word(text, origin) for text in ("python3", "-m", program))
    names = {name.replace("_", "-") for name in node.fields}
    model = job.at("model", "path")
    flag = "--model" if "vllm" in program else "--model-path"
    if not names & {"model", "model-path"} and model.text is not None:
        yield Word(flag, Origin(path, model.line))
        yield Word(model.text, Origin(path, model.line))
    for name, value in node.fields.items():
        at = Origin(path, value.line)
        if value.text in ("true", "false") and value.plain:
            if value.text == "true":
                yield Word(f"--{name}", at)
            continue
        yield Word(f"--{name}", at)
        for item in value.items or [value]:
            yield Word(item.text or "", at)


def _jobs(launch: LaunchText) -> list[Node]:
    return [
        document
        for document in launch.documents or ()
        if document.at("resources").fields and document.at("backend").fields
    ]


KIND = LaunchKind(
    "a job of srt-slurm, which has resources and backend", lambda launch: bool(_jobs(launch)), _read
)
