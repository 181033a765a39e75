"""The reward files that ship, each run as a file."""
