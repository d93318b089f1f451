"""What a pipeline's file says of each stage, for people to read: how it is triggered, how much it takes at once.

It is shown, and decides nothing. Values that may be secret are not in it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from strobe.hosts.spark.pipeline.pipeline import Pipeline, StageSpec
from strobe.model.redaction import redact

__all__ = ["settings_of"]

_SECRET: Final = re.compile(r"(?i)secret|password|token|access[.]?key|credential")


def settings_of(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """The settings of each stage; what is not set is left out."""
    return {str(uid): _settings(spec) for uid, spec in pipeline.stages.items()}


def _settings(spec: StageSpec) -> dict[str, str]:
    limits: dict[str, Any] = {
        "output_mode": spec.output_mode,
        "trigger": ", ".join(f"{name} {value}" for name, value in spec.trigger.items()),
        "partitions": spec.partitions,
        "max_rows_per_batch": spec.max_rows_per_batch,
        "max_bytes_per_batch": spec.max_bytes_per_batch,
        "start": spec.start if spec.start != "snapshot" else None,
        "replaces": spec.replaces,
        "chain": spec.chain,
    }
    shown = {name: str(value) for name, value in limits.items() if value not in (None, "")}
    conf = {name: "***" if _SECRET.search(name) else redact(str(value)) for name, value in spec.conf.items()}
    sinks = {f"sink {number}": redact(sink.describe()) for number, sink in enumerate(spec.sinks)}
    return {**shown, **sinks, **conf}
