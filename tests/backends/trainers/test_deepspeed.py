"""DeepSpeed itself, real ranks over gloo at every ZeRO stage, against ``local``."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from nbrl.backends.trainers.sharding import assign, joined
from tests.backends.trainers import ranks
from tests.backends.trainers.small import make_batch, split

STAGES = ("0", "1", "2", "3")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="module")
def found():
    """What all ranks of one world of 1 and one of 2 found, started together, each once."""
    ports = {world: free_port() for world in (1, 2)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    running = {
        (world, rank): subprocess.Popen(
            [sys.executable, ranks.__file__, str(rank), str(world), str(ports[world])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for world in (1, 2)
        for rank in range(world)
    }
    said = {}
    try:
        for place, process in running.items():
            said[place], _ = process.communicate(timeout=400)
            assert process.returncode == 0, said[place][-3000:]
    finally:
        for process in running.values():
            process.kill()
    return {place: json.loads(text.strip().splitlines()[-1]) for place, text in said.items()}


PLACES = [(1, 0), (2, 0), (2, 1)]


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_is_that_of_local_at_any_stage_rank_count_and_cut(found, place, stage):
    """Metrics with the gradient norm, token columns, annotations, and weights after plain SGD."""
    for cuts, distances in found[place][stage]["steps"].items():
        assert {"loss", "grad_norm", "weights", "token ratio"} <= distances.keys()
        assert max(distances.values()) < 1e-5, (cuts, distances)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_ten_steps_of_adamw_have_the_loss_curve_of_local(found, place):
    for stage in STAGES:
        assert found[place][stage]["curve"] < 1e-4, stage


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_call_that_fails_or_is_interrupted_on_one_rank_changes_nothing_on_any(found, place):
    """Not finite in the second minibatch, Ctrl-C on one rank, not finite in the only one."""
    for stage in STAGES:
        stopped = found[place][stage]["stopped"]
        assert stopped["failures"] == ["StepError", "KeyboardInterrupt", "StepError"]
        assert stopped["kept"] == 0.0, stage
        assert stopped["after"] < 1e-5, stage


def test_ranks_get_the_same_number_of_pieces_and_every_row_once():
    batches = split(make_batch([5, 3, 8, 1, 6, 4, 2, 9]), 3)
    for ranks_there in (1, 2, 3, 5):
        shares = assign(batches, ranks_there)
        assert len({len(share) for share in shares}) == 1
        told = [(p, p.batch.input_ids[:, :1]) for share in shares for p in share]
        for batch, column in zip(batches, joined(told, len(batches)), strict=True):
            assert torch.equal(batch.input_ids[:, :1], column)
        work = [sum(p.batch.input_ids.numel() for p in s if p.counts) for s in shares]
        largest = max(p.batch.input_ids.numel() for s in shares for p in s)
        assert max(work) - min(work) <= largest


def test_rows_that_are_pairs_stay_together():
    (share, other) = assign([make_batch([3] * 6)], 2)
    assert [len(p.batch.rows) % 2 for p in (*share, *other)] == [0, 0]
