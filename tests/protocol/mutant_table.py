"""The table of rules, mutants and tests, made from the registries: docs/reference/mutants.md.

The snapshot protocols' mutants are in `strobe.hosts.sim.mutants`; those of the other machines stand beside the tests
that catch them, and their rules are told here. `tests/protocol/test_mutants.py` keeps page and registries in step;
`pytest tests/protocol/test_mutants.py --rewrite` writes the page again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType

from strobe.hosts.sim.mutants import MUTANTS
from strobe.protocol.barriers import Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.dijkstra_scholten import DijkstraScholten
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.restore import RestoreCoordinator, RestoreParticipant
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from tests.predicates.test_detector_mutants import RULES
from tests.protocol import (
    test_coordinator,
    test_dijkstra_scholten,
    test_held_commits,
    test_restore,
    test_two_phase_commit,
)

__all__ = ["OTHERS", "defined", "page"]

HEAD = """\
# Rules and mutants

For each rule of each protocol there is a mutant, a machine that breaks exactly this rule, and a test that catches it.
The same runs pass with the real machine. So every check can fail, and every rule is needed.

The snapshot protocols' mutants are put through random systems and schedules (`strobe.hosts.sim.seeds`). They are found
out in one of these ways:

| found out by | what is seen |
|---|---|
| cut | a complete snapshot is not a consistent cut: the host sees it, and the verifier finds it in the journal |
| markers | a channel carried more or fewer than one marker for a snapshot |
| protocol | a machine refuses an input: its peer, or its host, broke the protocol |
| liveness | the run is over, but a snapshot is not complete, a node still records, or a channel is held for ever |

To watch one, let the explorer find a schedule that shows it, shrunk to what is needed:

```console
$ strobe sim explore bank --script two-transfers --mutant records-late
# exit 1
violations: 44 schedules of 102
The smallest run found that fails ...
   1. initiate n1 snapshot 1
   2. act n1
```

The test runs once for each mutant and each protocol that it stands under; `pytest -k records-late` runs one.
The first seed that shows each is printed by `python bench/sim_seeds.py --mutants`.

This page is made from the registries: `pytest tests/protocol/test_mutants.py --rewrite`.
"""


@dataclass(frozen=True)
class Other:
    """Machines whose mutants are defined beside their tests."""

    title: str
    module: ModuleType
    machines: tuple[type, ...]
    tests: tuple[str, ...]  # which catches the mutants of each machine
    rules: dict[str, str]  # by the mutant's class


OTHERS = (
    Other(
        "Coordinator", test_coordinator, (Coordinator,), ("test_a_coordinator_that_breaks_a_rule_is_caught",),
        {
            "WritesEarly": "The manifest is written only after the last acknowledgement.",
            "CommitsEarly": "Completion is announced, and sinks commit, only after the manifest.",
            "DisposesEarly": "An older checkpoint goes only when a newer one is complete.",
            "BelievesTheDead": "Acknowledgements of an older incarnation are not counted.",
            "EndsTheJobAtARefusedCut": "A cut that is refused fails its snapshot, and not the job.",
            "GoesOnWithoutSnapshots": "A job of which every cut is refused ends, and says so.",
            "LetsCheckpointsOvertake": "No checkpoint that starts everywhere is begun beside an aligned savepoint.",
        },
    ),
    Other(
        "Two-phase commit", test_two_phase_commit, (TwoPhaseCoordinator, TwoPhaseParticipant),
        ("test_the_check_catches_a_coordinator_that", "test_the_check_catches_a_participant_that"),
        {
            "CommitsBeforeTheLog": "Commit goes out only after the decision, the manifest, is logged.",
            "RestoresTheSnapshotBefore": "What a complete snapshot names is committed, even after a crash before that.",
            "CommitsWhateverIsPrepared": "What no decision names is aborted.",
            "AnswersWhileLogging": "Nobody in doubt is answered while a decision may still become durable.",
            "ForgetsBeforeTheAcknowledgements": "A decision is remembered until all have acknowledged it.",
            "CountsALostVote": "A vote counts only if its voter still stands by it after a restart.",
            "WaitsForAVoteThatCannotCome": "A transaction whose voter has gone back to before its vote is given up.",
            "HearsOldParticipants": "Messages of a participant's older incarnation are dropped.",
            "HearsAnswersToOldCoordinators": "Answers to an older coordinator are dropped.",
            "AbortsWhatIsKept": "What will not be written again is kept, not aborted.",
            "NeverAnswers": "Who is in doubt gets an answer.",
            "VotesBeforeItIsDurable": "A participant votes when its writes are durable.",
            "AcknowledgesBeforeItCommits": "A participant acknowledges after it has committed.",
            "VotesForTheNewestOnly": "A vote names all that is prepared, an abandoned snapshot's writes included.",
            "RefusesToCommitTwice": "Commit is idempotent.",
        },
    ),
    Other(
        "Two-phase commit that waits for a verdict", test_held_commits, (TwoPhaseCoordinator,),
        ("test_the_check_catches_a_coordinator_that",),
        {
            "CommitsBeforeTheVerdict": "What waits for a verdict is not committed before it.",
            "ForgetsAReleaseAtARestart": "What a person has released stays released.",
            "ForgetsAtARestartThatItWaits": "The log says of a decision that it waits for a verdict.",
            "HearsTheVerdictOnAnotherSnapshot": "A verdict counts for the snapshot that was asked.",
            "PassesOverAHeldOne": "What is held holds back everything later.",
            "TakesAPostponedOneForOneThatHolds": "What cannot be asked waits for the next that can.",
            "AbortsWhatIsHeld": "What is held is kept: the snapshot that a sink goes back to contains it.",
            "AsksOnce": "After a restart the verdict is asked for again.",
        },
    ),
    Other(
        "Restore", test_restore, (RestoreCoordinator, RestoreParticipant),
        ("test_the_check_catches_a_coordinator_that", "test_the_check_catches_a_node_that"),
        {
            "StartsWhenTheFirstIsReady": "Nobody starts before everybody is ready.",
            "UsesAnIncarnationTwice": "Every attempt has an incarnation of its own.",
            "KeepsTheTimelineOfAFailedStart": "A start that some may have followed uses its timeline up.",
            "IgnoresALostNode": "A node that is lost during a restore makes it start again.",
            "SaysReadyBeforeItHasLoaded": "A node says that it is ready when its state is loaded.",
            "HasNoFence": "Messages of an older incarnation are dropped.",
            "DeliversWhileItIsReady": "Nothing is delivered before the start.",
            "DropsWhatComesBeforeItsStart": "Messages of the new life that come before the start wait for it.",
        },
    ),
    Other(
        "Dijkstra–Scholten", test_dijkstra_scholten, (DijkstraScholten,), ("test_the_check_catches_a_node_that",),
        {
            "SignalsTheFirstMessageAtOnce": "The message that engaged a node is signalled when the node leaves.",
            "ForgetsItsDeficit": "A node leaves only when all that it sent has been signalled.",
            "LeavesWhileItIsActive": "A node leaves only when it is passive.",
            "SignalsOnlyItsParent": "Every message that does not engage a node is signalled at once.",
            "TakesEveryMessageForAParent": "The parent is whoever sent the first message.",
        },
    ),
)  # fmt: skip


def defined(other: Other) -> set[str]:
    """The mutants that the module really has: subclasses of the machines, defined there."""
    return {
        name
        for name, cls in inspect.getmembers(other.module, inspect.isclass)
        if cls.__module__ == other.module.__name__ and issubclass(cls, other.machines)
    }


def page() -> str:
    return "\n".join([HEAD, *_snapshot_protocols(), *_others(), *_detectors()])


def _snapshot_protocols() -> Iterator[str]:
    for title, machine in (("Chandy–Lamport", ChandyLamport), ("Lai–Yang", LaiYang), ("Barriers", Barriers)):
        yield f"## {title}\n"
        yield "Tests in `tests/protocol/test_mutants.py`.\n"
        yield "| rule | mutant | under | found out by | test |"
        yield "|---|---|---|---|---|"
        for mutant in MUTANTS.values():
            if issubclass(mutant.machine, machine):
                under = ", ".join(mutant.protocols)
                yield f"| {mutant.rule} | `{mutant.name}` | {under} | {mutant.shows} | `test_a_mutant_is_caught` |"
        yield ""


def _others() -> Iterator[str]:
    for other in OTHERS:
        yield f"## {other.title}\n"
        yield f"Tests in `tests/protocol/{other.module.__name__.rpartition('.')[2]}.py`.\n"
        yield "| rule | mutant | test |"
        yield "|---|---|---|"
        for name, rule in other.rules.items():
            mutant = getattr(other.module, name)
            test = next(
                t for t, machine in zip(other.tests, other.machines, strict=True) if issubclass(mutant, machine)
            )
            yield f"| {rule} | `{name}` | `{test}` |"
        yield ""


def _detectors() -> Iterator[str]:
    yield "## Detectors of predicates\n"
    yield "Stable ones are judged by the rest of the run, those over all cuts by brute force. Tests in"
    yield "`tests/predicates/test_detector_mutants.py`.\n"
    yield "| rule | mutant |"
    yield "|---|---|"
    for name, rule in RULES.items():
        yield f"| {rule} | `{name}` |"
    yield ""
