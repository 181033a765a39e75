"""L2, pure steps from value to value: no I/O, no models, no clock, no randomness of its own."""
