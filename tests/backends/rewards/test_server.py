"""The reward server: OpenRLHF's form, limits, token, batches; and the client that speaks to it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient

from nbrl.backends.rewards import Outcome
from nbrl.backends.rewards.http import score_remote
from nbrl.backends.rewards.places import TOKEN_VARIABLE, RewardServer
from nbrl.backends.rewards.server import ServerSettings, application, check_settings, scorer_of
from nbrl.errors import ConfigError

TOKEN = "a-token-of-some-length"


def lengths(rows):
    return [Outcome(value=float(len(row["response"]))) for row in rows]


@contextmanager
def serving(score=lengths, **settings):
    with TestClient(application(score, ServerSettings(**settings), "lengths")) as client:
        yield client


def asked(count=3):
    return {
        "query": [f"{i}+1={'x' * i}" for i in range(count)],
        "prompts": [f"{i}+1=" for i in range(count)],
        "labels": ["" for _ in range(count)],
    }


def test_the_reply_has_openrlhfs_form():
    with serving() as client:
        reply = client.post("/get_reward", json=asked())
    assert reply.status_code == 200
    values = [0.0, 1.0, 2.0]
    assert reply.json() == {"rewards": values, "scores": values, "extra_logs": {}}


def test_components_are_logged_and_scores_kept():
    def score(rows):
        return [
            Outcome(value=1.5, components={"a": 1.0, "b": 0.5}, extras={"scores": 0.25})
            for _ in rows
        ]

    with serving(score) as client:
        reply = client.post("/get_reward", json=asked(2)).json()
    assert reply["scores"] == [0.25, 0.25]
    assert reply["extra_logs"] == {"a": [1.0, 1.0], "b": [0.5, 0.5]}


def test_queries_alone_will_do_and_nothing_asked_is_nothing_scored():
    seen = []

    def score(rows):
        seen.extend(rows)
        return lengths(rows)

    with serving(score) as client:
        assert client.post("/get_reward", json={"query": ["abc"]}).json()["rewards"] == [3.0]
        assert client.post("/get_reward", json={"query": []}).json()["rewards"] == []
        body = {"query": ["ab"], "prompts": ["x"], "labels": ["7"]}
        assert client.post("/get_reward", json=body).json()["rewards"] == [2.0]
    assert [(row["response"], row["label"]) for row in seen] == [("abc", None), ("ab", "7")]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe",
        b'{"query": "abc"}', b'{"query": [1]}', b'{"query": [null]}', b'{"queries": ["a"]}',
        b'{"query": ["a", "b"], "prompts": ["a"]}', b'{"query": ["a"], "labels": []}',
        b'{"query": ["a"], "prompts": [["a"]]}',
    ],
)  # fmt: skip
def test_bodies_of_another_form_are_refused(body):
    with serving() as client:
        reply = client.post("/get_reward", content=body)
        assert reply.status_code == 400
        assert reply.json()["detail"]
        assert client.post("/get_reward", json=asked()).status_code == 200


def test_odd_texts_are_scored():
    with serving() as client:
        for text in ("\0", "\ud800", "\u2028", "x" * 100_000):
            reply = client.post("/get_reward", content=json.dumps({"query": [text]}))
            assert reply.json()["rewards"] == [float(len(text))]


def test_a_body_too_large_is_refused_while_it_comes():
    def endless():
        for _ in range(50):
            yield b"x" * 1000

    with serving(body=10_000) as client:
        assert client.post("/get_reward", content=b"x" * 20_000).status_code == 413
        assert client.post("/get_reward", content=endless()).status_code == 413


def test_a_failed_row_is_said_and_never_a_number():
    def score(rows):
        return [
            Outcome(value=None, status="error", error="boom") if row["response"] == "x"
            else Outcome(value=1.0) for row in rows
        ]  # fmt: skip

    with serving(score) as client:
        reply = client.post("/get_reward", json=asked())
    assert reply.status_code == 422
    detail = reply.json()["detail"]
    assert (detail["failed"], detail["of"]) == (1, 3)
    assert detail["outcomes"][1] == {"value": None, "status": "error", "error": "boom"}


def test_a_function_that_raises_does_not_end_the_server():
    def score(rows):
        if any(row["response"] == "bad" for row in rows):
            raise RuntimeError("out of memory")
        return lengths(rows)

    with serving(score) as client:
        reply = client.post("/get_reward", json={"query": ["bad"]})
        assert reply.status_code == 422
        assert "RuntimeError: out of memory" in reply.text
        assert client.post("/get_reward", json=asked()).status_code == 200


def test_requests_that_come_together_are_scored_together():
    sizes, replies = [], {}

    def score(rows):
        sizes.append(len(rows))
        time.sleep(0.05)
        return lengths(rows)

    with serving(score, wait=0.3, batch=8) as client:

        def one(at):
            body = {"query": ["x" * (at + 1)] * 2}
            replies[at] = client.post("/get_reward", json=body).json()["rewards"]

        threads = [threading.Thread(target=one, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        shown = client.get("/metrics").text
    assert replies == {at: [at + 1.0] * 2 for at in range(8)}
    assert sum(sizes) == 16
    assert max(sizes) <= 8
    assert len(sizes) < 8
    assert 'nbrl_reward_requests_total{status="200"} 8.0' in shown
    assert 'nbrl_reward_rows_total{status="ok"} 16.0' in shown
    assert "nbrl_reward_waiting 0.0" in shown


def test_too_many_that_wait_are_sent_away():
    going = threading.Event()

    def score(rows):
        going.wait(10)
        return lengths(rows)

    statuses = []
    with serving(score, waiting=1, batch=1, wait=0.0) as client:
        threads = [
            threading.Thread(
                target=lambda: statuses.append(
                    client.post("/get_reward", json=asked(1)).status_code
                )
            )
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        time.sleep(0.2)
        going.set()
        for thread in threads:
            thread.join(30)
    assert sorted(set(statuses)) == [200, 503]


# ---- who may ask --------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_addresses_than_this_machine_need_a_token(host):
    with pytest.raises(ConfigError, match="a token is needed"):
        check_settings(ServerSettings(host=host))
    check_settings(ServerSettings(host=host, token=TOKEN))


def test_all_that_is_wrong_is_said_at_once():
    wrong = ServerSettings(host="0.0.0.0", port=70_000, batch=0, body=0, wait=-1.0)
    with pytest.raises(ConfigError, match="5 problems"):
        check_settings(wrong)
    with pytest.raises(ConfigError, match="at least 16 characters"):
        check_settings(ServerSettings(token="short"))
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        check_settings(ServerSettings(host=host))


def test_the_token_opens_all_but_health():
    with serving(token=TOKEN) as client:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": b"\xe9"}):
            assert client.post("/get_reward", json=asked(), headers=given).status_code == 401
            assert client.get("/metrics", headers=given).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.post("/get_reward", json=asked(), headers=right).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        assert client.get("/health").json() == {"status": "ok", "serves": "lengths"}


# ---- what is served -----------------------------------------------------------------------------


def test_a_file_is_served_and_its_failures_stay_with_their_rows(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(response, label):\n    return 1 / len(response)\n")
    outcomes = scorer_of(str(file))(
        [
            {"sample_id": "a", "prompt": "", "response": text, "label": None}
            | {"messages": None, "metadata": {}, "rollout": {}}
            for text in ("xx", "")
        ]
    )
    assert [o.value for o in outcomes] == [0.5, None]
    assert "ZeroDivisionError" in outcomes[1].error
    with pytest.raises(ConfigError, match="normalize has no effect"):
        scorer_of(str(file), normalize=True)
    with pytest.raises(ConfigError, match="no Python file"):
        scorer_of(str(tmp_path / "other.py"))


@pytest.mark.slow
def test_the_command_serves_what_the_client_asks(tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("def reward(response, label):\n    return 10 / (len(response) - 3)\n")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    command = [sys.executable, "-m", "nbrl.notebook.cli", "serve-reward", str(file), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as served:
        try:
            line = served.stdout.readline()
            (url,) = re.findall(r"(http://127\.0\.0\.1:\d+)/get_reward", line)
            assert httpx.get(f"{url}/health").json() == {"status": "ok", "serves": "mine.py"}
            rows = [{"prompt": "p", "response": "x" * i, "label": None} for i in range(6)]
            outcomes = score_remote(RewardServer(url), rows, lambda *_: None)
            expected = [None if i == 3 else 10 / (i - 3) for i in range(6)]
            assert [o.value for o in outcomes] == pytest.approx(expected)
            assert "ZeroDivisionError" in outcomes[3].error
            monkeypatch.delenv(TOKEN_VARIABLE)
            (refused,) = score_remote(RewardServer(url), rows[:1], lambda *_: None)
            assert "replied 401" in refused.error
        finally:
            served.send_signal(signal.SIGINT)
            served.wait(20)


def test_the_command_refuses_the_open_network_without_a_token(tmp_path):
    command = [sys.executable, "-m", "nbrl.notebook.cli", "serve-reward", "x.py"]
    bare = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    done = subprocess.run(
        [*command, "--host", "0.0.0.0"], capture_output=True, text=True, env=bare, check=False
    )
    assert done.returncode == 2
    assert "NBRL_REWARD_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr
