"""Every estimator against the slow loop, against its siblings, and against known values."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import ConfigError, DataError, UnknownNameError
from nbrl.functional.baselines import BASELINES, SCALES, WHITENINGS
from nbrl.functional.credit import MASKED_TOKENS
from nbrl.functional.estimators import ESTIMATORS, Estimator, estimate, named, scalar_advantages
from nbrl.functional.reductions import whiten
from tests import naive
from tests.strategies import Batch, batches

EVERY = sorted(ESTIMATORS)
GROUPED = [name for name in EVERY if ESTIMATORS[name].needs_group]
UNWHITENED = [name for name in EVERY if ESTIMATORS[name].whiten == "none"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def bools(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def double(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def one_token(estimator, rewards, ids=None, **more):
    """Advantages of rows of one token each."""
    x = torch.as_tensor(rewards, dtype=torch.float64)
    groups = torch.zeros(len(x), dtype=torch.long) if ids is None else torch.tensor(ids)
    mask = torch.ones(len(x), 1, dtype=torch.bool)
    return estimate(estimator, x, groups, mask, **more)[0][:, 0]


def close(got, wanted, atol=2e-6):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0)


def of(batch: Batch, estimator, **more):
    return estimate(
        estimator, batch.rewards, batch.group_ids, batch.mask, values=batch.values, **more
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gae", [1.732051, -0.577350, -0.577350, -0.577350]),
        ("reinforce_pp", [1.732051, -0.577350, -0.577350, -0.577350]),
        ("rloo", [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ("reinforce_pp_baseline", [1.732051, -0.577350, -0.577350, -0.577350]),
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("dr_grpo", [0.75, -0.25, -0.25, -0.25]),
        ("opo", [0.75, -0.25, -0.25, -0.25]),
        ("maxrl", [3.0, -1.0, -1.0, -1.0]),
        ("gpg", [0.75, -0.25, -0.25, -0.25]),
        ("grpo_batch_std", [1.5, -0.5, -0.5, -0.5]),
        ("grpo_loo_std", [1.0, -0.577349, -0.577349, -0.577349]),
    ],
)
def test_one_right_answer_of_four_by_hand(name, wanted):
    close(one_token(name, [1.0, 0, 0, 0], values=torch.zeros(4, 1)), wanted)


def test_the_hand_values_cover_every_row():
    (parametrize,) = test_one_right_answer_of_four_by_hand.pytestmark
    assert sorted(name for name, _ in parametrize.args[1]) == EVERY


def test_opo_weighs_the_baseline_by_length():
    mask = torch.arange(4) < torch.tensor([[1], [2], [3], [4]])
    got, _ = estimate("opo", double(1, 0, 0, 0), torch.zeros(4, dtype=torch.long), mask)
    close(got[:, 0], [0.9, -0.1, -0.1, -0.1])


def test_gpg_makes_up_for_groups_without_signal():
    got = one_token("gpg", [1.0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2])
    close(got, [1.5, -1.5, 0, 0, 0, 0])


def test_batch_std_divides_by_the_spread_of_the_batch():
    rewards, ids = [1.0, 0, 9, 7], [0, 0, 1, 1]
    spread = double(*rewards).std()
    close(one_token("grpo_batch_std", rewards, ids), double(0.5, -0.5, 1, -1) / spread)


def test_maxrl_gives_nothing_where_the_mean_is_not_positive():
    assert one_token("maxrl", [-1.0, 0]).tolist() == [0, 0]
    assert one_token("maxrl", [-1.0, 1]).tolist() == [0, 0]
    for rewards in ([0.3, -0.1, -0.2], [0.7, -0.3, -0.4], [1.1, -0.4, -0.7]):
        for dtype in (torch.float32, torch.float64):
            x, ids = torch.tensor(rewards, dtype=dtype), torch.zeros(3, dtype=torch.long)
            assert torch.count_nonzero(scalar_advantages("maxrl", x, ids)) == 0


@settings(max_examples=150, deadline=None)
@given(batches(), st.sampled_from(EVERY), st.sampled_from([0.0, 0.1]), st.data())
def test_every_row_is_the_slow_loop(batch, name, kl_coef, data):
    walk = data.draw(st.sampled_from(sorted(MASKED_TOKENS)))
    gamma = data.draw(st.sampled_from([1.0, 0.9]))
    lam = data.draw(st.sampled_from([1.0, 0.95, 0.0])) if name == "gae" else 1.0
    row = dataclasses.replace(ESTIMATORS[name], masked_tokens=walk, gamma=gamma, lam=lam)
    clip = data.draw(st.sampled_from([None, (-0.5, 1.0)]))
    same_as_the_loop(batch, row, kl_coef, clip)


@settings(max_examples=100, deadline=None)
@given(
    batches(),
    st.sampled_from(sorted(BASELINES)),
    st.sampled_from(sorted(SCALES)),
    st.sampled_from(sorted(WHITENINGS)),
    st.sampled_from([0, 1]),
)
def test_every_combination_of_choices_is_the_slow_loop(batch, baseline, scale, white, ddof):
    row = Estimator(
        baseline=baseline,
        scale=scale,
        whiten=white,
        eps=0.0 if scale in ("none", "live-share") else 1e-3,
        ddof=ddof if scale.endswith("std") else 1,
    )
    if scale == "signed-group-mean" and any(
        abs(naive.mean(batch.rewards[batch.group_ids == g].tolist()) + row.eps) < 1e-6
        for g in batch.group_ids
    ):
        return
    same_as_the_loop(batch, row, 0.0, None)


def same_as_the_loop(batch, row, kl_coef, clip):
    got = of(batch, row, kl=batch.kl, kl_coef=kl_coef, reward_clip=clip)
    wanted = naive.estimate(
        row,
        batch.rewards.tolist(),
        batch.group_ids.tolist(),
        batch.mask.tolist(),
        kl=batch.kl.tolist(),
        kl_coef=kl_coef,
        values=batch.values.tolist(),
        reward_clip=clip,
    )
    for mine, loop in zip(got, wanted, strict=True):
        expected = torch.tensor(loop, dtype=torch.float64).reshape(batch.mask.shape)
        torch.testing.assert_close(mine, expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=80, deadline=None)
@given(batches(), st.sampled_from(EVERY), st.integers(0, 2**31))
def test_contract_of_every_row(batch, name, seed):
    """Finite; masked places are 0 and have no influence; order of rows does not matter."""
    advantages, returns = of(batch, name, kl=batch.kl, kl_coef=0.1)
    for result in (advantages, returns):
        assert torch.isfinite(result).all()
        assert torch.count_nonzero(result[~batch.mask]) == 0
    poisoned = dataclasses.replace(
        batch,
        kl=batch.kl.masked_fill(~batch.mask, torch.nan),
        values=batch.values.masked_fill(~batch.mask, torch.inf),
    )
    for clean, dirty in zip(
        (advantages, returns), of(poisoned, name, kl=poisoned.kl, kl_coef=0.1), strict=True
    ):
        assert torch.equal(clean, dirty)
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    shuffled = Batch(**{k: v[order] for k, v in dataclasses.asdict(batch).items()})
    again = of(shuffled, name, kl=shuffled.kl, kl_coef=0.1)
    for mine, other in zip((advantages, returns), again, strict=True):
        torch.testing.assert_close(other, mine[order], atol=1e-7, rtol=1e-7)


@settings(max_examples=40, deadline=None)
@given(batches(), st.sampled_from(GROUPED), st.integers(-1000, 1000))
def test_names_of_groups_do_not_matter(batch, name, shift):
    moved = dataclasses.replace(batch, group_ids=batch.group_ids * -13 + shift)
    assert torch.equal(of(batch, name)[0], of(moved, name)[0])


@settings(max_examples=40, deadline=None)
@given(batches())
def test_rloo_is_dr_grpo_times_g_over_g_minus_1(batch):
    sizes = (batch.group_ids[:, None] == batch.group_ids).sum(1, keepdim=True)
    scaled = of(batch, "dr_grpo")[0] * sizes / (sizes - 1)
    torch.testing.assert_close(of(batch, "rloo")[0], scaled)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_gae_at_gamma_1_and_lambda_1_is_return_minus_value(batch):
    row = dataclasses.replace(ESTIMATORS["gae"], whiten="none")
    advantages, returns = of(batch, row)
    plain, _ = of(batch, Estimator())
    torch.testing.assert_close(
        advantages, torch.where(batch.mask, plain - batch.values, 0.0), atol=1e-9, rtol=1e-9
    )
    torch.testing.assert_close(returns, plain, atol=1e-9, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(batches())
def test_siblings_differ_by_one_choice(batch):
    torch.testing.assert_close(
        of(batch, "reinforce_pp_baseline")[0], whiten(of(batch, "dr_grpo")[0], batch.mask)
    )
    torch.testing.assert_close(
        of(batch, "reinforce_pp")[0], whiten(of(batch, Estimator())[0], batch.mask)
    )
    one_group = dataclasses.replace(batch, group_ids=torch.zeros_like(batch.group_ids))
    torch.testing.assert_close(of(one_group, "grpo")[0], of(one_group, "grpo_batch_std")[0])


@settings(max_examples=40, deadline=None)
@given(batches())
def test_zero_values_and_lambda_1_make_gae_a_return(batch):
    empty = dataclasses.replace(batch, values=torch.zeros_like(batch.values))
    row = Estimator(credit="gae", gamma=0.9)
    torch.testing.assert_close(of(empty, row)[0], of(empty, Estimator(gamma=0.9))[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in GROUPED if name in UNWHITENED])
@pytest.mark.parametrize("size", [2, 3, 5, 7, 64])
def test_b13_a_constant_group_is_exactly_zero_in_every_dtype(dtype, name, size):
    for value in (0.1, 0.7, -0.3, 1 / 3, 1e-6, 1000.1, 0.0):
        rewards = torch.full((size,), value, dtype=dtype)
        mask = torch.arange(5) < torch.randint(1, 6, (size, 1))
        got, _ = estimate(name, rewards, torch.zeros(size, dtype=torch.long), mask)
        assert torch.count_nonzero(got) == 0, value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in GROUPED if name in UNWHITENED])
def test_b13_sums_that_differ_by_rounding_are_constant(dtype, name):
    a, b, c = (torch.tensor(x, dtype=dtype) for x in (0.1, 0.2, 0.3))
    rewards = torch.stack([a + b, c, (c * 3 - a * 3) / 2, c])
    got, _ = estimate(name, rewards, torch.zeros(4, dtype=torch.long), bools(*[[1]] * 4))
    assert torch.count_nonzero(got) == 0


@pytest.mark.parametrize("name", [name for name in GROUPED if name in UNWHITENED])
def test_b13_a_constant_group_stays_zero_beside_a_live_one(name):
    got = one_token(name, [0.1, 0.9, 0.1, -5.0, 0.1], [4, 8, 4, 8, 4])
    assert got[[0, 2, 4]].tolist() == [0, 0, 0]
    assert (got[[1, 3]] != 0).all() or name == "maxrl"


def test_b13_the_group_std_is_the_sample_one():
    close(one_token("grpo", [0.1, 0.1, 0.1]), [0, 0, 0], atol=0)
    close(one_token("grpo", [1.0, 0, 0, 0]), [1.5, -0.5, -0.5, -0.5])
    population = dataclasses.replace(ESTIMATORS["grpo"], ddof=0)
    close(one_token(population, [1.0, 0, 0, 0]), [1.732051] + [-0.577350] * 3)


@pytest.mark.parametrize("outlier", [0.1, 5.0, -3.3])
def test_leave_one_out_std_leaves_a_row_unscaled_where_the_others_agree(outlier):
    got = one_token("grpo_loo_std", [outlier, 0.7, 0.7, 0.7])
    close(got[0], outlier - 0.7, atol=1e-12)
    close(one_token("grpo_loo_std", [0.4, 1.4]), [-1.0, 1.0])


@pytest.mark.parametrize("name", GROUPED)
def test_b15_a_group_of_one_is_refused_naming_both_settings(name):
    for ids in ([0], [0, 1], [0, 0, 1]):
        with pytest.raises(ConfigError, match=rf"{name}.*needs n >= 2 rollouts.*got n=1"):
            one_token(name, [1.0, 0.0, 0.5][: len(ids)], ids)


def test_b15_estimators_without_groups_take_one_sample():
    close(one_token(Estimator(), [1.0, 0.0], [0, 1]), [1, 0])
    close(one_token("reinforce_pp", [1.0, 0.0], [0, 1]), [1, -1])
    close(one_token("gae", [1.0, 0.0], [0, 1], values=torch.zeros(2, 1)), [1, -1])


@pytest.mark.parametrize(("singleton", "alone"), [("zero", 0.0), ("raw", 3.0)])
@pytest.mark.parametrize("name", [name for name in GROUPED if name in UNWHITENED])
def test_the_singleton_rule_says_what_a_group_of_one_gets(name, singleton, alone):
    row = dataclasses.replace(ESTIMATORS[name], singleton=singleton)
    got = one_token(row, [1.0, 3.0, 0.0], [0, 1, 0])
    assert got[1] == alone
    assert got[0] > 0


def test_b17_groups_are_joined_by_id_not_by_place():
    assert one_token("rloo", [1.0, 5, 0, 7], [0, 1, 0, 1]).tolist() == [1, -2, -1, 2]
    assert one_token("rloo", [1.0, 5, 0, 7], [9, 9, -4, -4]).tolist() == [-4, 4, -7, 7]


def test_b17_groups_of_different_sizes():
    got = one_token("dr_grpo", [1.0, 5, 0, 7, 0], [0, 1, 0, 1, 0])
    close(got, [2 / 3, -1, -1 / 3, 1, -1 / 3])


@pytest.mark.parametrize(
    ("kl", "mask", "coef", "wanted"),
    [
        ([0.1, 0.2, 0.3, 9.0], [1, 1, 1, 0], 0.5, [-0.05, -0.1, 0.85, 0]),
        ([0.1, 0.2, 0.3, 9.0], [1, 1, 0, 0], 0.0, [0, 1, 0, 0]),
        ([0.1, 9.0, 0.3, 9.0], [1, 0, 1, 0], 0.5, [-0.05, 0, 0.85, 0]),
        ([9.0, 9.0, 9.0, 9.0], [0, 0, 0, 0], 0.5, [0, 0, 0, 0]),
    ],
)
def test_b30_the_reward_stands_on_the_last_token_that_counts(kl, mask, coef, wanted):
    """With gamma 0 the return is the token's own reward."""
    got, _ = estimate(
        Estimator(gamma=0.0),
        double(1.0),
        torch.tensor([0]),
        bools(mask),
        kl=double(*kl)[None],
        kl_coef=coef,
    )
    close(got, [wanted])


@pytest.mark.parametrize("after", [7.0, float("nan"), float("inf")])
def test_b32_values_after_the_end_do_not_leak_into_gae(after):
    row = Estimator(credit="gae", lam=0.95)
    values = double(0.5, 0.4, 0.3, after)[None]
    advantages, returns = estimate(
        row, double(1.0), torch.tensor([0]), bools([1, 1, 1, 0]), values=values
    )
    close(advantages, [[0.43675, 0.565, 0.7, 0]])
    close(returns, [[0.93675, 0.965, 1, 0]])


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("walk", [0.6561, 0.729, 0, 0, 1]),
        ("skip", [0.81, 0.9, 0, 0, 1]),
        ("reset", [0, 0, 0, 0, 1]),
    ],
)
@pytest.mark.parametrize("padding", [0, 3])
def test_masked_tokens_inside_a_response(rule, wanted, padding):
    row = Estimator(gamma=0.9, masked_tokens=rule)
    mask = torch.nn.functional.pad(bools([1, 1, 0, 0, 1]), (padding, padding))
    got, _ = estimate(row, double(1.0), torch.tensor([0]), mask)
    close(got[:, padding : padding + 5], [wanted])


def test_skipping_gae_bootstraps_from_the_next_token_that_counts():
    mask, values = bools([1, 0, 1]), double(0.5, 100.0, 0.25)[None]
    row = Estimator(credit="gae", gamma=0.9, lam=0.5)
    got, _ = estimate(row, double(1.0), torch.tensor([0]), mask, values=values)
    last = 1 - 0.25
    close(got, [[0.9 * 0.25 - 0.5 + 0.45 * last, 0, last]])
    walk = dataclasses.replace(row, masked_tokens="walk")
    got, _ = estimate(walk, double(1.0), torch.tensor([0]), mask, values=values)
    between = 0.9 * 0.25 + 0.45 * last
    close(got, [[-0.5 + 0.45 * between, 0, last]])


P36 = {
    "rloo": [[0.98, 0.99, 0], [-0.03, -0.03, -0.01], [-1.03, 0, 0], [0, 0, 0]],
    "grpo": [[0.687107, 0.697107, 0], [-0.03, -0.03, -0.01], [-0.737107, 0, 0], [0, 0, 0]],
    "dr_grpo": [[0.48, 0.49, 0], [-0.03, -0.03, -0.01], [-0.53, 0, 0], [0, 0, 0]],
}


@pytest.mark.parametrize("name", sorted(P36))
def test_b36_the_whole_pipeline(name):
    mask = bools([1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1])
    kl = torch.tensor([[0.1, 0.1, 9], [0, 0.2, 0.1], [0.3, 9, 9], [0, 0, 0]])
    got, returns = estimate(
        name, torch.tensor([1.0, 0, 0, 0]), torch.tensor([5, 2, 5, 2]), mask, kl=kl, kl_coef=0.1
    )
    close(got, P36[name])
    assert torch.equal(got, returns)


def test_the_clip_comes_after_the_baseline():
    close(one_token("dr_grpo", [100.0, 0.0], reward_clip=(-1.0, 1.0)), [1, -1])
    close(one_token("dr_grpo", [100.0, 98.0], reward_clip=(-10.0, 10.0)), [1, -1])
    close(one_token("grpo", [1.0, 0, 0, 0], reward_clip=(-9.0, 1.25)), [1.25, -0.5, -0.5, -0.5])


def test_wide_batches_go_through_in_blocks():
    generator = torch.Generator().manual_seed(0)
    rows = 5000
    rewards, values = (
        torch.rand(rows, generator=generator),
        torch.rand(rows, 3, generator=generator),
    )
    mask = torch.rand(rows, 3, generator=generator) < 0.7
    ids, row = torch.arange(rows), Estimator(credit="gae", gamma=0.9, lam=0.8)
    whole, _ = estimate(row, rewards, ids, mask, values=values, kl=values, kl_coef=0.1)
    for part in (slice(0, 10), slice(4090, 4100), slice(4995, None)):
        some, _ = estimate(
            row, rewards[part], ids[part], mask[part],
            values=values[part], kl=values[part], kl_coef=0.1,
        )  # fmt: skip
        assert torch.equal(whole[part], some)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
def test_empty_batches_stay_empty(name, shape):
    ids = torch.zeros(shape[0], dtype=torch.long)
    mask = torch.ones(shape, dtype=torch.bool)
    advantages, returns = estimate(name, torch.rand(shape[0]), ids, mask, values=torch.rand(shape))
    assert advantages.shape == returns.shape == shape


def test_arguments_are_left_as_they_were():
    rewards, mask = torch.tensor([1.0, 0.0]), bools([1, 0], [1, 1])
    values, kl = torch.tensor([[1.0, torch.nan], [2.0, 3.0]]), torch.ones(2, 2)
    copies = [x.clone() for x in (rewards, mask, values, kl)]
    estimate("gae", rewards, torch.tensor([0, 0]), mask, values=values, kl=kl, kl_coef=0.1)
    for now, before in zip((rewards, mask, values, kl), copies, strict=True):
        assert torch.equal(now.nan_to_num(5), before.nan_to_num(5))


def test_a_function_is_an_estimator():
    def halves(rewards, group_ids, mask, *, kl, kl_coef, values, reward_clip):
        assert (kl, kl_coef, values, reward_clip) == (None, 0.0, None, None)
        spread = torch.where(mask, rewards[:, None] / 2, 0.0)
        return spread, spread

    assert one_token(halves, [1.0, 3.0]).tolist() == [0.5, 1.5]


def test_scalar_advantages_are_the_advantages_of_one_token():
    rewards, ids = torch.tensor([1.0, 0, 0.5]), torch.zeros(3, dtype=torch.long)
    got = scalar_advantages("grpo", rewards, ids)
    assert torch.equal(got, estimate("grpo", rewards, ids, bools([1], [1], [1]))[0][:, 0])
    with pytest.raises(ConfigError, match=r"opo.*needs lengths"):
        scalar_advantages("opo", rewards, ids)


def test_requests_that_cannot_work_say_why():
    with pytest.raises(UnknownNameError, match="known: dr_grpo, gae"):
        one_token("ppo", [1.0, 0.0])
    with pytest.raises(ConfigError, match=r"gae.*needs the critic's values"):
        one_token("gae", [1.0, 0.0])
    with pytest.raises(ConfigError, match="needs kl"):
        one_token("grpo", [1.0, 0.0], kl_coef=0.1)
    with pytest.raises(ConfigError, match="kl_coef must be >= 0"):
        one_token("grpo", [1.0, 0.0], kl_coef=-0.1, kl=torch.zeros(2, 1))
    with pytest.raises(ConfigError, match="low < high"):
        one_token("grpo", [1.0, 0.0], reward_clip=(1.0, 1.0))
    with pytest.raises(DataError, match=r"rows \[1\] are not"):
        one_token("grpo", [1.0, float("nan")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"baseline": "median"}, "baseline 'median' is unknown; known: none"),
        ({"scale": "mad"}, "scale 'mad' is unknown; known: none"),
        ({"credit": "td"}, "credit 'td' is unknown; known: return, gae"),
        ({"whiten": "yes"}, "whiten 'yes' is unknown; known: none"),
        ({"singleton": "drop"}, "singleton 'drop' is unknown; known: refuse"),
        ({"masked_tokens": "jump"}, "masked_tokens 'jump' is unknown; known: skip"),
        ({"gamma": 1.1}, "gamma must be a number in"),
        ({"credit": "gae", "lam": -0.1}, "lam must be a number in"),
        ({"lam": 0.9}, "lam=0.9 has no effect"),
        ({"eps": 1e-3}, "eps=0.001 has no effect"),
        ({"ddof": 0}, "ddof=0 has no effect"),
        ({"scale": "group-std", "ddof": 2}, "ddof must be 0 or 1"),
        ({"scale": "group-std", "eps": float("inf")}, "eps must be a number in"),
        ({"scale": "group-std", "eps": -1.0}, r"eps must be a number in \[0, inf\)"),
    ],
)
def test_an_estimator_that_cannot_be_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        Estimator(**changes)


def test_all_problems_of_an_estimator_come_in_one_message():
    with pytest.raises(ConfigError, match="3 problems") as refused:
        Estimator(baseline="median", gamma=2.0, ddof=7)
    assert all(name in str(refused.value) for name in ("baseline", "gamma", "ddof"))


def test_what_an_estimator_needs_follows_from_its_choices():
    needs = {name: (row.needs_group, row.needs_values) for name, row in ESTIMATORS.items()}
    assert needs.pop("gae") == (False, True)
    assert needs.pop("reinforce_pp") == (False, False)
    assert set(needs.values()) == {(True, False)}
    assert Estimator(scale="group-std").needs_group
    assert named(Estimator(baseline="leave-one-out"))[0] == "rloo"
    assert named(Estimator(baseline="leave-one-out", gamma=0.5))[0] == "custom"
