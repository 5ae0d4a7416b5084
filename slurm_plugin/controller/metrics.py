"""Figures for Prometheus, in its text format."""

from __future__ import annotations

import time
from collections.abc import Iterable

from slurm_plugin.controller.service import Controller

Sample = tuple[dict[str, str], float]


def metrics_text(controller: Controller) -> str:
    """All figures of the controller."""
    now_s = time.monotonic()
    nodes = controller.nodes.all()
    twins = controller.publisher.seen
    gpus = [(name, gpu) for name, node in nodes.items() for gpu in node.report.gpus]
    lent = [(twin, each) for twin, each in twins.items() if not each.drained]
    parts = [
        _gauge(
            "sfill_filling_off", "1 when an operator switched filling off", controller.store.off
        ),
        _gauge("sfill_database_up", "1 when the database takes writes", controller.store.well),
        _gauge("sfill_slurm_up", "1 when Slurm did as asked", not controller.publisher.trouble),
        _gauge("sfill_nodes", "Nodes that have reported", len(nodes)),
        _gauge(
            "sfill_nodes_silent",
            "Nodes that do not report any more",
            len(controller.nodes.silent(now_s=now_s)),
        ),
        _gauge("sfill_twins", "Twins that Slurm knows", len(twins)),
        _gauge("sfill_twins_lending", "Twins that lend now", len(lent)),
        _gauge("sfill_events_waiting", "Events not yet stored", controller.journal.waiting),
        _gauge("sfill_requeues_waiting", "Fill jobs to requeue", controller.requeuer.waiting),
        _family(
            "sfill_twin_slots",
            "Slots of a twin in Slurm's record",
            (({"twin": name}, twin.count) for name, twin in lent),
        ),
        _family(
            "sfill_gpu_lendable_slots",
            "Slots free for one more fill",
            (({"node": name, "gpu": gpu.uuid}, gpu.lendable_slots) for name, gpu in gpus),
        ),
        _family(
            "sfill_gpu_used_slots",
            "Slots that admitted fills hold",
            (({"node": name, "gpu": gpu.uuid}, gpu.used_slots) for name, gpu in gpus),
        ),
    ]
    return "".join(parts)


def _gauge(name: str, meaning: str, value: float) -> str:
    return _family(name, meaning, [({}, value)])


def _family(name: str, meaning: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {meaning}.", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {float(value):g}" if inner else f"{name} {float(value):g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
