"""L5, what the kernel holds: the session, its verbs, the loops, the run folder."""
