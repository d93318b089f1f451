"""Pure checkers over what was written down: is it true?

In the order in which a question passes through them:

- `journal` (and `lines`, one line of it): the file, whole or `Damaged`.
- `history`: its events by epoch, channel and snapshot.
- `causality`: happens-before; a legal order of all steps.
- `structure`, `markers`: could this run have happened, and were the markers those of the algorithm?
- `consistency` (and `explain`, which names the rule): law 1 for each snapshot; `check_journal` runs all of the above.
- `reachability`: the proof that a recorded state lies on a legal run.
- `positions`: law 1 where channels are logs.
- `violation`: what they all find. `diagram`: what happened, as a picture.

No checker trusts the order of lines of different nodes, and none changes what it is given.
"""
