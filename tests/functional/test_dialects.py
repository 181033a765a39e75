"""The golden numbers of other libraries: rewards 1, 0, 0, 0 of one group, and masked tokens."""

import pytest
import torch

from nbrl.errors import ConfigError, UnknownNameError
from nbrl.functional.dialects import DIALECTS, dialect
from nbrl.functional.estimators import Estimator, estimate

ROWS = [(library, name) for library, names in DIALECTS.items() for name in names]


def toy(row, rewards=(1.0, 0, 0, 0)):
    x = torch.tensor(rewards, dtype=torch.float64)
    mask = torch.arange(40) < torch.tensor([10, 20, 30, 40])[: len(x), None]
    values = torch.zeros(mask.shape)
    return estimate(row, x, torch.zeros(len(x), dtype=torch.long), mask, values=values)[0][:, 0]


@pytest.mark.parametrize(
    ("library", "name", "first", "others"),
    [
        ("prime-rl-0.8", "grpo", 0.75, -0.25),
        ("tinker-0.5", "grpo", 0.75, -0.25),
        ("openrlhf-0.11", "dr_grpo", 0.75, -0.25),
        ("trl-1.9", "dr_grpo", 0.75, -0.25),
        ("verl-0.9", "dr_grpo", 0.75, -0.25),
        ("skyrl-0.4", "dr_grpo", 0.75, -0.25),
        ("openrlhf-0.11", "grpo", 1.5000, -0.5000),
        ("verl-0.9", "grpo", 1.5000, -0.5000),
        ("skyrl-0.4", "grpo", 1.5000, -0.5000),
        ("trl-1.9", "grpo", 1.4997, -0.4999),
        ("nemo-0.7", "grpo", 1.0, -0.5773),
        ("openrlhf-0.11", "rloo", 1.0, -0.3333),
        ("trl-1.9", "rloo", 1.0, -0.3333),
        ("verl-0.9", "rloo", 1.0, -0.3333),
        ("skyrl-0.4", "rloo", 1.0, -0.3333),
        ("prime-rl-0.8", "maxrl", 3.0, -1.0),
        ("skyrl-0.4", "maxrl", 3.0, -1.0),
    ],
)
def test_same_name_other_gradient(library, name, first, others):
    got = toy(dialect(library, name))
    wanted = torch.tensor([first, others, others, others], dtype=torch.float64)
    # Half a unit of the last digit given; SkyRL's MaxRL adds 1e-6 to a mean of 0.25.
    torch.testing.assert_close(got, wanted, atol=5.1e-5, rtol=0)


def test_the_length_weighted_baseline():
    wanted = torch.tensor([0.9, -0.1, -0.1, -0.1], dtype=torch.float64)
    torch.testing.assert_close(toy("opo"), wanted)


def test_epsilons_show_in_the_sixth_digit():
    first = {
        library: toy(dialect(library, "grpo"))[0].item()
        for library in ("openrlhf-0.11", "verl-0.9", "trl-1.9")
    }
    assert first["openrlhf-0.11"] == pytest.approx(0.75 / (0.5 + 1e-9), abs=1e-12)
    assert first["verl-0.9"] == pytest.approx(0.75 / (0.5 + 1e-6), abs=1e-12)
    assert first["trl-1.9"] == pytest.approx(0.75 / (0.5 + 1e-4), abs=1e-12)


@pytest.mark.parametrize(
    ("library", "wanted"),
    [
        ("openrlhf-0.11", [0.6561, 0.729, 0, 0, 1]),
        ("verl-0.9", [0.81, 0.9, 0, 0, 1]),
        ("skyrl-0.4", [0, 0, 0, 0, 1]),
    ],
)
def test_three_ways_through_a_tool_call_are_all_called_reinforce_pp(library, wanted):
    rule = dialect(library, "reinforce_pp").masked_tokens
    row = Estimator(gamma=0.9, masked_tokens=rule)
    mask = torch.tensor([[1, 1, 0, 0, 1]], dtype=torch.bool)
    got, _ = estimate(row, torch.tensor([1.0]), torch.tensor([0]), mask)
    torch.testing.assert_close(got, torch.tensor([wanted], dtype=torch.float32))


def test_gae_at_a_turn_boundary():
    mask = torch.tensor([[1, 0, 1]], dtype=torch.bool)
    values, one = torch.tensor([[0.5, 9.0, 0.25]]), torch.tensor([1.0])
    first = {}
    for library in ("openrlhf-0.11", "verl-0.9"):
        rule = dialect(library, "gae").masked_tokens
        row = Estimator(credit="gae", lam=0.0, masked_tokens=rule)
        got, _ = estimate(row, one, torch.tensor([0]), mask, values=values)
        first[library] = got[0, 0].item()
    assert first == {"openrlhf-0.11": -0.5, "verl-0.9": -0.25}


@pytest.mark.parametrize(
    ("library", "name", "ddof"),
    [
        ("openrlhf-0.11", "reinforce_pp", 0),
        ("verl-0.9", "reinforce_pp", 1),
        ("skyrl-0.4", "reinforce_pp", 1),
    ],
)
def test_whitening_variance(library, name, ddof):
    mask = torch.ones(3, 1, dtype=torch.bool)
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    got, _ = estimate(dialect(library, name), x, torch.arange(3), mask)
    assert got.std(correction=ddof).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("library", "name", "alone"),
    [
        ("verl-0.9", "rloo", 0.7),
        ("skyrl-0.4", "rloo", 0.0),
        ("verl-0.9", "grpo", 0.7),
        ("skyrl-0.4", "grpo", 0.7),
        ("nemo-0.7", "grpo", 0.0),
    ],
)
def test_a_group_of_one(library, name, alone):
    assert toy(dialect(library, name), (0.7,)).tolist() == [alone]


@pytest.mark.parametrize("name", ["rloo", "reinforce_pp_baseline", "grpo", "dr_grpo"])
def test_openrlhf_refuses_a_group_of_one(name):
    with pytest.raises(ConfigError, match="n >= 2"):
        toy(dialect("openrlhf-0.11", name), (0.7,))


def test_flash_reinforce_takes_off_the_mean_of_the_batch():
    mask = torch.ones(3, 1, dtype=torch.bool)
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    got, _ = estimate(dialect("openrlhf-0.11", "flash_reinforce"), x, torch.arange(3), mask)
    assert got[:, 0].tolist() == [-2, -1, 3]


@pytest.mark.parametrize(("library", "name"), ROWS)
def test_every_dialect_is_finite_and_pushes_the_same_way_as_ours(library, name):
    got = toy(dialect(library, name), (1.0, 0.0, 0.25, 0.0))
    assert torch.isfinite(got).all()
    ours = {"flash_reinforce": "dr_grpo"}.get(name, name)
    assert torch.equal(got.sign(), toy(ours, (1.0, 0.0, 0.25, 0.0)).sign())


def test_unknown_libraries_and_names_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"trl-1\.9"):
        dialect("trl", "grpo")
    with pytest.raises(UnknownNameError, match="known: grpo"):
        dialect("nemo-0.7", "rloo")
