"""From a batch to micro-batches: every sample once an epoch, the columns that a loss needs."""

import numpy as np

from nbrl.driver.plan import loss_columns, step_plan, trains_critic


def rows_of(minibatch):
    return np.sort(np.concatenate([micro.rows for micro in minibatch])).tolist()


def test_each_sample_is_in_one_minibatch_an_epoch(session, batch_of):
    batch = batch_of(session)
    columns = loss_columns(session._runtime, batch, corrected=False)
    whole = step_plan(session._runtime, batch, columns, 1, 2)
    assert [rows_of(minibatch) for minibatch in whole] == [list(range(24))] * 2
    plan = step_plan(session._runtime, batch, columns, 3, 2)
    assert len(plan) == 6
    for epoch in (plan[:3], plan[3:]):
        assert sorted(row for minibatch in epoch for row in rows_of(minibatch)) == list(range(24))
    assert [rows_of(m) for m in plan[:3]] != [rows_of(m) for m in plan[3:]]
    again = step_plan(session._runtime, batch, columns, 3, 2)
    assert [rows_of(m) for m in again] == [rows_of(m) for m in plan]


def test_old_log_probs_come_along_only_for_samples_of_another_policy(session, batch_of):
    batch = batch_of(session)
    assert "old_logprobs" not in loss_columns(session._runtime, batch, corrected=False)
    session.train_step(batch_of(session))
    stale = loss_columns(session._runtime, batch, corrected=False)
    table = batch.scored.rollouts.table
    assert stale["old_logprobs"].equals(table.column("rollout_logprobs"))
    assert "old_logprobs" not in loss_columns(session._runtime, batch, corrected=True)


def test_only_returns_of_gae_train_a_critic(open_tiny, batch_of):
    session = open_tiny(critic=True)
    gae = batch_of(session, estimator="gae")
    free = session.compute_advantages(gae.scored, "grpo")
    assert trains_critic(session._runtime, gae)
    assert not trains_critic(session._runtime, free)
    assert "values" in loss_columns(session._runtime, gae, corrected=False)
    assert "values" not in loss_columns(session._runtime, free, corrected=False)
