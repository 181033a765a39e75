"""L0, the maths: tensors in, tensors out. May import torch and nothing else."""
