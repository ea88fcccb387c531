"""The two-phase protocol: what to record, which participants to commit, what to do after a fault; without I/O."""
