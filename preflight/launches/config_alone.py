"""A configuration file of one server alone, as ``--config`` of SGLang and of vLLM takes it."""

from __future__ import annotations

import os

from preflight.launches.documents import Node
from preflight.launches.launch_kind import LaunchKind, LaunchText, with_env_files
from preflight.launches.shell_script import read_words
from preflight.launches.source import Origin, Reading, Word, joined

_SGLANG = ("python3", "-m", "sglang.launch_server", "--config")
_VLLM = ("vllm", "serve", "--config")
# Keys that stand in no other file of one mapping.
_OF_VLLM = frozenset(
    "gpu-memory-utilization kv-transfer-config max-model-len max-num-seqs served-model-name "
    "tensor-parallel-size".split()
)


def _program(document: Node) -> tuple[str, ...]:
    keys = {key.replace("_", "-") for key in document.fields}
    if keys & {"apiVersion", "kind", "services", "backend", "base"}:
        return ()
    if "model-path" in keys:
        return _SGLANG
    return _VLLM if "model" in keys and keys & _OF_VLLM else ()


def _recognises(launch: LaunchText) -> bool:
    documents = launch.documents or ()
    return len(documents) == 1 and bool(_program(documents[0]))


def _read(launch: LaunchText) -> Reading:
    variables, notes = with_env_files(launch)
    (document,) = launch.documents or ()
    origin = Origin(launch.path, document.line)
    words = (*_program(document), os.path.basename(launch.path))
    started = read_words([Word(text, origin) for text in words], variables)
    files = {words[-1]: Word(launch.text, origin)}
    return joined([Reading((), notes), started._replace(files=files)])


KIND = LaunchKind(
    "a configuration file of SGLang or vLLM, which has model-path or model", _recognises, _read
)
