"""The reward bench: edits are scored at once, failures are data."""

import pytest

from nbrl.errors import NbrlError
from nbrl.notebook.lab.bench import reward_bench
from nbrl.notebook.lab.bench_form import bench_form
from nbrl.notebook.lab.perturbations import PERTURBATIONS
from tests.notebook.conftest import HOSTILE


def exact(response, label):
    """1 for the label, an error for a shout."""
    if "!" in response:
        raise ValueError(HOSTILE)
    return float(response.strip() == label)


@pytest.fixture
def bench(rollouts):
    return reward_bench(rollouts, exact)


def test_base_is_the_scoring_of_the_rollouts(bench):
    assert bench.base.table.column("total").to_pylist() == [1.0, 0.0, 0.0, 0.0]
    assert repr(bench) == "RewardBench(4 answers, mean reward 0.250, 0 tried)"


def test_an_edited_answer_has_its_score_and_the_one_before(bench):
    found = bench.try_answer(1, "12")
    assert (found["total"], found["was"], found["status"]) == (1.0, 0.0, "ok")
    assert bench.base.table.column("total").to_pylist()[1] == 0.0
    assert len(bench.tried) == 1


def test_a_failing_reward_is_shown_as_text(bench):
    found = bench.try_answer(0, "!")
    assert found["total"] is None
    assert HOSTILE in found["error"]
    markup = bench._repr_html_()
    assert HOSTILE not in markup
    assert "&lt;script&gt;" in markup


def test_another_reward_shows_the_samples_that_flip(bench):
    assert len(bench.flipped) == 0
    bench.try_reward(lambda response: float(len(response) == 3))
    assert bench.flipped["sample_id"].tolist() == ["p0@0#0", "p1@0#0"]
    assert bench.flipped["flip"].all()


def test_a_file_is_read_again(rollouts, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def reward(response):\n    return 0.0\n")
    bench = reward_bench(rollouts, str(file))
    file.write_text("def reward(response):\n    return 1.0\n")
    assert bench.try_reward().table.column("total").to_pylist() == [1.0] * 4


def test_small_edits_are_all_scored(bench):
    found = bench.perturb(0)
    assert [f["edit"] for f in found] == list(PERTURBATIONS)
    by_edit = {f["edit"]: f["total"] for f in found}
    assert by_edit["as it is"] == by_edit["blanks around"] == 1.0
    assert by_edit["empty"] == by_edit["twice"] == 0.0


def test_form_scores_what_is_typed(bench):
    form = bench_form(bench)
    controls, prompt, answer, shown = form.children
    assert answer.value == "12"
    answer.value = "13"
    assert bench.tried[-1]["total"] == 0.0
    assert "13" in shown.value
    controls.children[0].value = 2
    assert HOSTILE not in prompt.value
    assert "&lt;script&gt;" in prompt.value
    controls.children[2].click()
    assert "blanks around" in shown.value
    controls.children[1].click()
    assert "samples that changed" in shown.value


def test_no_such_reward_is_refused(rollouts):
    with pytest.raises(NbrlError):
        reward_bench(rollouts, "no_such_file.py")
