"""Where a source stage begins that has never run: at what its sources have now, or at a time.

Spark's sources each have options of their own for this, or none. One way fits all: the stage's plan is run once, up to
what the sources have, with every stream emptied. That is batch 0: it ends there and brings no rows. If the start is a
time, files that are younger are then taken off the list of files that were read.

This is done once. The checkpoint appears by a rename: if the driver is killed before that, the stage has not begun and
no row has been read. A note beside the checkpoint says that it was done. It is needed where the sources had nothing,
because then there is no batch 0, and whatever comes later is read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.column import _to_seq

from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.source_files import read_again_from
from strobe.hosts.spark.checkpoint.stage_files import (
    has_start,
    note_starts,
    relocate_state,
    stage_checkpoint,
    sync_tree,
)
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.jvm.session import passing_settings
from strobe.hosts.spark.pipeline.stage_options import EARLIEST, SNAPSHOT
from strobe.hosts.spark.plans.description import entries_of
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId

__all__ = ["begin_sources", "check_starts", "run_over_nothing"]

_FILES = "FileSource"
_log = logging.getLogger("strobe.job")


def check_starts(drafts: Sequence[DraftStage], descriptions: Mapping[NodeId, Mapping[str, Json]]) -> None:
    """Refuse a time for sources that know none."""
    for spec in (draft.spec for draft in drafts):
        others = [str(s) for s in entries_of(descriptions[spec.uid], "sources") if s != _FILES]
        if isinstance(spec.start, datetime) and others:
            raise Misuse(
                f"Stage {spec.uid!r} cannot begin at {spec.start}: it reads {', '.join(others)}, and only the times of "
                "files are known.",
                untouched="Nothing was started.",
                next="Say it by the source's own options: read_kafka(…, starting=TIME), read_postgres(…, "
                "starting=VALUE), startingTimestamp and the like; or use start='latest'.",
            )


def begin_sources(drafts: Sequence[DraftStage], home: JobHome, partitions: Mapping[NodeId, int]) -> None:
    """Give each stage that has `start=` and has never run the checkpoint from which it begins."""
    for draft in drafts:
        spec, place = draft.spec, stage_checkpoint(home, draft.spec.uid)
        if spec.inputs or spec.start in (SNAPSHOT, EARLIEST):
            continue
        if spark_checkpoint.last_logged(place) is not None or has_start(place):
            continue
        unfinished = place.with_name(f".{place.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        settings = {"spark.sql.shuffle.partitions": str(partitions[spec.uid]), **spec.conf}
        try:
            with passing_settings(draft.result.sparkSession, settings):
                run_over_nothing(draft, unfinished)
            if isinstance(spec.start, datetime):
                read_again_from(unfinished, spec.start)
        except Exception as error:  # whatever Spark or a source says
            raise Failed(
                f"Stage {spec.uid!r} could not be given its start, {spec.start}: {str(error).splitlines()[0]}",
                untouched="It has not begun, and has read nothing.",
                next="Fix the cause and run again.",
            ) from error
        if spark_checkpoint.last_committed(unfinished) is not None:
            relocate_state(unfinished, place)
            shutil.rmtree(place, ignore_errors=True)  # what a killed start has left: there is no batch in it
            unfinished.rename(place)
            sync_tree(place, home.home)
        note_starts(place, {})
        _log.info("%s begins at %s", spec.uid, spec.start)


def run_over_nothing(draft: DraftStage, checkpoint: Path) -> None:
    """Run one batch of the stage's plan up to what its sources have, without a row."""
    query = (
        _over_nothing(draft.result)
        .writeStream.format("noop")
        .queryName(f"{draft.spec.uid} begins")
        .outputMode(draft.spec.output_mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(once=True)
        .start()
    )
    query.awaitTermination()


def _over_nothing(result: DataFrame) -> DataFrame:
    """The same plan, with every stream emptied before anything else is done with it."""
    session: Any = result.sparkSession
    catalyst = session._jvm.org.apache.spark.sql.catalyst
    false = catalyst.expressions.Literal.FalseLiteral()

    def emptied(node: Any) -> Any:
        children = [node.children().apply(i) for i in range(node.children().size())]
        if not children:
            return catalyst.plans.logical.Filter(false, node) if node.isStreaming() else node
        return node.withNewChildren(_to_seq(session._sc, [emptied(child) for child in children]))

    plan = emptied(result._jdf.queryExecution().analyzed())
    return DataFrame(session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan), session)
