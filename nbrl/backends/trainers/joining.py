"""How the ranks of a trainer meet; imports torch, and deepspeed when they do."""

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """This rank among all, and where they meet.

    Example: ``Place(rank=0, world=2, host="127.0.0.1", port=29500)``.
    """

    rank: int
    world: int
    host: str
    port: int


def join_ranks(place: Place) -> None:
    """Meet the other ranks; returns when all are there.

    On a CPU gloo does all communication: DeepSpeed's own shared-memory operation needs a compiler
    and two minutes at the first start, and is left out.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    named = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": place.host,
        "MASTER_PORT": place.port,
    }
    os.environ.update({name: str(value) for name, value in named.items()})
    import deepspeed
    from deepspeed.ops import __compatible_ops__ as compatible

    on_gpu = os.environ["DS_ACCELERATOR"] == "cuda"
    if not on_gpu:
        compatible["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend="nccl" if on_gpu else "gloo", auto_mpi_discovery=False, verbose=False
    )
