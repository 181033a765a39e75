"""L3, the outside world: one room a neighbour; effects, but no Ray."""
