"""Agents: programs that answer the policy, turn by turn, until an episode ends."""
