"""What held, and what could have held: pure detectors over a cut or over a run.

A *stable* predicate, once true, stays true: a deadlock, the end of a computation, an object that nobody can reach. One
consistent cut that shows it proves that it holds now (Chandy and Lamport 1985, section 1).

Any other predicate may hold for a moment, and no snapshot need fall there. But a run tells more than its snapshots: its
events are ordered by cause and effect only, and every consistent cut of that order is a state in which the system could
have been (Cooper and Marzullo 1991). `possibly` asks whether the predicate holds in one of these cuts, `definitely`
whether it holds at some point in every order of the events that the run allows.

1. `computation` is the run as a partial order, `replay` makes one from a journal.
2. `condition` reads predicates from text.
3. `conjunctive`, `sums` and `lattice` decide: the first two fast, for predicates of a special form, the last any other.
4. `decide` chooses among them and says what was explored.
5. `walk` goes from cut to cut, forwards and backwards; `compare` finds where two runs part.

Nothing here performs anything, keeps time or knows a host.
"""
