"""The snapshot protocols as pure state machines: no I/O, no clock, no randomness, no threads.

How a host uses a machine
-------------------------
1. Make one machine per node, from the node's input and output channels.
2. Whatever happens at the node (a message or marker arrives, a snapshot is asked for, an input ends, a timer that
   the machine asked for runs out) becomes an input object: `effects = machine.step(input)`.
3. Perform the effects **in the order given**, completely, before the next `step`. The order is the protocol:
   `RecordState` comes before the `SendMarker`s of the same step because a marker must follow everything that the
   recorded state contains and precede everything that it does not.
4. Between `RecordState` and the end of that effect list, nothing may be delivered to the application and nothing may
   be sent by it.
5. Time is an input. A machine that needs a timer emits an effect that asks for one.

A step that makes no sense raises `HostFault` (the host broke the contract above) or `PeerFault` (a peer or a channel
broke the protocol), and leaves the machine as it was.

What is left out: transport, storage, failure detection, and the choice of who starts a snapshot. Hosts do these.

One entry per protocol, each of which knows only those before it: `events` (inputs and effects of the machines that
record a node), `transitions` (tables of phases), `chandy_lamport`, `lai_yang`, `barriers`, `wrong` (two that do not
work), `dijkstra_scholten`, `coordinator`, `restore`, `two_phase_commit`. A protocol with messages of its own has
them beside its machines.
"""
