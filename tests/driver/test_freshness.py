"""A batch is what it says: the policy's own, an older one's, another run's, or trained on."""

import dataclasses

import numpy as np
import pytest

from nbrl.config import PolicyLoss
from nbrl.driver.freshness import batch_digest, is_current, is_foreign
from nbrl.errors import StepError
from tests.driver.conftest import digest


def test_training_again_on_a_batch_declares_its_age_too(session, batch_of):
    batch = batch_of(session)
    session.train_step(batch)
    before = digest(session)
    with pytest.raises(StepError, match=r"pass again=True and expect_version=0 if it is meant"):
        session.train_step(batch)
    with pytest.raises(StepError, match=r"version 0 of the policy.*Pass expect_version=0"):
        session.train_step(batch, again=True)
    with pytest.raises(StepError, match=r"expect_version=7, but the samples are of versions 0"):
        session.train_step(batch, again=True, expect_version=7)
    with pytest.raises(StepError, match=r"pass again=True if it is meant"):
        session.train_step(batch, expect_version=0)
    assert digest(session) == before
    assert session.train_step(batch, again=True, expect_version=0).version_after == 2
    corrected = PolicyLoss(correction="tis")
    assert session.train_step(batch, corrected, again=True).version_after == 3


def test_a_batch_is_known_by_its_samples_and_advantages(session, batch_of):
    batch = batch_of(session)
    rollouts = batch.scored.rollouts
    assert is_current(session._runtime, rollouts)
    assert batch_digest(batch) == batch_digest(batch.take(np.arange(len(batch))))
    assert batch_digest(batch) != batch_digest(batch.take(np.arange(len(batch))[::-1]))
    other = dataclasses.replace(rollouts, spec={**rollouts.spec, "run": "another"})
    assert is_foreign(session._runtime, other)
    assert not is_current(session._runtime, other)
    of_other = dataclasses.replace(batch, scored=dataclasses.replace(batch.scored, rollouts=other))
    assert batch_digest(batch) != batch_digest(of_other)
