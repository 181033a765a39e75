"""What a browser is told: index, texts, tokens, search, selection."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nbrl.errors import ConfigError, DataError
from nbrl.notebook.views.browse import browse
from nbrl.notebook.views.chain import chain_of
from nbrl.notebook.views.source import SampleSource, cut, to_json
from nbrl.types import Advantaged, Rollouts, Scored
from tests.notebook.conftest import make_prompts, make_rollouts


def source_of(value, **settings):
    given = {"columns": {}, "step": None, "decode": None} | settings
    return SampleSource(value, **given)


def index_of(value, **settings):
    return {d["name"]: (d, a) for d, a in source_of(value, **settings).index}


def test_index_holds_rewards_lengths_and_words(scored):
    index = index_of(scored)
    assert index["tokens"][1].tolist() == [2.0, 1.0, 3.0, 2.0]
    np.testing.assert_array_equal(index["total"][1], np.array([1, 0, 0, np.nan], np.float32))
    words, codes = index["finish_reason"][0]["words"], index["finish_reason"][1]
    assert [words[c] for c in codes] == ["stop", "stop", "length", "stop"]
    assert index["group"][1].tolist() == [0, 0, 1, 1]
    assert "advantage" not in index


def test_index_of_advantaged_has_the_mean_over_counted_tokens(advantaged):
    index = index_of(advantaged)
    assert index["advantage"][1].tolist() == [1.0, -1.0, 0.0, 0.0]
    assert index["live"][1].tolist() == [1, 1, 0, 0]
    assert list(index)[:3] == ["advantage", "group_mean", "live"]


def test_bytes_are_what_the_header_says(advantaged):
    source = source_of(advantaged)
    for description, raw in zip(source.header()["columns"], source.buffers(), strict=True):
        assert len(raw) == int(description["dtype"][1]) * len(advantaged)


def test_texts_are_cut_and_in_the_order_asked():
    prompts = make_prompts(["x" * 5000, "b"], ["1", None])
    rollouts = make_rollouts(prompts, [["12"], ["345"]])
    texts = source_of(rollouts).texts([1, 0], 100)
    assert [t["row"] for t in texts] == [1, 0]
    assert texts[0]["response"] == "345"
    assert texts[1]["prompt"] == "x" * 100 + " ... (5,000 characters)"
    assert texts[0]["label"] is None


def test_sample_names_every_number_of_a_token(advantaged):
    sample = source_of(advantaged).samples([1])[0]
    assert sample["id"] == "p0@0#1"
    assert sample["spans"] == [("[0]", 1), ("[1]", 1), ("[2]", 1), ("[3]", 1)]
    columns = {name: c["values"] for name, c in sample["columns"].items()}
    assert columns["logprob"] == [None, None, None, -0.5]
    assert columns["advantage"] == [None, None, None, -1.0]
    assert columns["mask"] == [0, 0, 0, 1]
    assert columns["source"] == [0, 0, 0, 1]
    assert sample["columns"]["policy version"]["words"] == ["none", "0"]
    assert ("reward", 0.0) in sample["facts"]


def test_annotations_give_differences(rollouts):
    logprobs = rollouts.table.column("rollout_logprobs").to_pylist()
    moved = pa.array([[x + 0.25 for x in row] for row in logprobs], pa.list_(pa.float32()))
    sample = source_of(rollouts.with_columns({"old_logprobs": moved})).samples([0])[0]
    assert sample["columns"]["trainer minus sampler"]["values"] == [None] * 3 + [0.25] * 2


def test_a_step_is_joined_by_sample(advantaged):
    tokens = pa.table({"sample_id": ["p0@0#1"], "ratio": [[0.0, 0.0, 0.0, 1.5]]})
    source = source_of(advantaged, step=tokens)
    assert source.samples([1])[0]["columns"]["ratio"]["values"] == [None, None, None, 1.5]
    assert "ratio" not in source.samples([0])[0]["columns"]


def test_rewards_are_listed_with_their_errors(rollouts):
    scored = Scored(
        table=pa.table(
            {
                "sample_id": rollouts.table.column("sample_id"),
                "total": pa.array([1.0, 0.0, 0.0, None], pa.float64()),
                "status": ["ok"] * 3 + ["error"],
                "error": [None] * 3 + ["boom"],
                **{
                    f"{name}{part}": values
                    for name in ("a", "b")
                    for part, values in {
                        "": pa.array([0.5, 0.0, 0.0, None]),
                        ".status": ["ok"] * 3 + ["timeout"],
                        ".error": pa.array([None] * 3 + ["slow"]),
                        ".seconds": [0.1] * 4,
                        ".extras": ["{}"] * 4,
                    }.items()
                },
            }
        ),
        rollouts=rollouts,
    )
    assert source_of(scored).samples([3])[0]["rewards"] == [
        ["a", None, "timeout", "slow", 0.1, "{}"],
        ["b", None, "timeout", "slow", 0.1, "{}"],
        ["total", None, "error", "boom", None, None],
    ]
    assert {"reward a", "reward b"} <= set(index_of(scored))


def test_search_reads_prompts_answers_labels_ids_and_errors(scored):
    source = source_of(scored)
    assert source.search("345").tolist() == [False, False, True, False]
    assert source.search("7+5").tolist() == [True, True, False, False]
    assert source.search("SCRIPT").tolist() == [False, False, True, True]
    assert source.search("boom").tolist() == [False, False, False, True]
    assert source.search("p0@0#1").tolist() == [False, True, False, False]
    assert not source.search("nowhere").any()


@pytest.mark.parametrize("name", ["rollouts", "scored", "advantaged"])
def test_selection_is_of_the_same_type(name, request):
    value = request.getfixturevalue(name)
    browser = browse(value, mode="static")
    assert len(browser.selection) == 0
    browser.selected = [2, 0]
    assert type(browser.selection) is type(value)
    assert browser.selection.table.column("sample_id").to_pylist() == ["p0@0#0", "p1@0#0"]
    assert repr(browser) == f"Browser({value!r}, 2 selected)"


def test_columns_come_as_lists_or_by_sample_id(scored):
    frame = pd.DataFrame({"far": [2.0, 1.0]}, index=["p1@0#0", "p0@0#0"])
    source = browse(scored, columns=frame, plot=("far", "total"), mode="static")._source
    np.testing.assert_array_equal(source.index[0][1], np.array([1, np.nan, 2, np.nan], np.float32))
    listed = browse(scored, columns={"far": [1.0, 2.0, 3.0, 4.0]}, mode="static")._source
    assert listed.index[0][1].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_what_cannot_be_shown_is_refused(scored, prompts):
    with pytest.raises(DataError, match=r"session\.rollout"):
        chain_of(prompts)
    with pytest.raises(DataError, match="one number for each of the 4 samples"):
        browse(scored, columns={"far": [1.0]}, mode="static")
    with pytest.raises(DataError, match="a name other than"):
        browse(scored, columns={"total": [1.0] * 4}, mode="static")
    with pytest.raises(DataError, match="unknown ids"):
        browse(scored, columns=pd.DataFrame({"far": [1.0]}, index=["p9"]), mode="static")
    with pytest.raises(ConfigError, match=r"plot of \['status'\]"):
        browse(scored, plot=("status", "total"), mode="static")
    with pytest.raises(ConfigError, match="display mode 'loud'"):
        browse(scored, mode="loud")


def test_mode_follows_the_variable_and_the_front_end(scored, monkeypatch):
    for name in ("NBRL_DISPLAY", "JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD"):
        monkeypatch.delenv(name, raising=False)
    assert type(browse(scored)).__name__ == "SavedBrowser"
    monkeypatch.setenv("JPY_SESSION_NAME", "here.ipynb")
    assert type(browse(scored)).__name__ == "Browser"
    monkeypatch.setenv("NBRL_DISPLAY", "static")
    assert type(browse(scored)).__name__ == "SavedBrowser"


def test_widget_answers_what_the_page_asks(advantaged):
    browser = browse(advantaged, mode="live")
    sent = []
    browser.send = lambda content, buffers=(): sent.append((content, buffers))
    browser._answer(browser, {"ask": "rows", "rows": [3, 1], "most": 9, "ticket": 1}, [])
    browser._answer(browser, {"ask": "sample", "row": 2, "ticket": 2}, [])
    browser._answer(browser, {"ask": "search", "text": "345", "ticket": 3}, [])
    assert [t["row"] for t in sent[0][0]["answer"]] == [3, 1]
    assert sent[1][0]["answer"]["id"] == "p1@0#0"
    assert sent[2] == ({"ticket": 3, "found": True}, [bytes([0b100])])
    browser.selected = [1]
    assert isinstance(browser.selection, Advantaged)
    assert browser.selection.table.column("sample_id").to_pylist() == ["p0@0#1"]


def test_empty_and_large_values_have_an_index(prompts):
    empty = make_rollouts(prompts, [[], []])
    assert isinstance(empty, Rollouts)
    source = source_of(empty)
    assert source.header()["count"] == 0
    assert source.search("x").tolist() == []
    assert source.texts([]) == []


def test_cut_and_json():
    assert cut("abc", 2) == "ab ... (3 characters)"
    assert cut(None, 2) is None
    assert to_json({"a": None, "b": "</script>"}) == '{"a":null,"b":"</script>"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(float("nan"))
