"""1 where the answer's Python passes all its tests, 0 where it fails one; ``code.py:share`` counts.

The code is the last ```` ```python ```` block after the thoughts. The tests stand in the prompt's
metadata under ``tests``, or as JSON in its label: a list of asserts, ``"assert add(1, 2) == 3"``,
or of ``{"input": ..., "output": ...}`` for programs. What a test expects never enters the process
of the answer: that process only says what a call returned, as text, and the comparison is made
here. So an answer cannot pass by printing, leaving early, or objects that equal everything.

An answer runs in a process of its own, in an empty folder, without this one's environment. Linux
refuses it (seccomp, Landlock) sockets, further processes and threads, signals, other programs,
writing any file, and reading what is not Python's own; its processor time, memory and output are
limited, and its process group is killed after ``SECONDS``. Where the kernel cannot do that,
nothing is run and the reward raises, unless ``WEAKER_ALLOWED`` is set: then the limits and the
clock are all there is, and the network and your files are open to it.
"""

import ast
import json
import os
import platform
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SECONDS = 6.0
"""Wall time of one run; each program of an input has its own."""
PROCESSOR_SECONDS = 4
MEMORY = 1 << 30
MOST_OUTPUT = 1 << 20
MOST_CODE = 200_000
WEAKER_ALLOWED = False

# System calls that are refused, by number: socket, socketpair, clone, clone3, fork, vfork, execve,
# execveat, kill, tkill, tgkill, pidfd_open, pidfd_getfd, pidfd_send_signal, ptrace,
# process_vm_readv and _writev, prlimit64, setns, unshare, mount, bpf, io_uring_setup, shmget,
# msgget, semget.
# fmt: off
REFUSED = {
    "x86_64": (0xC000003E, [
        41, 53, 56, 435, 57, 58, 59, 322, 62, 200, 234, 434, 438, 424, 101,
        310, 311, 302, 308, 272, 165, 321, 425, 29, 68, 64,
    ]),
    "aarch64": (0xC00000B7, [
        198, 199, 220, 435, 221, 281, 129, 130, 131, 434, 438, 424, 117,
        270, 271, 261, 268, 97, 40, 280, 425, 194, 186, 190,
    ]),
}
# fmt: on

RUNNER = r"""
import ctypes, json, os, resource, struct, sys, sysconfig
job = json.loads(sys.argv[1])
os.nice(5)
code = open("answer.py", encoding="utf-8", errors="surrogatepass").read()
calls = json.load(open("calls.json"))

def limit(name, most):
    resource.setrlimit(name, (most, most))

libc = ctypes.CDLL(None, use_errno=True)
def lock(what, result):
    if result < 0 and not job["weaker"]:
        print(json.dumps(f"this kernel has no {what} (errno {ctypes.get_errno()})"), flush=True)
        os._exit(3)

def landlock():
    version = libc.syscall(444, None, 0, 1)
    lock("Landlock", version)
    if version < 0:
        return
    bits = 13 + (version >= 2) + (version >= 3) + (version >= 5)
    ruleset = libc.syscall(444, struct.pack("Q", (1 << bits) - 1), 8, 0)
    paths = {sys.prefix, sys.base_prefix, *sys.path, *sysconfig.get_paths().values()}
    for path in [*paths, "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime"]:
        if path and os.path.exists(path):
            place = os.open(path, os.O_PATH)
            # execute, read, list; a file cannot be listed
            allowed = 1 | 4 | (8 if os.path.isdir(path) else 0)
            libc.syscall(445, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
            os.close(place)
    for path in ("/dev/null", "/dev/urandom"):
        place = os.open(path, os.O_PATH)
        libc.syscall(445, ruleset, 1, struct.pack("=Qi", 2 | 4, place), 0)
        os.close(place)
    lock("Landlock", libc.syscall(446, ruleset, 0))
    os.close(ruleset)

def seccomp():
    if job["refused"] is None:
        return lock("filter known here for this processor", -1)
    machine, numbers = job["refused"]
    step = lambda kind, yes, no, value: struct.pack("HBBI", kind, yes, no, value)
    allow, refuse, kill = 0x7FFF0000, 0x00050001, 0x80000000
    program = [
        step(0x20, 0, 0, 4), step(0x15, 1, 0, machine), step(6, 0, 0, kill), step(0x20, 0, 0, 0),
        step(0x35, len(numbers) + 1, 0, 0x40000000),
        *(step(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)),
        step(6, 0, 0, allow), step(6, 0, 0, refuse),
    ]
    filters = ctypes.create_string_buffer(b"".join(program))
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filters", ctypes.c_void_p)]
    given = Program(len(program), ctypes.addressof(filters))
    lock("seccomp", libc.prctl(22, 2, ctypes.byref(given), 0, 0))

limit(resource.RLIMIT_CPU, job["processor_seconds"])
limit(resource.RLIMIT_AS, job["memory"])
limit(resource.RLIMIT_FSIZE, 0)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NOFILE, 64)
lock("no_new_privs", libc.prctl(38, 1, 0, 0, 0))
landlock()
seccomp()

os.write(1, b"ready\n")
said = os.dup(1) if calls is not None else None
if calls is not None:
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
names = {"__name__": "__main__", "__file__": "answer.py"}
sys.argv = ["answer.py"]
exec(compile(code, "answer.py", "exec"), names)
for call in calls or []:
    try:
        returned = repr(eval(call, names))
    except Exception as error:
        returned = f"!{type(error).__name__}: {error}"[:300]
    os.write(said, (json.dumps(returned) + "\n").encode())
"""


# ---- what is run --------------------------------------------------------------------------------

FENCE = re.compile(r"[ \t]*```[ \t]*(\w*)[ \t]*")
PYTHON = ("python", "python3", "py")


def code_of(response: str) -> str | None:
    """The last whole Python block after the thoughts, None where there is none."""
    rest = response.rpartition("</think>")[2].partition("<think>")[0]
    found, block, language = None, None, ""
    for line in rest.splitlines():
        fence = FENCE.fullmatch(line) if "```" in line else None
        if fence is None:
            if block is not None:
                block.append(line)
        elif block is None:
            block, language = [], fence[1].lower()
        elif not fence[1]:
            found = "\n".join(block) if language in PYTHON else found
            block = None
    return found if found and found.strip() else None


def tests_of(label: Any, metadata: dict[str, Any]) -> list[Any]:
    """The tests of a prompt; none, or others than the two kinds, raise."""
    tests = metadata.get("tests", label)
    tests = json.loads(tests) if isinstance(tests, str) else tests
    kinds = {type(test) for test in tests} if isinstance(tests, list) else set()
    if kinds == {str} or (kinds == {dict} and all({"input", "output"} <= set(t) for t in tests)):
        return tests
    raise ValueError(
        'tests are a list of asserts, or of {"input": ..., "output": ...}, in metadata["tests"] or '
        f"as JSON in the label; got {str(tests)[:200]}"
    )


def call_and_expected(test: str) -> tuple[str, Any]:
    """``assert f(1) == 2`` as ``("f(1)", 2)``; one that compares with no literal raises."""
    try:
        (statement,) = ast.parse(test.strip()).body
        assert isinstance(statement, ast.Assert)
        asked = statement.test
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            return f"bool({ast.unparse(asked.operand)})", False
        if not isinstance(asked, ast.Compare):
            return f"bool({ast.unparse(asked)})", True
        (kind,), (right,) = asked.ops, asked.comparators
        assert isinstance(kind, ast.Eq | ast.Is)
        return ast.unparse(asked.left), ast.literal_eval(right)
    except (AssertionError, SyntaxError, ValueError) as error:
        raise ValueError(f"a test is `assert <call> == <literal>`; got {test[:200]!r}") from error


# ---- running it ---------------------------------------------------------------------------------


def run(code: str, calls: list[str] | None, given: str = "") -> str:
    """What the code prints for an input, or what its calls return, one JSON text a line.

    Raises:
        RuntimeError: The process could not be locked or did not come up; the answer has not run.
    """
    if sys.platform != "linux":
        raise RuntimeError(f"answers are locked down by Linux; this is {sys.platform}")
    with tempfile.TemporaryDirectory(prefix="nbrl-code-") as folder:
        place = Path(folder)
        (place / "answer.py").write_text(code, encoding="utf-8", errors="surrogatepass")
        (place / "calls.json").write_text(json.dumps(calls))
        (place / "input").write_text(given, encoding="utf-8")
        job = {
            "refused": REFUSED.get(platform.machine()),
            "weaker": WEAKER_ALLOWED,
            "processor_seconds": PROCESSOR_SECONDS,
            "memory": MEMORY,
        }
        with (place / "input").open("rb") as opened:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", RUNNER, json.dumps(job)],
                cwd=folder,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
                stdin=opened,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            said = read(process, time.monotonic() + SECONDS)
        finally:
            # not yet waited for, so that the number is still this process's and its group's
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            assert process.stdout is not None
            process.stdout.close()
    ready, _, rest = said.partition("\n")
    if ready != "ready":
        # nothing of the answer has run, so this says nothing about it
        why = ready or f"its process did not come up in {SECONDS:g} s (status {status})"
        raise RuntimeError(f"the answer was not run: {why}; see the head of this file")
    return rest


def read(process: subprocess.Popen, deadline: float) -> str:
    """What the process writes until it ends, the deadline, or the most that is looked at."""
    assert process.stdout is not None
    parts, size = [], 0
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while size < MOST_OUTPUT and (left := deadline - time.monotonic()) > 0:
            if waiting.select(left):
                part = os.read(process.stdout.fileno(), 65536)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    return b"".join(parts).decode("utf-8", "replace")


# ---- judging it ---------------------------------------------------------------------------------


def equal(expected: Any, line: str) -> bool:
    """Whether a line holds the text of the expected value; floats may differ in the last digits."""
    try:
        value = ast.literal_eval(json.loads(line))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    if isinstance(expected, float) and type(value) in (int, float):
        return abs(value - expected) <= 1e-9 * max(abs(value), abs(expected), 1.0)
    return type(value) is type(expected) and value == expected


def share(response: str, label: Any, metadata: dict[str, Any]) -> float:
    """The share of tests that pass, 0.0 for an answer without a block of code."""
    tests = tests_of(label, metadata)
    asserts = [call_and_expected(test) for test in tests if isinstance(test, str)]
    code = code_of(response)
    if code is None or len(code) > MOST_CODE:
        return 0.0
    if asserts:
        lines = run(code, [call for call, _ in asserts]).splitlines()
        passed = [
            equal(expected, line) for (_, expected), line in zip(asserts, lines, strict=False)
        ]
    else:
        passed = [
            run(code, None, str(test["input"])).split() == str(test["output"]).split()
            for test in tests
        ]
    return sum(passed) / len(tests)


def reward(response: str, label: Any, metadata: dict[str, Any]) -> float:
    """1.0 where every test passes."""
    return float(share(response, label, metadata) == 1.0)
