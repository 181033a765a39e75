r"""1 where the last complete box after the thoughts equals the label, by Math-Verify; else 0.

The policy: only what stands after the last ``</think>`` is graded; a ``\boxed{...}`` is demanded
and the last complete one counts; a percent sign divides by 100; a unit is ignored where the label
has none, and must be the label's where it has one; brackets count, and so does order inside of
round and square ones; a rounded decimal is not the fraction. An empty box is never right.

Numbers are compared here, exactly. Everything else goes to Math-Verify, in a process that ends
after ``SECONDS``: algebra on an answer like ``9^{9^9}`` has no bound, and a library's own time
limit rests on signals, which only a main thread gets. Needs ``pip install 'nbrl[rewards]'``.
"""

import json
import re
import select
import subprocess
import sys
import threading
from fractions import Fraction

SECONDS = 0.8
"""Processor time of Math-Verify for one answer; one that takes more counts as not equal."""
START_SECONDS = 60
MOST_CHARACTERS = 1000
"""A longer answer is right only where it is the label's text."""

# Loaded once; each answer gets a fork of it, which its alarms end wherever it is.
PROGRAM = r"""
import json, os, resource, signal, sys
try:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    from sympy import Basic, Float, MatrixBase, Rational
except ImportError as error:
    sys.exit(str(error))
KINDS = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

def exact(value):
    if not isinstance(value, (Basic, MatrixBase)):
        return value
    return value.xreplace({f: Rational(str(f)) for f in value.atoms(Float)})

def read(text):
    return [exact(e) for e in parse("$" + text + "$", KINDS, parsing_timeout=None)]

def verdict(gold, answer):
    label = read(gold)
    if all(isinstance(e, str) for e in label):
        return "unread"
    return bool(verify(label, read(answer), numeric_precision=30, timeout_seconds=None))

# what is used for the first time is slow
for gold, answer in [
    ("x^2-1", "(x-1)(x+1)"), ("x+1", "x+2"), (r"\frac{1}{2}+\sqrt{2}", r"\pi"), (r"\pm 3", "1,2"),
    (r"(0,1]\cup[2,\infty)", "(1,2)"), ("x=5", "x<5"), (r"\sin x", r"\log_2 8"),
    ("(1,2,3)", "(1,2,4)"),
]:
    verdict(gold, answer)
print("ready", flush=True)
for line in sys.stdin:
    gold, answer, seconds = json.loads(line)
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        # processor time, so that a busy machine changes no verdict; the clock for what sleeps
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 10 * seconds)
        try:
            said = verdict(gold, answer)
        except BaseException:
            said = False
        print(json.dumps(said), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print("false", flush=True)
"""
GRADERS: dict[int, subprocess.Popen] = {}
"""Each thread's own, by the thread's number."""

# ---- what is graded -----------------------------------------------------------------------------

BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.S)


def last_box(text: str) -> str | None:
    r"""What the last complete ``\boxed{...}`` holds, without boxes around it; None without one."""
    open_braces: list[tuple[bool, int]] = []
    found = None
    for token in BRACES.finditer(text):
        if token[0] == "}" and open_braces:
            is_box, start = open_braces.pop()
            if is_box:
                inner = found if found and found[0] >= start else None
                found = inner or (start, token.start())
        elif token[0].endswith("{") and token[0] != r"\{":
            open_braces.append((len(token[0]) > 1, token.end()))
    return None if found is None else text[found[0] : found[1]].strip()


def final_part(response: str) -> str:
    """The text after the thoughts; thoughts that never end are followed by nothing."""
    return response.rpartition("</think>")[2].partition("<think>")[0]


# ---- reading an answer --------------------------------------------------------------------------

SPACES = re.compile(
    r"\\[,;:! ]|\\quad|\\qquad|\\displaystyle|\\left(?![a-z])|\\right(?![a-z])|~|\$"
)
WRAPPED = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
UNITS = "cm|mm|km|kg|m|g|s|ms|h|min|in|ft|mph|degrees?|dollars?|units?|hours?|minutes?|seconds?"
UNIT = re.compile(
    r"(?P<value>.*?[\d)}\]])\s*(?P<unit>(?:\^\s*\{?\\circ\}?\s*(?:[CF]|\\(?:text|mathrm)\s*\{[CF]\})?"
    r"|\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}|(?P<plain>UNITS))(?:\^\{?-?\d\}?)?)".replace(
        "UNITS", UNITS
    ),
    re.S,
)
SAME_UNITS = {"degree": "\\circ", "degrees": "\\circ", "meters": "m", "meter": "m", "hours": "h"}
DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?"
NUMBERS = [
    re.compile(rf"(?P<sign>[+-]?)(?P<top>{DIGITS})(?:/(?P<bottom>\d+))?(?P<percent>%?)"),
    re.compile(
        rf"(?P<sign>[+-]?)(?P<whole>\d*)\\frac\{{(?P<top>-?{DIGITS})\}}\{{(?P<bottom>{DIGITS})\}}"
        r"(?P<percent>%?)"
    ),
    re.compile(
        rf"(?P<sign>[+-]?)(?P<top>{DIGITS})(?:(?:\\times|\\cdot)10\^|[eE])\{{?(?P<power>[+-]?\d{{1,3}})\}}?"
    ),
    re.compile(r"(?P<sign>[+-]?)(?P<top>10)\^\{?(?P<power>[+-]?\d{1,3})\}?(?P<base>)"),
]


def tidy(text: str) -> str:
    """The text without what only sets it in type."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("\N{DEGREE SIGN}", r"^\circ")
    text = text.replace("{,}", ",").replace(r"\%", "%").replace(r"\$", "")
    text = re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", text).replace(r"^{\circ}", r"^\circ")
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\s+", " ", SPACES.sub(" ", text)).strip()
    return text.rstrip(".").strip()


def words(text: str) -> str | None:
    r"""What an answer in words says, ``\text{(A)}`` the same as ``a``; None where it is maths."""
    whole = WRAPPED.fullmatch(text)
    said = (whole[1] if whole else text).strip().rstrip(".").casefold()
    if choice := re.fullmatch(r"\(?([a-j])\)?", said):
        return choice[1]
    return " ".join(said.split()) if whole and re.search(r"[^\W\d]", said) else None


def split_unit(text: str) -> tuple[str, str]:
    """A value and the unit behind it, ``""`` where it has none."""
    found = UNIT.fullmatch(text)
    if not found or (found["plain"] and number(found["value"]) is None):
        return text, ""
    unit = WRAPPED.sub(lambda m: m[1], found["unit"])
    unit = re.sub(r"[\s{}]", "", unit).lstrip("^").rstrip(".")
    return found["value"].strip(), SAME_UNITS.get(unit, unit)


def number(text: str) -> Fraction | None:
    """The exact value of a decimal, fraction, mixed or scientific number; None for all else."""
    compact = text.replace(" ", "")
    if len(compact) > 300:
        return None
    for form in NUMBERS:
        found = form.fullmatch(compact)
        if found and found["top"].strip("-"):
            given = {name: value for name, value in found.groupdict().items() if value}
            value = Fraction(given["top"].replace(",", ""))
            if "bottom" in given:
                bottom = Fraction(given["bottom"].replace(",", ""))
                if not bottom:
                    return None
                value /= bottom
            value += int(given.get("whole", 0))
            value *= Fraction(10) ** (int(given.get("power", 0)) - ("base" in found.groupdict()))
            value /= 100 if "percent" in given else 1
            return -value if given.get("sign") == "-" else value
    return None


def brackets(text: str) -> str:
    """The brackets around a list, ``""`` where there are none; a set may do without its braces."""
    pairs = {"(": ")", "[": "]"}
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0:
            whole = at == len(text) - 1 and text[:1] in pairs and "," in text
            return text[0] + text[-1] if whole else ""
    return ""


# ---- comparing ----------------------------------------------------------------------------------


def same(gold: str, answer: str) -> bool:
    """Whether two tidy, non-empty texts mean the same; a gold text that says nothing raises."""
    if gold == answer:
        return True
    if (said := words(gold)) is not None and words(answer) is not None:
        return said == words(answer)
    gold_value, gold_unit = split_unit(gold)
    value, unit = split_unit(answer)
    if gold_unit and unit != gold_unit:
        return False
    gold_number, given = number(gold_value), number(value)
    if gold_number is not None and given is not None:
        return gold_number == given
    if len(answer) > max(MOST_CHARACTERS, 2 * len(gold)) or brackets(gold_value) != brackets(value):
        return False
    return ask(_plain(gold_value), _plain(value))


def _plain(text: str) -> str:
    """Without a percent sign: what stands before it, divided by 100."""
    return rf"\frac{{{text[:-1]}}}{{100}}" if text.endswith("%") else text


def ask(gold: str, answer: str) -> bool:
    """Math-Verify's verdict, False where it takes too long."""
    grader = GRADERS.get(threading.get_ident())
    if grader is None or grader.poll() is not None:
        grader = GRADERS[threading.get_ident()] = start()
    assert grader.stdin is not None
    grader.stdin.write(json.dumps([gold, answer, SECONDS]) + "\n")
    grader.stdin.flush()
    said = read_line(grader, START_SECONDS)
    if said is None:
        stop(grader)
        raise RuntimeError(f"Math-Verify's process ended while it compared {answer[:200]!r}")
    if json.loads(said) == "unread":
        raise ValueError(f"the label {gold[:200]!r} is no mathematics that Math-Verify can read")
    return json.loads(said)


def start() -> subprocess.Popen:
    """A process that has loaded Math-Verify; it ends when this one does."""
    grader = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if read_line(grader, START_SECONDS) != "ready":
        stop(grader)
        raise RuntimeError("Math-Verify cannot be loaded; run: pip install 'nbrl[rewards]'")
    return grader


def read_line(grader: subprocess.Popen, seconds: float) -> str | None:
    """What the process says next, None where it says nothing in time or has ended."""
    assert grader.stdout is not None
    ready, _, _ = select.select([grader.stdout], [], [], seconds)
    return grader.stdout.readline().strip() or None if ready else None


def stop(grader: subprocess.Popen) -> None:
    """End a process and forget it."""
    grader.kill()
    grader.communicate()
    GRADERS.pop(threading.get_ident(), None)


def reward(response: str, label: str | int | float) -> float:
    """1.0 for an answer equal to the label; a label that is empty or cannot be read raises."""
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        raise TypeError(
            f"the label must be a text or a number; got {type(label).__name__} {label!r}"
        )
    boxed = last_box(str(label))
    gold = tidy(str(label) if boxed is None else boxed)
    if not gold:
        raise ValueError(f"the label {label!r} holds no answer")
    answer = tidy(last_box(final_part(response)) or "")
    return float(bool(answer) and same(gold, answer))
