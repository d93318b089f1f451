"""Input files that Spark cannot read: they stop the stage, by name, or with `bad_files="set_aside"` are left out.

*Which file.* Spark names it in its error. A file that is gone when the batch is planned is another matter: Spark passes
over it without a word, and its rows would be lost. So the files that Spark has found are compared with those that its
log says the batch reads.

*When.* A file is set aside when its batch has failed on it twice, so that a disk that stumbles once takes no rows away,
and never for a failure that says nothing of the file, such as a network that does not answer. It is done only while
neither channel nor sinks have anything of the batch. The whole file is left out: half of one would be neither its rows
nor none.

*How.* The decision is noted durably (`checkpoint.bad_files`), and each start takes the files out of the batch that is
to be run again (`checkpoint.source_files`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from strobe.hosts.shared.clock import Clock
from strobe.hosts.spark.checkpoint import bad_files
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.bad_files import BadFile, BadFiles, shown
from strobe.hosts.spark.checkpoint.source_files import files_of_batch, leave_out
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.pipeline.stage_options import SET_ASIDE
from strobe.hosts.spark.plans.description import entries_of
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.hosts.spark.stage.failures import reason, without_spark_words
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Failed, Misuse
from strobe.model.ids import NodeId
from strobe.model.redaction import redact
from strobe.store.times import utc_text

__all__ = ["FileInputs", "UnreadableInput", "check_set_aside"]

_log = logging.getLogger("strobe.stage")
_READING: Final = "Encountered error while reading file {}."
_CAUSE: Final = re.compile(r"^Caused by: (?:[a-z]\w*\.)*", re.MULTILINE)
_LONGEST: Final = 300  # characters of a reason that are kept
_FILES: Final = "FileSource"
_IGNORED: Final = "spark.sql.files.ignoreMissingFiles"
# What fails for every file, so that it tells nothing of this one.
_NOT_THE_FILE: Final = re.compile(
    r"javax?\.net\.[\w.]+Exception|(?:Sdk|Amazon)ClientException|Too many open files|OutOfMemoryError|No space left"
)


class UnreadableInput(Failed):
    """Files of a batch, by Spark's names, cannot be read, and why. `passing`: for a reason that is none of theirs."""

    def __init__(self, paths: Sequence[str], why: str, next: str, *, passing: bool = False) -> None:
        self.paths, self.why, self.passing = tuple(paths), why, passing
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        super().__init__(
            f"Its input file {shown(paths[0])}{more} cannot be read: {why}.",
            untouched="Nothing of the batch that needs it is lost or done twice.",
            next=next,
        )


class FileInputs:
    """The files that one stage reads from sources of its own."""

    def __init__(
        self,
        spec: StageSpec,
        result: DataFrame,
        checkpoint: Path,
        clock: Clock,
        *,
        written: Callable[[], int],
        setting: Callable[[str, str], str],
    ) -> None:
        """`written`: the last batch of which channel or sinks know. `setting(key, default)`: one of the query."""
        self._uid = spec.uid
        self._set_aside = spec.bad_files == SET_ASIDE
        self._result = result
        self._checkpoint = checkpoint
        self._clock = clock
        self._written = written
        self._setting = setting
        self._execution: Any = None  # of this life
        self._suspects: tuple[int, frozenset[str]] = (-1, frozenset())  # on which files the last batch has failed
        self.bad = BadFiles()  # those that are set aside

    # ── called by the runner ────────────────────────────────────────────────────────────────────────────────────────

    def begin_life(self) -> None:
        """Before Spark looks at its log: what was set aside for the batch that is to run is not in it any more."""
        self._execution = None
        logged, batch = spark_checkpoint.last_logged(self._checkpoint), self._open_batch()
        self.bad = BadFiles() if logged is None else bad_files.read(self._checkpoint, logged)
        paths = [file.path for file in self.bad.files if file.batch == batch]
        if batch is not None and paths:
            leave_out(self._checkpoint, batch, paths)

    def check_present(self, batch: int) -> None:
        """Before the batch is computed: Spark has found every file that the batch is to read."""
        wanted = files_of_batch(self._checkpoint, batch)
        relations = _file_relations(self._running().lastExecution().logical()) if wanted else []
        if sum(int(r.location().allFiles().size()) for r in relations) == len(wanted) or not relations:
            return
        found = {str(path) for r in relations for path in r.location().inputFiles()}
        gone = [path for path in wanted if path not in found]
        if gone and self._ignores_missing(relations):
            _log.warning("%s: %s is gone, and passed over as ignoreMissingFiles says", self._uid, _listed(gone))
        elif gone:
            raise UnreadableInput(gone, "it is gone since the batch was planned", self._advice(batch))

    def named(self, error: BaseException) -> UnreadableInput | None:
        """The same error, if it is about a file of the batch, with the file's name and what to do."""
        if isinstance(error, UnreadableInput):
            return error
        said = str(error)
        if _READING.partition("{")[0] not in said:
            return None
        try:
            batch = self._open_batch()
            files = files_of_batch(self._checkpoint, batch) if batch is not None else ()
        except (OSError, Damaged):
            return None
        # The longest: the name of one file may begin with that of another.
        path = max((f for f in files if _READING.format(f) in said), key=len, default=None)
        if path is None or batch is None:
            return None
        passing = _NOT_THE_FILE.search(said) is not None
        return UnreadableInput([path], _why(error), self._advice(batch), passing=passing)

    def goes_on_without(self, error: BaseException | None) -> bool:
        """Whether the stage is to start again at once: the file may be whole the next time, or is left out from now
        on."""
        if not self._set_aside or not isinstance(error, UnreadableInput) or error.passing:
            return False
        try:
            batch = self._open_batch()
            return batch is not None and self._is_unseen(batch) and self._strike(batch, error)
        except (OSError, Damaged) as failure:
            _log.warning("%s: %s could not be set aside: %s", self._uid, _listed(error.paths), failure)
            return False

    def _strike(self, batch: int, error: UnreadableInput) -> bool:
        before = self._suspects[1] if self._suspects[0] == batch else frozenset()
        self._suspects = (batch, before | set(error.paths))
        twice = [path for path in error.paths if path in before][: bad_files.MOST]
        if not twice:
            _log.warning("%s: %s cannot be read: %s; once more", self._uid, _listed(error.paths), error.why)
            return True
        now = utc_text(self._clock.time())
        self.bad = bad_files.add(self._checkpoint, batch, [BadFile(p, error.why, now, batch) for p in twice])
        for path in twice:
            _log.warning("%s: %s is set aside, its rows are left out: %s", self._uid, shown(path), error.why)
        return True

    # ── details ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_batch(self) -> int | None:
        """The batch that Spark has planned and not committed."""
        logged = spark_checkpoint.last_logged(self._checkpoint)
        return None if logged is None or spark_checkpoint.is_committed(self._checkpoint, logged) else logged

    def _is_unseen(self, batch: int) -> bool:
        """Whether channel and sinks are known to have nothing of it."""
        try:
            return self._written() < batch
        except Exception:  # a sink that does not answer
            return False

    def _advice(self, batch: int) -> str:
        if not self._is_unseen(batch):
            return "Rows of that batch have been written, so the file cannot be left out: put it back as it was."
        if self._set_aside:
            return "Put a whole file in its place."
        return (
            'Put a whole file in its place; or set bad_files="set_aside" in the stage, then it goes on without files '
            "that cannot be read, and names them."
        )

    def _ignores_missing(self, relations: Sequence[Any]) -> bool:
        said = [relation.options().get("ignoreMissingFiles") for relation in relations]
        settings = [self._setting(_IGNORED, "false"), *(option.get() for option in said if option.isDefined())]
        return any(str(value).lower() == "true" for value in settings)

    def _running(self) -> Any:
        """The query's execution. It is known by its name even before its start has returned."""
        if self._execution is None:
            active = self._result.sparkSession._jsparkSession.streams().active()
            (query,) = [q for q in active if q.name() == self._uid]
            self._execution = query.streamingQuery()
        return self._execution


def check_set_aside(drafts: Sequence[DraftStage], descriptions: Mapping[NodeId, Mapping[str, Json]]) -> None:
    """Refuse it for stages that read no files: nothing would be set aside there."""
    for spec in (draft.spec for draft in drafts):
        if spec.bad_files == SET_ASIDE and _FILES not in entries_of(descriptions[spec.uid], "sources"):
            raise Misuse(
                f'Stage {spec.uid!r} has bad_files="{SET_ASIDE}", and reads no files with spark.readStream.',
                untouched="Nothing was started.",
                next="Set it in the stage that reads the files.",
            )


def _file_relations(plan: Any) -> list[Any]:
    """What the file sources of a batch's plan have found."""
    leaves = plan.collectLeaves()
    streams = [leaf for leaf in (leaves.apply(i) for i in range(leaves.size())) if leaf.isStreaming()]
    relations = [leaf.relation() for leaf in streams if leaf.getClass().getSimpleName() == "LogicalRelation"]
    return [relation for relation in relations if relation.getClass().getSimpleName() == "HadoopFsRelation"]


def _why(error: BaseException) -> str:
    """What the innermost cause says, in a line."""
    text = without_spark_words(str(error))
    causes = [text[match.end() :].partition("\n")[0] for match in _CAUSE.finditer(text)]
    said = redact(causes[-1]) if causes else reason(error)
    return said[:_LONGEST].rstrip(".")


def _listed(paths: Sequence[str]) -> str:
    names = [shown(path) for path in paths]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
