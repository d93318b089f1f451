"""The space–time diagram of a run: `render(journal)` gives an SVG picture.

A line for each node, time to the right. Arrows are messages, dashed arrows are markers. Each snapshot has a colour: its
cut runs from top to bottom through the points at which the nodes recorded, the past left of it, and the messages that
it caught in flight are thick in that colour. Messages that break law 1 are thick in the warning colour and carry an
exclamation mark: colour is never the only sign. Beneath the lines stand a sentence for each snapshot and a legend of
what occurs. The same journal gives the same bytes.

In the order in which they run: `spacetime` (with `order`) reads the journal as points, arrows and cuts; `layout`
chooses what to show and in which column; `plan` gives everything its place; `drawing` paints it, with `labels`,
`legend`, `svg` and `theme`.
"""

from strobe.verify.diagram.drawing import render

__all__ = ["render"]
