"""Two-phase commit of what sinks write. The decision is the snapshot's manifest; what no manifest names is aborted.

Theory of operation
-------------------
A participant (a sink) writes. At snapshot n it *prepares*: makes what it wrote durable but not visible, under a
*handle*. Its vote names every handle that it has prepared and not committed, oldest first. When all have voted, the
decision, with those handles, is logged; only when it is durable does the coordinator send commit(n). A participant
commits handle by handle, in order, durably forgets each, and only then acknowledges. When all have acknowledged, n is
settled: the log may forget it. Committing twice is harmless: a handle that is no longer prepared is skipped.

*Abandoning is silent.* When n is given up while everybody runs, its handles stay prepared and the next vote names
them: those rows are in nobody's future, so throwing them away would lose them. Several may be pending; because votes
name all of them, commit(n+1) includes n's, and the order holds whichever commit arrives first.

*Presumed abort.* Nothing is logged about a snapshot before its decision. So what no logged decision names was never
decided, and a participant that goes back to a snapshot, and will write those rows again, is told to abort it.

*In doubt.* After every restart, of either side, each participant reports what it has prepared, once per session, and
gets one answer: what to commit, what to abort, and the newest snapshot whose decision is logged. A participant that
rolls back loads *that* snapshot and no other, and only after the answer: then what it writes again is exactly what was
aborted. The answer waits while a decision is being logged, for nobody knows how that ends. A participant that comes
back with its writes intact (`keeps`), or never went away, has nothing aborted.

| who crashes | when | outcome |
|---|---|---|
| participant | before its prepare is durable | its vote cannot come: n is abandoned, the rows are written again |
| participant | prepared, vote not counted | n is abandoned; the handle is aborted (kept: named by the next snapshot) |
| participant | vote counted, n undecided | n is abandoned and the handle aborted (kept: the vote stands) |
| participant | while the decision is being logged | waits for the log; logged: committed; failed: aborted (or kept) |
| participant | decision logged, before its commit | committed |
| participant | visible, but not yet forgotten | committed a second time, which changes nothing |
| participant | forgotten, not acknowledged | it reports no such handle, which is the acknowledgement |
| coordinator | before the decision is durable | nothing is named: aborted where rolled back, else kept |
| coordinator | decision durable, any commit missing | the log names them: committed |
| coordinator | all acknowledged, not yet settled | nobody reports them: settled again |

*A verdict.* A decision may wait for the invariants of its snapshot (`Decision.judged`, as it is logged). Then one
decision more lies between the log and the commits: commit(n) goes out when n is logged *and* its invariants hold, or a
person has released n, *and* the same is true of every earlier decision that waits. The order matters twice: later rows
build on earlier ones, and a later decision names the earlier one's handles. What is held is kept: it is neither
committed nor aborted, and every vote names it. A release lets go everything up to a snapshot; it is durable before the
coordinator hears of it. A verdict need not be durable: a coordinator that restarts asks again. A snapshot that cannot
be asked, because a stage has not run yet, waits for the next one, whose verdict counts for both.

| who crashes | when | outcome |
|---|---|---|
| coordinator | decision logged, verdict not in | the log says that it waits: asked again, nothing is visible |
| coordinator | it holds, no commit out | asked again |
| coordinator | it holds, one participant has committed | that one has forgotten a handle: all others commit |
| coordinator | released, no commit out | the release is durable: committed |
| participant | its handle is held | the snapshot that it goes back to contains it: kept |

*Sessions.* A message belongs to the incarnation of the coordinator and that of the participant. An older session's
message is dropped, by both sides: it was sent to somebody who is gone, and the new session has asked again. A message
of a newer one means that the receiver is the one who is gone: it stands down and does nothing more.

The network may reorder, and keeps messages for a process that comes back; it neither loses nor duplicates within a
session.
"""

from strobe.protocol.two_phase_commit.coordinator import TwoPhaseCoordinator
from strobe.protocol.two_phase_commit.participant import TwoPhaseParticipant

__all__ = ["TwoPhaseCoordinator", "TwoPhaseParticipant"]
