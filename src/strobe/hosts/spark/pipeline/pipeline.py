"""What a user writes: a graph of stages, each one Structured Streaming query.

A `Pipeline` is pure data until it runs: stages by uid, what each reads, where each writes. All checks that need no
Spark happen when it is declared or in `check()`, before anything is started, so a mistake costs nothing.

The inputs of a stage are kept in sorted order of uid, whatever the order in the file: Spark maps the sources of a
query by their position in the plan, and reordering a file must not reorder a checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Self, TypeVar

from strobe.hosts.spark.pipeline import stage_options
from strobe.hosts.spark.pipeline.config import CheckpointConfig, RestartPolicy
from strobe.hosts.spark.pipeline.sink_conflicts import check_places
from strobe.hosts.spark.pipeline.triggers import check_trigger, never_ends
from strobe.model.errors import Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, check_uid
from strobe.model.invariants import Invariant, OnViolation
from strobe.model.suggest import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from strobe.hosts.spark.connectors.base import Sink

__all__ = ["Feedback", "Pipeline", "StageSpec", "channel_of", "feedback"]

StageFunction = Callable[..., "DataFrame"]
F = TypeVar("F", bound=StageFunction)
G = TypeVar("G", bound=Callable[[Any], Any])

OUTPUT_MODES = ("append", "update", "complete")
SESSION = "spark"  # the parameter by which a stage that reads channels asks for the session, too


@dataclass(frozen=True, slots=True)
class Feedback:
    """A stage further down whose output comes back here. Its schema must be said, since it does not exist yet."""

    uid: str
    schema: str


def feedback(uid: str, schema: str) -> Feedback:
    """Read the output of a stage further down: closes a loop. `schema` is Spark DDL, e.g. "id BIGINT, tries INT"."""
    if not isinstance(schema, str) or not schema.strip():
        raise Misuse(
            f"feedback({uid!r}): schema={schema!r} is not legal.",
            next='Write the columns as Spark does, "id BIGINT, tries INT".',
        )
    return Feedback(check_uid(uid, "stage uid"), schema)


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage as declared."""

    uid: NodeId
    function: StageFunction
    reads: tuple[NodeId, ...]
    feedback: Mapping[NodeId, str]
    output_mode: str
    sinks: tuple[Sink, ...]
    max_rows_per_batch: int | None
    max_bytes_per_batch: int | None
    partitions: int | None
    trigger: Mapping[str, Any]
    conf: Mapping[str, str] = field(default_factory=dict)
    start: stage_options.Start = stage_options.SNAPSHOT
    replaces: NodeId | None = None
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    bad_files: str = stage_options.FAIL
    chain: bool | None = None  # None: as the pipeline says
    chained: Mapping[NodeId, NodeId] = field(default_factory=dict)  # stages that its query computes, and who reads each
    kept: str = ""  # why it is not chained, which it would be in a new job

    @property
    def ends(self) -> bool:
        """Whether its own sources end: with what they have when everything else is done."""
        return "availableNow" in self.trigger

    @property
    def wants_session(self) -> bool:
        """Whether it reads channels and asks for the session besides."""
        named = SESSION in inspect.signature(self.function).parameters
        return bool(self.inputs) and named and SESSION not in map(argument_name, self.inputs)

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        """Everything that it reads, in the order in which Spark will see it."""
        return tuple(sorted((*self.reads, *self.feedback)))


def channel_of(uid: NodeId) -> ChannelId:
    """A stage has one output channel; its name is the stage's."""
    return ChannelId(uid)


class Pipeline:
    """A graph of stages. `name` is the job's name: its identity together with the home directory."""

    def __init__(
        self,
        name: str,
        *,
        checkpoint: CheckpointConfig | None = None,
        restart: RestartPolicy | None = None,
        partitions: int | None = None,
        conf: Mapping[str, str] | None = None,
        chain: bool = True,
    ) -> None:
        """`partitions` is the number of state partitions of every stage that does not say otherwise.
        `conf` are Spark settings for the session. `chain`: stages may become part of the query that reads them, where
        that changes no row; chain=False: each has a query and a channel of its own."""
        self.name = check_uid(name, "pipeline name")
        for option, value, kind in (("checkpoint", checkpoint, CheckpointConfig), ("restart", restart, RestartPolicy)):
            if value is not None and not isinstance(value, kind):
                raise Misuse(
                    f"Pipeline {name!r}: {option}={value!r} is not legal.", next=f"Use a strobe.{kind.__name__}(…)."
                )
        self.checkpoint = checkpoint or CheckpointConfig()
        self.restart = restart or RestartPolicy()
        self.partitions = stage_options.check_positive(partitions, "partitions", f"Pipeline {name!r}")
        self.conf = stage_options.check_conf(conf, f"Pipeline {name!r}")
        self.chain = bool(stage_options.check_chain(chain, f"Pipeline {name!r}"))
        self.py_files: tuple[str, ...] = ()  # places on `sys.path` that go to the workers whole
        self._stages: dict[NodeId, StageSpec] = {}
        self._invariants: dict[str, Invariant | None] = {}  # None: of a decorator that has no function yet

    def stage(
        self,
        uid: str,
        *,
        reads: str | Feedback | Iterable[str | Feedback] | None = None,
        output_mode: str = "append",
        to: Sink | Iterable[Sink] = (),
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        partitions: int | None = None,
        trigger: Mapping[str, Any] | None = None,
        conf: Mapping[str, str] | None = None,
        start: stage_options.Start = stage_options.SNAPSHOT,
        replaces: str | None = None,
        renamed: Mapping[str, str | None] | None = None,
        bad_files: str = stage_options.FAIL,
        chain: bool | None = None,
    ) -> Callable[[F], F]:
        """Declare a stage. The function gets one streaming DataFrame for each channel that it reads, by name, or the
        SparkSession if it reads none, and returns a streaming DataFrame. One that reads channels and has a parameter
        `spark` gets the session as well: for a table to join with, or a source of its own.

        `max_rows_per_batch` and `max_bytes_per_batch` limit a micro-batch, in whole commits of the producer.
        `trigger` is what Spark's writeStream.trigger takes: {"processingTime": "1 second"}, {"availableNow": True}.
        With the latter a stage that reads others ends behind them, once its own sources have no more.
        `start` counts for a stage that has never run. On channels that exist it begins at the "snapshot" (or where
        the job was left), or at the "earliest" row that is kept. A source stage begins where its sources' options say,
        or at what is "latest" then, or, if it reads files, behind a time.
        `replaces` names a stage that this one takes the place of: it goes on where that one was, without its state.
        `renamed` says which columns of its output have another name than in earlier runs, {"old": "new"}, and which
        are gone although a new one looks like them, {"old": None}. It may stay in the file.
        `bad_files`: "fail", or "set_aside" to go on without input files that cannot be read.
        `chain`: whether it may become part of the query that reads it, if that changes no row; or as the pipeline says.
        """
        if callable(uid):
            named = getattr(uid, "__name__", "name")
            raise Misuse(
                f"A stage of pipeline {self.name!r}, the function {named!r}, has no uid.",
                next=f'Write @pipeline.stage(uid="{named}") above it, with parentheses.',
            )
        where = f"Stage {uid!r} of pipeline {self.name!r}"
        check_uid(uid, "stage uid")
        node = NodeId(uid)
        if node in self._stages:
            raise Misuse(
                f"{where} is declared twice.",
                next="Give each stage its own uid; state is found again by it after a restart.",
            )
        if output_mode not in OUTPUT_MODES:
            raise Misuse(f"{where}: output_mode {output_mode!r} is not one of {', '.join(OUTPUT_MODES)}.")
        if replaces is not None:
            check_uid(replaces, f"{where} replaces a stage whose uid")
        listed = _listed(reads, where)
        names = [r.uid if isinstance(r, Feedback) else r for r in listed]
        for name in names:
            check_uid(name, f"{where} reads a stage whose uid")
        if len(set(names)) < len(names):
            raise Misuse(f"{where} reads the same stage twice.", next="Read it once and use the DataFrame twice.")
        if len({argument_name(n) for n in names}) < len(names):
            raise Misuse(f"{where} reads stages whose parameters would have the same name: {', '.join(names)}.")
        sinks = _sinks(to, where)
        begins = stage_options.check_start(start, where, channels=bool(names))
        check_trigger(trigger or {}, where)
        settings = stage_options.check_conf(conf, where)

        def declare(function: F) -> F:
            if not callable(function):
                raise Misuse(f"{where} is not a function.")
            _check_parameters(function, names, where)
            self._stages[node] = StageSpec(
                uid=node,
                function=function,
                reads=tuple(NodeId(r) for r in listed if isinstance(r, str)),
                feedback={NodeId(r.uid): r.schema for r in listed if isinstance(r, Feedback)},
                output_mode=output_mode,
                sinks=sinks,
                max_rows_per_batch=stage_options.check_positive(max_rows_per_batch, "max_rows_per_batch", where),
                max_bytes_per_batch=stage_options.check_positive(max_bytes_per_batch, "max_bytes_per_batch", where),
                partitions=stage_options.check_positive(partitions, "partitions", where),
                trigger=dict(trigger or {}),
                conf=settings,
                start=begins,
                replaces=None if replaces is None else NodeId(replaces),
                renamed=stage_options.check_renamed(renamed, where),
                bad_files=stage_options.check_bad_files(bad_files, where),
                chain=stage_options.check_chain(chain, where),
            )
            return function

        return declare

    def invariant(
        self, name: str, *, sql: str | None = None, every: int = 1, on_violation: str = "report"
    ) -> Callable[[G], G]:
        """Declare what must hold in every snapshot: a query that gives the rows which must not exist, or, as a
        decorator, a function that gets the cut (as from `strobe.open_snapshot`) and returns such rows, or whether it
        holds. It is asked of every `every`-th checkpoint, in the background. `on_violation` is "report", "fail" to end
        the job, or "hold": what sinks deliver on snapshot becomes visible only when it holds, or is released."""
        try:
            wanted = OnViolation(on_violation)
        except ValueError:
            raise Misuse(
                f"Invariant {name!r}: on_violation={on_violation!r} is not legal.",
                next=f"{did_you_mean(str(on_violation), list(OnViolation))}Use one of: {', '.join(OnViolation)}.",
            ) from None

        def add(function: G | None) -> None:
            if self._invariants.get(name) is not None:
                raise Misuse(
                    f"Pipeline {self.name!r} has two invariants {name!r}.", next="Give one of them another name."
                )
            self._invariants[name] = Invariant(name, sql, function, every, wanted)

        if sql is not None:
            add(None)
        self._invariants.setdefault(name, None)

        def register(function: G) -> G:
            add(function)
            return function

        return register

    @property
    def invariants(self) -> tuple[Invariant, ...]:
        # One without a query or function is a decorator that was never used: `Invariant` refuses it.
        return tuple(found or Invariant(name) for name, found in self._invariants.items())

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {', '.join(self._stages) or 'no stage yet'}>"

    @property
    def stages(self) -> Mapping[NodeId, StageSpec]:
        return self._stages

    def graph(self) -> Graph:
        """Nodes are stages; a channel for each (producer, consumer) pair, named producer>consumer."""
        channels = [
            Channel(ChannelId(f"{read}>{stage.uid}"), read, stage.uid, read in stage.feedback)
            for stage in self._stages.values()
            for read in stage.inputs
        ]
        return Graph(tuple(self._stages), tuple(channels))

    def readers(self, uid: NodeId) -> tuple[NodeId, ...]:
        """The stages that read this one's channel."""
        return tuple(sorted(s.uid for s in self._stages.values() if uid in s.inputs))

    def order(self) -> tuple[NodeId, ...]:
        """Upstream before downstream, feedback left out."""
        done: dict[NodeId, None] = {}
        waiting = dict(self._stages)
        while waiting:
            ready = [uid for uid, stage in waiting.items() if all(r in done for r in stage.reads)]
            for uid in ready:
                done[uid] = None
                del waiting[uid]
            if not ready:
                raise Misuse(
                    f"Pipeline {self.name!r}: {', '.join(waiting)} read each other in a loop.",
                    next='Close the loop with strobe.feedback("uid", schema="…") in one of them.',
                )
        return tuple(done)

    def check(self, base: Path | None = None) -> None:
        """Everything that can be wrong with the graph, before anything is started. `base` is where relative paths of
        sinks begin."""
        if not self._stages:
            raise Misuse(f"Pipeline {self.name!r} has no stage.", next="Declare one with @pipeline.stage(uid=…).")
        for stage in self._stages.values():
            for read in stage.inputs:
                if read not in self._stages:
                    raise Misuse(
                        f"Stage {stage.uid!r} of pipeline {self.name!r} reads {read!r}, but there is no such stage.",
                        next=f"{did_you_mean(read, self._stages)}The stages are: {', '.join(self._stages)}.",
                    )
        for stage in self._stages.values():
            if not self.readers(stage.uid) and not stage.sinks:
                raise Misuse(
                    f"Nobody reads stage {stage.uid!r} of pipeline {self.name!r} and it has no sink: "
                    "its result would go nowhere.",
                    next="Attach a sink with to=…, or read it in another stage.",
                )
            if stage.output_mode == "complete" and self.readers(stage.uid):
                raise Misuse(
                    f"Stage {stage.uid!r} has output_mode 'complete' and is read by "
                    f"{', '.join(self.readers(stage.uid))}: a channel carries rows once, not whole tables.",
                    next="Use 'update' (or 'append'), or give the result to a sink only.",
                )
            for sink in stage.sinks:
                sink.check_stage(stage.uid, stage.output_mode)
        check_places(self.name, self._stages.values(), (base or Path()).absolute())
        self._check_replaced()
        self.order()
        self._check_ends()

    def _check_ends(self) -> None:
        """A stage ends after those that it reads, so it cannot be told to end if one of them runs for ever."""
        ends: dict[NodeId, bool] = {}
        for uid in self.order():
            stage = self._stages[uid]
            endless = [read for read in stage.reads if not ends[read]]
            if endless and stage.ends:
                raise never_ends(uid, endless[0])
            ends[uid] = not endless and (stage.ends or bool(stage.inputs))

    def _check_replaced(self) -> None:
        taken: dict[NodeId, NodeId] = {}
        for uid, stage in self._stages.items():
            if stage.replaces is None:
                continue
            if stage.replaces in self._stages:
                raise Misuse(
                    f"Stage {uid!r} of pipeline {self.name!r} replaces {stage.replaces!r}, which is still there.",
                    next=f"Take {stage.replaces!r} out of the file, or replaces= away.",
                )
            other = taken.setdefault(stage.replaces, uid)
            if other != uid:
                raise Misuse(
                    f"Stages {other!r} and {uid!r} of pipeline {self.name!r} both replace {stage.replaces!r}.",
                    next="Only one of them can go on where it was.",
                )

    def __reduce__(self) -> Any:
        """It stays in the driver: with it every stage, sink and connection would go to the workers."""
        raise PicklingError(f"pipeline {self.name!r} cannot be used in a function that runs on Spark's workers")

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def renamed(self, name: str) -> Self:
        """The same stages as another job."""
        other = copy(self)
        other.name = check_uid(name, "pipeline name")
        return other

    def with_stages(self, stages: Mapping[NodeId, StageSpec]) -> Self:
        vars(other := copy(self))["_stages"] = dict(stages)
        return other

    def varied(
        self, *, checkpoint: CheckpointConfig, restart: RestartPolicy, stages: Mapping[NodeId, StageSpec]
    ) -> Self:
        """The same job with other settings and stages, to be tried: its invariants are not asked."""
        other = self.with_stages(stages)
        other.checkpoint, other.restart = checkpoint, restart
        other._invariants = {}
        return other


def _sinks(to: Sink | Iterable[Sink], where: str) -> tuple[Sink, ...]:
    from strobe.hosts.spark.connectors.base import Sink

    sinks = (to,) if isinstance(to, Sink) or not isinstance(to, Iterable) or isinstance(to, str) else tuple(to)
    for sink in sinks:
        if not isinstance(sink, Sink):
            raise Misuse(f"{where}: to={sink!r} is not a sink.", next="Use strobe.DeltaSink(path) or another sink.")
    return sinks


def _listed(reads: Any, where: str) -> list[str | Feedback]:
    if reads is None or isinstance(reads, str | Feedback):
        return [] if reads is None else [reads]
    if not isinstance(reads, Iterable):
        raise Misuse(f"{where}: reads={reads!r} is neither the uid of a stage nor a list of them.")
    return list(reads)


def _check_parameters(function: StageFunction, names: list[str], where: str) -> None:
    """A channel's DataFrame is passed by name; a uid that is not an identifier ('a-b') is passed with underscores."""
    wanted = [argument_name(n) for n in names] or [SESSION]
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    if SESSION in parameters and SESSION not in wanted:
        wanted.append(SESSION)
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    missing = [n for n in wanted if n not in parameters]
    extra = [n for n in required if n not in wanted]
    if not names and len(required) == 1 and missing:
        return  # a source stage may call the session what it likes
    if missing or extra:
        raise Misuse(
            f"{where} takes ({', '.join(parameters)}), but it is given ({', '.join(wanted)}).",
            next="Name one parameter after each stage that it reads ('-' and '.' become '_'), and one 'spark' if it "
            "needs the session as well.",
        )


def argument_name(uid: str) -> str:
    return uid.replace("-", "_").replace(".", "_")
