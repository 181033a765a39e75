"""From scored samples to training batches: what is dropped, shaped, and computed."""

import dataclasses
import time

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.config import ESTIMATOR_ALIASES, KL, Shaping
from nbrl.errors import ConfigError, DataError, UnknownNameError
from nbrl.functional.dialects import dialect
from nbrl.functional.estimators import ESTIMATORS, Estimator, estimate
from nbrl.stages.advantages import columns_needed, compute_advantages, estimator_name
from nbrl.types import Scored
from nbrl.types.columns import list_column
from tests.values import make_prompts, make_rollouts, make_scored, rollouts_of

FLOATS = pa.list_(pa.float32())


def scored_of(totals, sources=None, groups=None, **changes) -> Scored:
    rows = sources or [[0, 1]] * len(totals)
    named = pa.array(groups or ["g"] * len(totals), pa.string())
    return make_scored(rollouts_of(rows, group_id=named, **changes), totals)


def lists(*rows):
    return list_column(rows, pa.float32())


def column(value, name):
    return value.table.column(name).to_pylist()


def first_advantages(value) -> list[float]:
    """Of each sample, the advantage of its first token that counts."""
    pairs = zip(column(value, "advantages"), column(value, "mask"), strict=True)
    return [row[mask.index(True)] for row, mask in pairs]


def test_the_example_of_the_type():
    adv = compute_advantages(scored_of([1.0, 0, 0, 0]))
    assert column(adv, "group_mean") == [0.25] * 4
    assert column(adv, "group_std") == [0.5] * 4
    assert first_advantages(adv) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert column(adv, "reward") == [1, 0, 0, 0]
    assert column(adv, "live") == [True] * 4
    assert column(adv, "kl") == [[0, 0]] * 4


def test_token_columns_are_as_long_as_the_ids_and_zero_outside_policy_tokens():
    sources = [[0, 0, 0, 1, 1], [0, 1, 2, 2, 1, 2]]
    adv = compute_advantages(scored_of([1.0, 0.0], sources), "dr_grpo")
    assert column(adv, "mask") == [[s == 1 for s in row] for row in sources]
    assert column(adv, "advantages") == [[0, 0, 0, 0.5, 0.5], [0, -0.5, 0, 0, -0.5, 0]]
    assert column(adv, "returns") == column(adv, "advantages")


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(ESTIMATORS)))
def test_the_stage_is_the_pure_function_on_response_tokens(data, name):
    prompts = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    sources = [
        [0] * n + data.draw(st.lists(st.sampled_from([1, 1, 2]), max_size=4)) for n in prompts
    ]
    numbers = st.floats(-2, 2, width=32)
    drawn = [
        [data.draw(st.lists(numbers, min_size=len(r), max_size=len(r))) for r in sources]
        for _ in range(3)
    ]
    totals = data.draw(st.lists(numbers, min_size=4, max_size=4))
    scored = scored_of(
        totals,
        sources,
        ["a", "b", "a", "b"],
        rollout_logprobs=lists(*drawn[0]),
        ref_logprobs=lists(*drawn[1]),
        values=lists(*drawn[2]),
    )
    adv = compute_advantages(scored, name, kl=KL(coef=0.1))
    width = max(map(len, sources))

    def dense(rows):
        padded = [[*row, *[0] * (width - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.float32).reshape(4, width)

    mask = dense([[s == 1 for s in row] for row in sources]).bool()
    wanted = estimate(
        name,
        torch.tensor(totals, dtype=torch.float64),
        torch.tensor([0, 1, 0, 1]),
        mask,
        kl=dense(drawn[0]) - dense(drawn[1]),
        kl_coef=0.1,
        values=dense(drawn[2]),
    )
    for got, full in zip(("advantages", "returns"), wanted, strict=True):
        torch.testing.assert_close(dense(column(adv, got)), full.float(), atol=1e-5, rtol=1e-5)


P36 = {
    "rloo": [[0.98, 0.99], [-0.03, -0.03, -0.01], [-1.03], [0, 0, 0]],
    "group_norm": [[0.687107, 0.697107], [-0.03, -0.03, -0.01], [-0.737107], [0, 0, 0]],
    "dr_grpo": [[0.48, 0.49], [-0.03, -0.03, -0.01], [-0.53], [0, 0, 0]],
}


@pytest.mark.parametrize("name", sorted(P36))
def test_b36_the_whole_pipeline(name):
    kl = [[0.1, 0.1], [0, 0.2, 0.1], [0.3], [0, 0, 0]]
    scored = scored_of(
        [1.0, 0, 0, 0],
        [[0, *[1] * len(row)] for row in kl],
        ["p", "q", "p", "q"],
        rollout_logprobs=lists(*[[0, *[x - 1 for x in row]] for row in kl]),
        ref_logprobs=lists(*[[0, *[-1.0] * len(row)] for row in kl]),
    )
    adv = compute_advantages(scored, name, kl=KL(coef=0.1, kind="k1"))
    for row, wanted in zip(column(adv, "advantages"), P36[name], strict=True):
        assert row[1:] == pytest.approx(wanted, abs=2e-6)
    assert column(adv, "kl")[1] == pytest.approx([0, 0, 0.2, 0.1], abs=1e-6)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ([1, 1, 1, 0], [-0.05, -0.1, 0.85, 0]),
        ([1, 2, 1, 2], [-0.05, 0, 0.85, 0]),
        ([0, 0, 0, 0], [0] * 4),
    ],
)
def test_b30_the_reward_stands_on_the_last_policy_token(source, wanted):
    scored = scored_of(
        [1.0], [source], rollout_logprobs=lists([0.1, 0.2, 0.3, 9]), ref_logprobs=lists([0.0] * 4)
    )
    adv = compute_advantages(scored, Estimator(gamma=0.0), kl=KL(coef=0.5))
    assert column(adv, "advantages")[0] == pytest.approx(wanted, abs=1e-6)


def test_b32_values_after_the_end_do_not_leak():
    scored = scored_of([1.0], [[1, 1, 1, 0]], values=lists([0.5, 0.4, 0.3, 7]))
    adv = compute_advantages(scored, Estimator(credit="gae", lam=0.95))
    assert column(adv, "advantages")[0] == pytest.approx([0.43675, 0.565, 0.7, 0], abs=2e-6)
    assert column(adv, "returns")[0] == pytest.approx([0.93675, 0.965, 1, 0], abs=2e-6)


def test_b13_a_constant_group_is_dead_and_zero():
    adv = compute_advantages(scored_of([0.1, 0.1, 0.1, 1.0, 0.0], groups=list("aaabb")))
    assert first_advantages(adv)[:3] == [0, 0, 0]
    assert column(adv, "live") == [False] * 3 + [True] * 2
    assert column(adv, "group_std")[:3] == [0, 0, 0]


@pytest.mark.parametrize("name", ["rloo", "reinforce_baseline", "group_norm", "dr_grpo", "maxrl"])
def test_b15_one_sample_a_prompt_is_refused_before_any_work(name):
    with pytest.raises(ConfigError, match=r"needs n >= 2 rollouts a prompt; got n=1"):
        compute_advantages(scored_of([1.0, 0.0], groups=["a", "b"]), name)


def test_b15_estimators_without_groups_run_with_one_sample():
    scored = scored_of([1.0, 0.0], groups=["a", "b"], values=lists([0, 0], [0, 0]))
    for name in ("gae", "reinforce"):
        adv = compute_advantages(scored, name)
        assert first_advantages(adv) == pytest.approx([1, -1])
        assert column(adv, "live") == [True, True]


def test_b17_interleaved_groups():
    adv = compute_advantages(scored_of([1.0, 5, 0, 7], groups=list("abab")), "rloo")
    assert first_advantages(adv) == [1, -2, -1, 2]


def test_b21_two_rows_with_one_text_are_two_groups():
    adv = compute_advantages(
        scored_of([1.0, 0, 1, 1], groups=["row-0@0", "row-0@0", "row-1@0", "row-1@0"]), "dr_grpo"
    )
    assert first_advantages(adv) == [0.5, -0.5, 0, 0]


def test_b22_the_overlong_penalty_comes_before_the_baseline():
    sources = [[0, *[1] * n] for n in (80, 90, 100, 130)]
    shaping = Shaping(overlong_buffer=20)
    adv = compute_advantages(scored_of([1.0] * 4, sources), "dr_grpo", shaping=shaping)
    assert first_advantages(adv) == [0.625, 0.125, -0.375, -0.375]
    assert column(adv, "reward") == [1, 0.5, 0, 0]


def test_the_overlong_penalty_counts_policy_tokens_only():
    sources = [[0, *[2] * 95, 1], [0, *[1] * 95]]
    shaping = Shaping(overlong_buffer=10, overlong_penalty=2.0)
    adv = compute_advantages(scored_of([1.0, 1.0], sources), "dr_grpo", shaping=shaping)
    assert column(adv, "reward") == [1, 0]


def test_b24_the_filter_takes_raw_scores_and_an_open_interval():
    scored = scored_of([0.0, 0, 1, 1, 0, 1], groups=list("aabbcc"))
    adv = compute_advantages(scored, shaping=Shaping(reward_range=(0.0, 1.0)))
    assert column(adv, "sample_id") == scored.table.column("sample_id").to_pylist()[4:]
    assert adv.spec["dropped"] == {"group outside reward_range": 4}


def test_the_filter_comes_before_the_penalties():
    sources = [[0, *[1] * 100]] * 2
    shaping = Shaping(reward_range=(0.5, 1.5), overlong_buffer=10)
    adv = compute_advantages(scored_of([1.0, 1.0], sources), shaping=shaping)
    assert len(adv) == 2
    assert column(adv, "reward") == [0, 0]


@pytest.mark.parametrize(("coef", "wanted"), [(0.2, 0.2), (-0.5, -0.5)])
def test_b10_truncated_answers_pay_the_stop_penalty(coef, wanted):
    scored = scored_of([1.0, 1.0], truncated=pa.array([True, False]))
    adv = compute_advantages(scored, "dr_grpo", shaping=Shaping(stop_properly=coef))
    assert column(adv, "reward") == pytest.approx([wanted, 1])


def test_the_clip_comes_after_the_baseline():
    adv = compute_advantages(
        scored_of([100.0, 98.0]), "dr_grpo", shaping=Shaping(reward_clip=(-0.5, 10.0))
    )
    assert first_advantages(adv) == [1, -0.5]


def test_bad_samples_are_in_no_baseline_and_counted():
    finish = pa.array(["stop", "error", "interrupted", "length", "stop", "stop"])
    scored = scored_of([1.0, 50.0, 50.0, 0.0, None, 0.5], finish_reason=finish)
    adv = compute_advantages(scored, "dr_grpo")
    assert first_advantages(adv) == pytest.approx([0.5, -0.5, 0])
    assert adv.spec["dropped"] == {"reward error": 1, "rollout error": 1, "rollout interrupted": 1}
    assert adv.spec["given"] == 6
    assert column(adv, "sample_id") == [
        scored.table.column("sample_id")[i].as_py() for i in (0, 3, 5)
    ]
    assert column(adv.scored, "sample_id") == column(adv, "sample_id")


def test_the_last_valid_sample_of_a_group_is_dropped_and_counted():
    scored = scored_of([1.0, None, 1.0, 0.0], groups=list("aabb"))
    adv = compute_advantages(scored, "grpo")
    assert adv.spec["dropped"] == {"reward error": 1, "group of one": 1}
    assert len(adv) == 2
    kept = compute_advantages(scored, "reinforce_pp")
    assert kept.spec["dropped"] == {"reward error": 1}
    assert len(kept) == 3
    raw = compute_advantages(scored, dialect("verl-0.9", "rloo"))
    assert first_advantages(raw) == [1, 1, -1]


@pytest.mark.parametrize("name", ["grpo", "reinforce_pp", "gae"])
def test_nothing_left_is_an_empty_batch(name):
    empty = compute_advantages(scored_of([None, None], values=lists([0, 0], [0, 0])), name)
    assert len(empty) == 0
    assert empty.spec["dropped"] == {"reward error": 2}


def test_a_result_that_is_not_finite_is_refused_with_its_id():
    scored = scored_of([1.0, 0.0], values=lists([0, 1], [0, float("inf")]))
    row = dataclasses.replace(ESTIMATORS["gae"], whiten="none")
    with pytest.raises(DataError, match=r"advantages of sample 'p0@0#1' is not finite"):
        compute_advantages(scored, row)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize("huge", [1e300, -1e300, 4e38])
def test_rewards_whose_spread_would_overflow_are_refused_with_their_id(name, huge):
    with pytest.raises(DataError, match=r"p0@0#1.* 1 of 4 rewards lie beyond float32"):
        compute_advantages(scored_of([0.0, huge, 1.0, 0.5]), name)


@pytest.mark.parametrize("huge", [1e38, 3e38])
def test_rewards_that_float32_holds_have_their_advantages(huge):
    batch = compute_advantages(scored_of([0.0, huge]), "grpo")
    half = [0.5**0.5] * 2
    assert np.concatenate(batch.table["advantages"].to_pylist()).tolist() == pytest.approx(
        [0.0, -half[0], 0.0, half[1]]
    )


def test_kl_takes_old_logprobs_where_they_are_annotated():
    rows = {
        "rollout_logprobs": lists([0, -1.0], [0, -1.0]),
        "ref_logprobs": lists([5, -2.0], [5, -2.0]),
    }
    plain = compute_advantages(scored_of([1.0, 0.0], **rows), "dr_grpo", kl=KL(coef=0.1))
    assert column(plain, "kl") == [[0, 1], [0, 1]]
    old = scored_of([1.0, 0.0], old_logprobs=lists([0, -1.5], [0, -3.0]), **rows)
    adv = compute_advantages(old, "dr_grpo", kl=KL(coef=0.1))
    assert column(adv, "kl") == [[0, 0.5], [0, -1]]
    assert first_advantages(adv) == pytest.approx([0.45, -0.4])


def test_all_problems_come_in_one_message():
    scored = scored_of([1.0, 0.0], groups=["a", "b"])
    with pytest.raises(ConfigError, match="5 problems") as error:
        compute_advantages(
            scored,
            Estimator(baseline="group-mean", credit="gae"),
            kl=KL(coef=0.1, unbiased_gradient=True),
            shaping=Shaping(overlong_buffer=101),
        )
    for said in (
        "n >= 2",
        "'values'",
        "'ref_logprobs'",
        "session.annotate",
        "unbiased_gradient has no effect",
        "max_new_tokens=100; got 101",
    ):
        assert said in str(error.value)


def test_settings_out_of_range_are_refused_before_work():
    scored = scored_of([1.0, 0.0])
    with pytest.raises(ConfigError, match=r"Shaping.stop_properly"):
        compute_advantages(scored, shaping=Shaping(stop_properly=2.0))
    unlimited = dataclasses.replace(scored.rollouts, spec={"sampling": {"max_new_tokens": None}})
    with pytest.raises(ConfigError, match=r"needs Sampling.max_new_tokens"):
        compute_advantages(make_scored(unlimited, [1.0, 0.0]), shaping=Shaping(overlong_buffer=10))
    with pytest.raises(ConfigError, match="reward_range filters groups"):
        compute_advantages(
            scored_of([1.0, 0.0], groups=["a", "b"]),
            "reinforce_pp",
            shaping=Shaping(reward_range=(0.0, 1.0)),
        )
    with pytest.raises(UnknownNameError, match="known: gae, reinforce_pp, rloo"):
        compute_advantages(scored, "ppo")


def test_the_spec_says_all_that_was_chosen():
    adv = compute_advantages(
        scored_of([1.0, 0.0]), "group_norm", shaping=Shaping(reward_clip=(-1.0, 1.0))
    )
    assert adv.spec["estimator_name"] == "grpo"
    assert adv.spec["estimator"]["eps"] == 1e-9
    assert adv.spec["estimator"]["masked_tokens"] == "skip"
    assert adv.spec["kl"] is None
    assert adv.spec["shaping"]["reward_clip"] == [-1, 1]
    assert adv.spec["dropped"] == {}


def test_aliases_are_the_published_names():
    for alias, name in ESTIMATOR_ALIASES.items():
        assert estimator_name(alias) == name
        assert estimator_name(ESTIMATORS[name]) == name
    assert estimator_name(Estimator(gamma=0.5)) == "custom"


def test_columns_needed():
    assert columns_needed("grpo") == ()
    assert columns_needed("gae", KL(coef=0.1)) == ("values", "ref_logprobs")
    assert columns_needed("reinforce", KL(coef=0.0)) == ()


def test_a_function_of_the_users_own():
    def first_come(rewards, group_ids, mask, *, kl, kl_coef, values, reward_clip):
        got = torch.where(mask, rewards[:, None] + group_ids[:, None] * 10, 0.0)
        return got, got

    adv = compute_advantages(scored_of([1.0, 0.0, 2.0], groups=list("aab")), first_come)
    assert first_advantages(adv) == [1, 0, 12]
    assert adv.spec["estimator_name"] == "first_come"


def test_ten_thousand_samples_take_no_time():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 64, 10_000).tolist()
    rollouts = make_rollouts(make_prompts(1250), lengths, sampling={"max_new_tokens": 64})
    scored = make_scored(rollouts, generator.integers(0, 2, 10_000).astype(float).tolist())
    shaping = Shaping(reward_range=(0.0, 1.0), overlong_buffer=16)
    start = time.perf_counter()
    adv = compute_advantages(scored, "reinforce_pp_baseline", shaping=shaping)
    # About 0.1 s on an idle machine; a loop over rows takes many seconds.
    assert time.perf_counter() - start < 3
    assert len(adv) + sum(adv.spec["dropped"].values()) == 10_000
