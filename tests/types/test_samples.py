"""The four values on the path: selection by id, containment, invariants."""

import copy
import dataclasses
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import DataError
from nbrl.types import Advantaged, Prompts, Rollouts, Scored
from tests.values import make_advantaged, make_chain, make_prompts, make_rollouts, make_scored

LINKS = ("prompts", "rollouts", "scored", "advantaged")


def values_of(chain: Advantaged) -> dict:
    rollouts = chain.scored.rollouts
    return dict(zip(LINKS, (rollouts.prompts, rollouts, chain.scored, chain), strict=True))


def ids(value) -> list[str]:
    name = "prompt_id" if isinstance(value, Prompts) else "sample_id"
    return value.to_arrow().column(name).to_pylist()


@pytest.mark.parametrize("link", LINKS)
def test_rows_slices_and_lists_agree(link):
    value = values_of(make_chain(3, 2))[link]
    rows = value.to_arrow().to_pylist()
    assert [value[i] for i in range(len(value))] == rows
    assert value[-1] == rows[-1]
    assert value[np.int64(1)] == rows[1]
    assert value[1:].to_arrow().to_pylist() == rows[1:]
    assert value[::-1].to_arrow().to_pylist() == rows[::-1]
    assert value[[2, 0]].to_arrow().to_pylist() == [rows[2], rows[0]]
    assert value[np.arange(len(value)) == 1].to_arrow().to_pylist() == [rows[1]]
    assert len(value[[]]) == 0
    with pytest.raises(IndexError):
        value[len(value)]
    with pytest.raises(IndexError):
        value[[len(value)]]


@pytest.mark.parametrize("link", LINKS)
def test_filter_takes_masks_and_predicates(link):
    value = values_of(make_chain(3, 2))[link]
    wanted = [i for i in ids(value) if i.startswith("p1")]
    mask = [i in wanted for i in ids(value)]
    assert ids(value.filter(mask)) == wanted
    assert ids(value.filter(np.array(mask))) == wanted
    assert ids(value.filter(pa.array(mask))) == wanted
    assert ids(value.filter(lambda row: row["prompt_id"] == "p1")) == wanted
    assert len(value.filter(lambda row: False)) == 0
    assert len(value.filter(lambda row: False).filter(lambda row: True)) == 0


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("mask", [[True], np.array([1, 0, 1]), np.array([[True]])])
def test_filter_refuses_what_is_no_mask(link, mask):
    with pytest.raises(DataError, match="filter takes a predicate or"):
        values_of(make_chain(3, 2))[link].filter(mask)


@given(order=st.permutations(range(6)), kept=st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_selection_is_joined_by_id_and_not_by_place(order, kept):
    chain = make_chain(3, 2)
    by_id = {row["sample_id"]: row for row in chain.to_arrow().to_pylist()}
    picked = [ids(chain)[i] for i in order[:kept]]
    selected = chain.select(picked)
    assert ids(selected) == picked
    assert ids(selected.scored) == picked
    assert ids(selected.scored.rollouts) == picked
    assert selected.to_arrow().to_pylist() == [by_id[i] for i in picked]
    used = {by_id[i]["prompt_id"] for i in picked}
    assert set(ids(selected.scored.rollouts.prompts)) == used


def test_select_refuses_unknown_and_repeated_ids():
    prompts = make_prompts(3)
    with pytest.raises(DataError, match=r"unknown ids \['p7'\]; 3 are known"):
        prompts.select(["p0", "p7"])
    with pytest.raises(DataError, match="repeated"):
        prompts.select(["p0", "p0"])


def test_each_prompt_stands_beside_its_samples_whatever_the_order_of_prompts():
    prompts = make_prompts(3)[[2, 0, 1]]
    rollouts = make_rollouts(make_prompts(3), [1, 1, 1])
    rows = dataclasses.replace(rollouts, prompts=prompts).to_arrow().to_pylist()
    assert [(r["prompt_id"], r["label"]) for r in rows] == [("p0", "1"), ("p1", "2"), ("p2", "3")]


def test_a_parents_column_of_the_same_name_is_kept_under_its_own():
    prompts = make_prompts(1, {"seed": pa.array([42]), "token_ids": pa.array([[7]])})
    rollouts = make_rollouts(prompts, [2])
    scored = make_scored(rollouts, [None])
    row = make_advantaged(scored)[0]
    assert row["prompt.seed"] == 42
    assert row["seed"] == 2**64 - 1
    assert row["prompt.token_ids"] == [7]
    assert row["token_ids"] == [7, 0, 1]
    assert row["error"] == "boom"
    assert row["rollout.error"] is None


def test_to_pandas_has_every_column_and_row():
    frame = make_chain(2, 2).to_pandas()
    assert len(frame) == 4
    assert {"prompt", "token_ids", "total", "advantages"} <= set(frame.columns)
    assert frame["advantages"][1].tolist() == [0.0, 1.0, 1.0]


def test_values_are_frozen_and_change_by_copies():
    chain = make_chain()
    for value in values_of(chain).values():
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.table = None
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.other = 1
    rollouts = chain.scored.rollouts
    column = pa.array([[0.5] * (n + 2) for n in range(4)], pa.list_(pa.float32()))
    more = rollouts.with_columns({"values": column})
    assert "values" not in rollouts.table.column_names
    assert more.table.column("values")[0].as_py() == [0.5, 0.5]
    assert more.with_columns({"values": rollouts.table.column("rollout_logprobs")}).table.column(
        "values"
    ) == rollouts.table.column("rollout_logprobs")


@pytest.mark.parametrize("link", LINKS)
def test_values_can_be_pickled_and_copied(link):
    value = values_of(make_chain())[link]
    for twin in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert type(twin) is type(value)
        assert twin.to_arrow().equals(value.to_arrow())


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("num_rows", [0, 4])
def test_repr_is_one_short_line(link, num_rows):
    value = values_of(make_chain())[link]
    text = repr(value[:num_rows])
    assert text.startswith(type(value).__name__ + f"({min(num_rows, len(value))} ")
    assert "\n" not in text
    assert len(text) < 100


def test_repr_tells_what_matters():
    rollouts = make_rollouts(make_prompts(2), [1, 2, 3, 4])
    assert repr(rollouts) == "Rollouts(4 samples of 2 prompts, 0% truncated)"
    scored = make_scored(rollouts, [1.0, 0.0, 0.5, None])
    assert repr(scored) == "Scored(4 samples, mean reward 0.500, 1 excluded)"
    assert repr(make_scored(rollouts, [None] * 4)) == "Scored(4 samples, no reward, 4 excluded)"
    named = make_advantaged(scored, estimator_name="grpo")
    assert repr(named) == "Advantaged(4 samples, grpo, 4 in live groups)"


def changed(value, name: str, column):
    """The value with one column replaced, as a constructor would be given it."""
    table = value.table
    at = table.column_names.index(name)
    return dataclasses.replace(value, table=table.set_column(at, name, column))


def test_columns_of_the_wrong_type_are_all_named():
    table = make_prompts(1).table.drop_columns(["label"])
    table = table.set_column(0, "prompt_id", pa.array([1]))
    with pytest.raises(DataError) as raised:
        Prompts(table=table)
    assert "'label'" in str(raised.value)
    assert "'prompt_id' is int64, must be string" in str(raised.value)


def test_a_column_that_stands_twice_is_refused():
    table = make_prompts(1).table.append_column("label", pa.array(["x"]))
    with pytest.raises(DataError, match="'label' stands twice"):
        Prompts(table=table)


def test_ids_are_unique_and_present():
    prompts = make_prompts(2)
    with pytest.raises(DataError, match=r"repeated: \['p0'\]"):
        changed(prompts, "prompt_id", pa.array(["p0", "p0"]))
    with pytest.raises(DataError, match=r"prompt_id needs a value.*first is row 1"):
        changed(prompts, "prompt_id", pa.array(["p0", None]))
    rollouts = make_rollouts(prompts, [1, 1])
    with pytest.raises(DataError, match="group_id needs a value"):
        changed(rollouts, "group_id", pa.array([None, "g"], pa.string()))


def test_rollouts_answer_prompts_that_they_contain():
    rollouts = make_rollouts(make_prompts(2), [1, 1])
    with pytest.raises(DataError, match=r"unknown ids \['p1'\]"):
        dataclasses.replace(rollouts, prompts=make_prompts(1))


@pytest.mark.parametrize("row", [None, [0.0], [0.0] * 4])
def test_token_columns_are_as_long_as_the_tokens(row):
    rollouts = make_rollouts(make_prompts(1), [1, 2])
    column = pa.array([[0.0, 0.0], row], pa.list_(pa.float32()))
    with pytest.raises(DataError, match=r"'rollout_logprobs' must be as long.*row 1"):
        changed(rollouts, "rollout_logprobs", column)
    scored = make_scored(rollouts, [1.0, 0.0])
    with pytest.raises(DataError, match=r"'token_rewards' must be as long.*row 1"):
        dataclasses.replace(scored, table=scored.table.append_column("token_rewards", column))
    with pytest.raises(DataError, match=r"'advantages' must be as long.*row 1"):
        changed(make_advantaged(scored), "advantages", column)


def test_finish_reasons_and_statuses_are_words_we_know():
    rollouts = make_rollouts(make_prompts(1), [1])
    with pytest.raises(DataError, match=r"finish_reason must be one of.*'bored'"):
        changed(rollouts, "finish_reason", pa.array(["bored"]))
    with pytest.raises(DataError, match=r"status must be one of.*\[None\]"):
        changed(make_scored(rollouts, [None]), "status", pa.array([None], pa.string()))


@pytest.mark.parametrize(
    ("total", "status"),
    [(None, "ok"), (float("nan"), "ok"), (float("inf"), "ok"), (1.0, "error"), (0.0, "excluded")],
)
def test_a_total_is_there_exactly_where_the_reward_is_ok(total, status):
    scored = make_scored(make_rollouts(make_prompts(1), [1]), [1.0])
    table = scored.table.set_column(1, "total", pa.array([total], pa.float64()))
    table = table.set_column(2, "status", pa.array([status]))
    with pytest.raises(DataError, match="total must be finite where status is 'ok' and null"):
        Scored(table=table, rollouts=scored.rollouts)


def test_a_later_value_has_the_rows_of_its_parent():
    rollouts = make_rollouts(make_prompts(2), [1, 2])
    scored = make_scored(rollouts, [1.0, 0.0])
    with pytest.raises(DataError, match="row by row"):
        Scored(table=scored.table, rollouts=rollouts[::-1])
    with pytest.raises(DataError, match="got 2 rows beside 1"):
        Advantaged(table=make_advantaged(scored).table, scored=scored[:1])


def test_a_prompt_with_the_text_of_another_is_a_prompt_of_its_own():
    prompts = changed(make_prompts(2), "prompt", pa.array(["same", "same"]))
    rollouts = make_rollouts(prompts, [1, 1])
    assert rollouts.table.column("group_id").to_pylist() == ["p0@0", "p1@0"]
    assert isinstance(rollouts, Rollouts)
    assert [r["prompt"] for r in rollouts.to_arrow().to_pylist()] == ["same", "same"]
