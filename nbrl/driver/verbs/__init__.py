"""The verbs of a session, by family: what each takes and gives; its work is done elsewhere."""
