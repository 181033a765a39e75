"""The code verifier: right programs pass; no answer gets out, stays alive or fakes a verdict."""

import time

import psutil
import pytest

from tests.reward_fns.files import HOSTILE, defined

CODE = defined("code")
ADD = {"tests": ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert add(2, 2) == 4"]}
GOOD = "def add(a, b):\n    return a + b"


def answer(code: str) -> str:
    return f"Let me think.\n```python\n{code}\n```\nDone."


def share(code: str, tests=ADD) -> float:
    return CODE.share(answer(code), None, tests)


def test_the_share_of_asserts_that_hold():
    assert share(GOOD) == 1.0
    assert share("def add(a, b):\n    return 4") == pytest.approx(1 / 3)
    assert CODE.reward(answer(GOOD), None, ADD) == 1.0
    assert CODE.reward(answer("def add(a, b): return 4"), None, ADD) == 0.0


def test_programs_are_judged_by_what_they_print():
    tests = {"tests": [{"input": "3\n", "output": "6\n"}, {"input": "5", "output": "10"}]}
    assert share("print(2 * int(input()))", tests) == 1.0
    assert share("print(6)", tests) == 0.5


def test_tests_may_stand_in_the_label():
    assert CODE.reward(answer(GOOD), '["assert add(1, 1) == 2"]', {}) == 1.0


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("assert f(1) == [1, 2]", ("f(1)", [1, 2])),
        ("assert f(1)", ("bool(f(1))", True)),
        ("assert not f(1)", ("bool(f(1))", False)),
        ("assert f(1) == -0.5", ("f(1)", -0.5)),
        ("assert f(1) is None", ("f(1)", None)),
    ],
)
def test_what_a_test_expects_is_taken_out_of_it(test, expected):
    assert CODE.call_and_expected(test) == expected


@pytest.mark.parametrize(
    "test", ["assert f(1) == g(2)", "f(1) == 2", "assert f(", "", "assert 1 < f(2)"]
)
def test_other_tests_are_refused(test):
    with pytest.raises(ValueError, match="a test is"):
        CODE.share(answer(GOOD), None, {"tests": [test]})


@pytest.mark.parametrize("tests", [None, [], "{}", [1], [{"input": "x"}], "[1"])
def test_what_is_no_list_of_tests_is_refused(tests):
    with pytest.raises(ValueError, match=r"tests are|Expecting"):
        CODE.share(answer(GOOD), tests, {})


@pytest.mark.parametrize(
    ("value", "expected", "holds"),
    [
        ("0.1 + 0.2", "0.3", True),
        ("True", "1", False),
        ("1", "1.0", True),
        ("1", "True", False),
        ("{1, 2}", "{2, 1}", True),
        ("(1, 2)", "[1, 2]", False),
        ("float('nan')", "1.0", False),
        ("10**5000", "3", False),
    ],
)
def test_values_are_compared_with_their_kinds(value, expected, holds):
    assert share(f"f = lambda: {value}", {"tests": [f"assert f() == {expected}"]}) == float(holds)


CHEATS = {
    "equals everything": "class E:\n    def __eq__(self, o): return True\nadd = lambda a, b: E()",
    "leaves early": "import os\nos._exit(0)",
    "raises SystemExit": "raise SystemExit(0)",
    "prints a verdict": "print('\"3\"')\nprint('PASS')",
    "does not compile": "def add(a, b:",
    "looks for what is expected": "add = open('calls.json').read",
    "reads other files": "open('/etc/passwd').read()\n" + GOOD,
    "reads its parent's environment": "import os\nopen(f'/proc/{os.getppid()}/environ').read()\n"
    + GOOD,
    "writes a file": "open('x', 'w').write('x')\n" + GOOD,
    "opens a socket": "import socket\nsocket.socket()\n" + GOOD,
    "opens a pair of sockets": "import socket\nsocket.socketpair()\n" + GOOD,
    "forks": "import os\nos.fork()\n" + GOOD,
    "bombs": "import os\nwhile True: os.fork()",
    "starts a program": "import subprocess\nsubprocess.run(['true'])\n" + GOOD,
    "becomes a program": "import os\nos.execv('/bin/true', ['true'])\n" + GOOD,
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\n" + GOOD,
    "lifts its limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n"
    + GOOD,
    "takes all memory": "x = bytearray(1 << 34)\n" + GOOD,
    "recurses": "def add(a, b): return add(a, b)",
    "leaves C's stack": "x = []\nfor _ in range(10**5): x = [x]\nadd = lambda a, b: x",
    "writes junk to all files": "import os\nfor i in range(64):\n"
    "    try: os.write(i, b'\\xff{[\"\\n' * 3)\n    except OSError: pass",
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_earn_nothing(name):
    start = time.monotonic()
    assert share(CHEATS[name]) == 0.0
    assert time.monotonic() - start < CODE.SECONDS


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "import time\ntime.sleep(1000)", "while True: print('x' * 100000)"],
)
def test_what_does_not_end_is_ended(code, monkeypatch):
    monkeypatch.setitem(CODE.run.__globals__, "SECONDS", 0.7)
    before = {child.pid for child in psutil.Process().children()}
    start = time.monotonic()
    assert share(code) == 0.0
    assert share(code, {"tests": [{"input": "", "output": "1"}]}) == 0.0
    assert time.monotonic() - start < 5.0
    # others' processes may run beside these; a dead one that nobody waited for counts, too
    assert {child.pid for child in psutil.Process().children()} <= before


def test_an_answer_does_not_see_this_environment(monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    code = "import os\nf = lambda: os.environ.get('SECRET')"
    assert share(code, {"tests": ["assert f() is None"]}) == 1.0


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answers_earn_nothing(response):
    start = time.monotonic()
    assert CODE.reward(response, None, ADD) == 0.0
    assert CODE.reward(answer(response[:150_000]), None, ADD) == 0.0
    assert time.monotonic() - start < 5.0


def test_only_the_last_block_after_the_thoughts_counts():
    wrong = answer("def add(a, b): return 0")
    assert CODE.reward(answer(GOOD) + wrong, None, ADD) == 0.0
    assert CODE.reward(wrong + answer(GOOD), None, ADD) == 1.0
    assert CODE.reward(f"<think>{answer(GOOD)}</think> none", None, ADD) == 0.0
    assert CODE.reward("```python\n" + GOOD, None, ADD) == 0.0


def test_a_process_that_does_not_come_up_is_no_verdict(monkeypatch):
    monkeypatch.setitem(CODE.run.__globals__, "MEMORY", 1 << 20)
    with pytest.raises(RuntimeError, match="was not run"):
        share(GOOD)
    monkeypatch.setattr("sys.platform", "plan9")
    with pytest.raises(RuntimeError, match="this is plan9"):
        share(GOOD)


def test_nothing_runs_where_the_kernel_cannot_lock_it(monkeypatch):
    monkeypatch.setitem(CODE.run.__globals__, "REFUSED", {})
    with pytest.raises(RuntimeError, match="was not run"):
        share(GOOD)
    monkeypatch.setitem(CODE.run.__globals__, "WEAKER_ALLOWED", True)
    assert share(GOOD) == 1.0
