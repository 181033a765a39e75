"""L4, the cluster: thin shells around L3 objects, and the only Ray in the house."""
