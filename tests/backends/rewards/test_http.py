"""The client of reward servers, against one that does to it what servers do."""

import asyncio
import json
import time

import pytest

from nbrl.backends.rewards import RewardServer, http
from nbrl.backends.rewards.http import score_remote
from nbrl.errors import ConfigError
from tests.backends.rewards.faulty import faulty_server


def rows_of(count: int) -> list[dict]:
    return [
        {"sample_id": f"s-{i}", "prompt": f"{i}+1=", "response": "x" * i, "label": None}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def shared():
    with faulty_server() as server:
        yield server


@pytest.fixture
def server(shared, monkeypatch):
    monkeypatch.setattr(http, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(http, "MOST_WAIT", 0.02)
    monkeypatch.delenv(http.TOKEN_VARIABLE, raising=False)
    shared.asked.clear()
    shared.headers.clear()
    return shared


def ask(server, *paths, rows=None, **settings):
    done = []
    asked = RewardServer(tuple(server.url + path for path in paths), **settings)
    given = rows_of(4) if rows is None else rows
    outcomes = score_remote(asked, given, lambda n, _: done.append(n))
    assert sum(done) == len(given)
    return outcomes


def test_rewards_scores_and_logs_in_order(server):
    outcomes = ask(server, "", rows=rows_of(10), batch=3)
    assert [o.value for o in outcomes] == [float(i) for i in range(10)]
    assert outcomes[4].extras == {"scores": 0.0, "accuracy": 0.5, "length": 4.0}
    assert all(o.seconds > 0 for o in outcomes)
    sent = sorted(server.asked, key=lambda a: a[1]["prompts"])
    assert [len(body["query"]) for _, body in sent] == [3, 3, 3, 1]
    assert sent[0][1] == {
        "query": ["0+1=", "1+1=x", "2+1=xx"],
        "prompts": ["0+1=", "1+1=", "2+1="],
        "labels": ["", "", ""],
    }


def test_no_request_for_no_samples(server):
    assert ask(server, "", rows=[]) == []
    assert server.asked == []


def test_it_works_where_a_loop_is_running(server):
    async def cell():
        return ask(server, "")

    assert [o.value for o in asyncio.run(cell())] == [0.0, 1.0, 2.0, 3.0]


def test_odd_texts_arrive_as_they_are(server):
    rows = [{"prompt": "p\0", "response": "\ud800 \u2028 <b>", "label": "\ud801"}]
    assert ask(server, "", rows=rows)[0].value == 7.0
    assert server.asked[0][1]["labels"] == ["\ud801"]


@pytest.mark.parametrize("path", ["/500", "/close", "/half"])
def test_lost_replies_are_asked_for_again_and_then_said(server, path):
    outcomes = ask(server, path, tries=3)
    assert server.count(path) == 3
    assert {(o.value, o.status) for o in outcomes} == {(None, "error")}
    assert path in outcomes[0].error
    assert "the last of 3 tries" in outcomes[0].error


@pytest.mark.parametrize("path", ["/400", "/401", "/302"])
def test_refusals_are_final(server, path):
    outcomes = ask(server, path, tries=3)
    assert server.count(path) == 1
    assert {(o.value, o.status) for o in outcomes} == {(None, "error")}
    assert f"replied {path[1:]}" in outcomes[0].error


@pytest.mark.parametrize("path", ["/hang", "/trickle"])
def test_a_deadline_holds_for_the_whole_reply(server, path):
    start = time.monotonic()
    outcomes = ask(server, path, tries=2, timeout=0.4)
    assert time.monotonic() - start < 3.0
    assert server.count(path) == 2
    assert {(o.value, o.status) for o in outcomes} == {(None, "timeout")}
    assert "within 0.4 s" in outcomes[0].error


def test_what_fails_twice_is_right_the_third_time(server):
    assert [o.value for o in ask(server, "/flaky", tries=3)] == [0.0, 1.0, 2.0, 3.0]
    assert server.count("/flaky") == 3


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/short", "must hold 4 entries, one a sample; got 3"),
        ("/long", "must hold 4 entries, one a sample; got 5"),
        ("/scalar", "got float 1.0"),
        ("/none", "an object with 'rewards'"),
        ("/list", "an object with 'rewards'"),
        ("/html", "no JSON"),
        ("/deep", "no JSON"),
    ],
)
def test_replies_of_another_form_are_refused_whole(server, path, said):
    outcomes = ask(server, path)
    assert {(o.value, o.status) for o in outcomes} == {(None, "error")}
    assert said in outcomes[0].error
    assert server.count(path) == 1


@pytest.mark.parametrize("path", ["/nan", "/huge", "/text", "/null"])
def test_what_is_no_finite_number_is_an_error_of_its_row(server, path):
    outcomes = ask(server, path)
    assert [o.value for o in outcomes] == [None, 1.0, 2.0, 3.0]
    assert "must be a finite number" in outcomes[0].error


def test_nested_numbers_are_none(server):
    assert {o.status for o in ask(server, "/nested")} == {"error"}


def test_several_addresses_share_the_load(server):
    outcomes = ask(server, "/slow", "/get_reward", rows=rows_of(40), batch=2, concurrency=4)
    assert [o.value for o in outcomes] == [float(i) for i in range(40)]
    assert server.count("/slow") > 0
    # the quick one is free more often
    assert server.count("/get_reward") > server.count("/slow")


def test_another_address_is_tried_before_the_same_one_again(server):
    outcomes = ask(server, "/500", "/get_reward", tries=2, rows=rows_of(6), batch=1, concurrency=1)
    assert [o.value for o in outcomes] == [float(i) for i in range(6)]


def test_one_bad_request_costs_its_own_rows_only(server):
    outcomes = ask(server, "/500", "/get_reward", tries=1, rows=rows_of(8), batch=1, concurrency=2)
    assert {o.value for o in outcomes if o.status == "error"} == {None}
    assert 0 < sum(o.status == "ok" for o in outcomes) < 8


def test_the_token_goes_along_and_nowhere_else(server, monkeypatch):
    monkeypatch.setenv(http.TOKEN_VARIABLE, "a-long-secret-token")
    outcomes = ask(server, "/500", tries=1)
    assert server.headers[0]["Authorization"] == "Bearer a-long-secret-token"
    assert "secret" not in outcomes[0].error
    assert "secret" not in json.dumps(server.asked)


def test_nobody_there_is_said():
    (outcome,) = score_remote(
        RewardServer("http://127.0.0.1:9", tries=1), rows_of(1), lambda *_: None
    )
    assert (outcome.value, outcome.status) == (None, "error")
    assert "http://127.0.0.1:9/get_reward: ConnectError" in outcome.error


@pytest.mark.parametrize(
    ("urls", "settings", "said"),
    [
        ("ftp://a", {}, "must begin with http"),
        ("a:5000", {}, "must begin with http"),
        ("http://", {}, "name a host"),
        ("http://u:secret@a", {}, "holds a password"),
        ("http://a:99999", {}, "is no address"),
        ((), {}, "urls must be"),
        ("http://a:0", {}, "name a host"),
        ("http://a", {"tries": 0}, "tries must be"),
        ("http://a", {"batch": True}, "batch must be"),
        ("http://a", {"timeout": 0.0}, "timeout must be"),
    ],
)
def test_settings_that_cannot_work_are_refused(urls, settings, said):
    with pytest.raises(ConfigError, match=said) as caught:
        RewardServer(urls, **settings)
    assert "secret" not in str(caught.value)


def test_a_path_of_ones_own_is_kept():
    urls = ("http://a", "http://b:5000/", "https://c/score")
    assert RewardServer(urls).addresses == (
        "http://a/get_reward", "http://b:5000/get_reward", "https://c/score"
    )  # fmt: skip
