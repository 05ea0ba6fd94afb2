"""A report as one JSON object, ``schemas/check-v1.schema.json``."""

from __future__ import annotations

from typing import Any

from checks.base.needs import LaunchNeeds, ProcessNeeds
from checks.base.unknown import Unknown
from preflight.base.program_version import program_version
from preflight.base.shell import wanted_text
from preflight.check.report import Report, Row
from preflight.check.verdict import verdict_reason
from preflight.render.plain_data import plain

SCHEMA = "mooncake-preflight/check/v1"

Json = dict[str, Any]


def report_object(report: Report, protocol: str, exit_code: int) -> Json:
    """The object for an answer; ``exit_code`` is that of the process, by ``protocol``."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "root": report.root,
        "status": report.verdict.value,
        "reason": verdict_reason(report),
        "exit_protocol": protocol,
        "exit_code": exit_code,
        "counts": dict(report.counts),
        "launch": None if report.needs is None else _needs(report.needs),
        "findings": [_finding(row) for row in report.rows],
        "unused_ignores": list(report.unused_waivers),
    }


def error_object(protocol: str, exit_code: int, message: str) -> Json:
    """The object for a command that gave no answer."""
    return {
        "schema": SCHEMA,
        "version": program_version(),
        "status": "error",
        "exit_protocol": protocol,
        "exit_code": exit_code,
        "error": message,
    }


def _finding(row: Row) -> Json:
    finding = row.finding
    return {
        "id": finding.check,
        "status": finding.status.value,
        "ignored": row.ignored,
        "subject": finding.subject,
        "subjects": list(row.subjects),
        "have": finding.have,
        "need": finding.need,
        "formula": finding.formula,
        "text": finding.text,
        "consequence": None if row.consequence is None else row.consequence.value,
        "evidence": [{"source": seen.source, "value": seen.value} for seen in finding.evidence],
        "advice": finding.advice,
        "settings": [
            {
                "kind": setting.kind.value,
                "name": setting.label,
                "wanted": wanted_text(setting),
                "now": setting.now,
            }
            for setting in finding.settings
        ],
        "commands": list(row.commands),
    }


def _needs(needs: LaunchNeeds) -> Json:
    return {
        "source": needs.source,
        "hosts": needs.hosts,
        "mooncake_version": needs.mooncake_version,
        "sglang_version": needs.sglang_version,
        "processes": [_process(process) for process in needs.processes],
        "services": [
            {"kind": service.kind, "host": _text(service.host), "port": service.port}
            for service in needs.services
        ],
        "ports": [
            {"what": port.what, "port": None if isinstance(port.port, Unknown) else port.port}
            for port in needs.ports
        ],
        "storage": [{"kind": path.kind, "path": _text(path.path)} for path in needs.storage],
    }


def _process(process: ProcessNeeds) -> Json:
    """Sizes as they are, or {"unknown": reason}."""
    rdma = process.rdma
    return {
        "name": process.name,
        "program": process.program,
        "node": process.node,
        "gpu": process.gpu,
        "devices": None if rdma is None else plain(rdma.devices),
        "registered_bytes": plain(process.registered_bytes),
        "regular_bytes": plain(process.regular_bytes),
        "hugetlb_bytes": plain(process.hugetlb_bytes),
    }


def _text(value: str | Unknown) -> str | None:
    return None if isinstance(value, Unknown) else value
