"""What a user writes: processes, messages, a topology, the conditions of breakpoints."""
