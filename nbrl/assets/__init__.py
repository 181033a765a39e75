"""What ships with the package beside its code: the tiny model and the script that made it."""
