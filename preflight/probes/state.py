"""Keeping what was measured for later checks, by the device, its firmware and its driver."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from checks.base.archive import write_whole
from checks.base.root import Root
from checks.rdma.calls import saved, state_folders
from checks.rdma.facts import Nic
from checks.rdma.registration_measured import OF_DEVICE, RESULT_SCHEMA, Identity, identity_of
from preflight.probes.child import Measurement


def keep(nics: tuple[Nic, ...], page_bytes: int, measured: Measurement) -> list[str]:
    """Save one result for each device; the files. Raises OSError.

    A result that says less than one that is there already is not kept.
    """
    root = Root()
    folders = state_folders()
    folder = folders[0] if os.geteuid() == 0 else folders[-1]
    written = []
    for nic in nics:
        driver = nic.driver if isinstance(nic.driver, str) else nic.provider
        identity = identity_of(root, nic.name, driver if isinstance(driver, str) else "")
        result = _result(nic, identity, page_bytes, measured)
        if _says_less(result, identity):
            continue
        path = os.path.join(folder, f"{_file_name(identity, page_bytes)}.json")
        os.makedirs(folder, 0o755, exist_ok=True)
        write_whole(path, f"{json.dumps(result, indent=2)}\n".encode(), 0o644)
        written.append(path)
    return written


def _result(nic: Nic, identity: Identity, page_bytes: int, measured: Measurement) -> dict[str, Any]:
    refusal, met = measured.refusal, measured.met
    own = refusal is not None and refusal.device == nic.name
    # A limit of this process says nothing of the device but that it holds at least so much; one
    # that the errno alone names is no proof.
    kind = met.kind if own and met is not None and met.sure and met.kind in OF_DEVICE else ""
    return {
        "schema": RESULT_SCHEMA,
        **identity._asdict(),
        "device": nic.name,
        "page_bytes": page_bytes,
        "region_bytes": measured.region_bytes,
        "holds_bytes": measured.held_bytes,
        "holds_regions": measured.held_regions,
        "met": kind,
    }


def _says_less(result: dict[str, Any], identity: Identity) -> bool:
    if result["met"]:
        return False
    for old in saved():
        if all(old.get(name) == value for name, value in identity._asdict().items()) and (
            old.get("page_bytes") == result["page_bytes"]
        ):
            held = old.get("holds_bytes")
            if isinstance(held, int) and held >= result["holds_bytes"]:
                return True
    return False


def _file_name(identity: Identity, page_bytes: int) -> str:
    hardware, firmware, driver, version = identity
    named = (driver, version, hardware, firmware, str(page_bytes))
    return re.sub(r"[^A-Za-z0-9.-]+", "_", "-".join(part for part in named if part))
