"""L6, the window: knows everything, known by nobody."""
