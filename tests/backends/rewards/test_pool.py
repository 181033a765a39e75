"""Reward code in processes of its own: what a sample does there costs that sample alone."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nbrl.backends.rewards import RewardPool, load_reward
from nbrl.errors import ConfigError

TIMEOUT = 2.0


@pytest.fixture
def pool():
    pool = RewardPool()
    yield pool
    pool.close()


def rows_of(count):
    return [
        {
            "sample_id": f"s-{i}",
            "prompt": "?",
            "response": str(i),
            "label": None,
            "messages": None,
            "metadata": {},
        }
        for i in range(count)
    ]


def score(pool, function, rows, *, workers=2, timeout=TIMEOUT, units=None):
    return pool.score(
        load_reward(function),
        rows,
        workers=workers,
        timeout=timeout,
        advance=lambda done, tokens: units.append(done) if units is not None else None,
    )


def hostile(response: str) -> float:
    """Does to its process what the response says."""
    if response == "hang":
        while True:
            pass
    if response == "regex":
        re.match(r"(a+)+$", "a" * 40 + "!")
    if response == "segfault":
        ctypes.string_at(0)
    if response == "exit":
        os._exit(3)
    if response == "sys.exit":
        sys.exit(4)
    if response == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if response == "memory":
        return float(len(bytearray(64 << 30)))
    if response == "raise":
        raise KeyError("no such answer")
    return float(response)


FATES = {
    "hang": ("timeout", r"no answer within 2\.?\d* s"),
    "regex": ("timeout", r"no answer within"),
    "segfault": ("error", "its process died by SIGSEGV"),
    "exit": ("error", "its process ended with exit status 3"),
    "sys.exit": ("error", "SystemExit: 4"),
    "killed": ("error", "its process died by SIGKILL"),
    "memory": ("error", "MemoryError"),
    "raise": ("error", "KeyError: 'no such answer'"),
}


def test_what_one_sample_does_to_its_process_costs_that_sample_alone(pool):
    rows, units = rows_of(60), []
    places = dict(zip(range(3, 60, 7), FATES, strict=False))
    for place, fate in places.items():
        rows[place]["response"] = fate
    found = score(pool, hostile, rows, units=units)
    assert sum(units) == len(rows)
    for i, outcome in enumerate(found):
        if i not in places:
            assert (outcome.status, outcome.value) == ("ok", float(i))
            continue
        status, error = FATES[places[i]]
        assert (outcome.status, outcome.value) == (status, None)
        assert re.search(error, outcome.error or "")


def test_nothing_is_left_when_the_pool_is_closed_not_even_children(pool, tmp_path):
    def leaves_a_child(response):
        child = subprocess.Popen(["sleep", "600"])
        with (tmp_path / response).open("w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        return 1.0

    assert [o.value for o in score(pool, leaves_a_child, rows_of(2))] == [1.0, 1.0]
    pool.close()
    left = [int(pid) for file in tmp_path.iterdir() for pid in file.read_text().split()]
    assert len(left) == 4
    deadline = time.monotonic() + 5.0
    while any(_runs(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in left)


def _runs(pid):
    """Whether a process is there and is more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_are_kept_and_get_new_code(pool):
    def old(response):
        return {"pid": os.getpid(), "kind": 1.0}

    def new(response):
        return {"pid": os.getpid(), "kind": 2.0}

    first, second = (score(pool, f, rows_of(4), workers=1) for f in (old, new))
    assert [o.components["kind"] for o in first + second] == [1.0] * 4 + [2.0] * 4
    assert len({o.components["pid"] for o in first + second}) == 1


def test_a_thread_can_score_and_handlers_of_signals_stay(pool):
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGALRM, signal.SIGCHLD)}
    found = []
    rows = rows_of(2)
    rows[0]["response"] = "exit"
    thread = threading.Thread(target=lambda: found.extend(score(pool, hostile, rows)))
    thread.start()
    thread.join()
    assert [o.value for o in found] == [None, 1.0]
    assert before == {s: signal.getsignal(s) for s in before}


def test_a_batch_is_one_call_in_a_worker(pool):
    def together(completions):
        return [float(c) + len(completions) for c in completions]

    def crash(completions):
        os._exit(1)

    assert [o.value for o in score(pool, together, rows_of(3))] == [3.0, 4.0, 5.0]
    assert [o.status for o in score(pool, crash, rows_of(3))] == ["error"] * 3


def test_a_module_that_only_this_process_has_is_an_error_on_each_sample(pool, monkeypatch):
    import types

    module = types.ModuleType("only_here")
    module.right = 1.0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)

    def asks(response):
        import only_here  # type: ignore[import-not-found]

        return only_here.right

    found = score(pool, asks, rows_of(2))
    assert all("ModuleNotFoundError" in (o.error or "") for o in found)


def test_code_that_holds_what_no_process_can_have_is_refused(pool):
    lock = threading.Lock()

    def locked(response):
        return float(lock.locked())

    with pytest.raises(ConfigError, match=r"'locked' cannot be sent .* pass workers=0"):
        score(pool, locked, rows_of(1))


def test_files_are_sent_by_their_text(pool, tmp_path):
    file = tmp_path / "reward.py"
    for value in (1.0, 2.0):
        file.write_text(f"RIGHT = {value}\ndef reward(response): return RIGHT\n")
        assert [o.value for o in score(pool, file, rows_of(2))] == [value] * 2


def test_strange_answers_arrive_whole(pool):
    strange = ["\ud800", "\0", "x" * (10 << 20)]
    rows = rows_of(3)
    for row, text in zip(rows, strange, strict=True):
        row["response"] = text
    assert [o.value for o in score(pool, lambda response: len(response), rows)] == [1, 1, 10 << 20]
