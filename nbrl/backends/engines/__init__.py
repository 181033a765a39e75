"""The engines room: what samples from a policy."""
