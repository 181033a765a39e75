"""The parameters of a notebook: read without running it, and checked before a kernel starts.

May import ``errors``. A notebook has exactly one cell tagged ``parameters``, of plain assignments
whose comments are their help.
"""

import ast
import json
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from nbrl.errors import DataError, all_problems

RUN_FOLDER = "run_folder"
"""The parameter that says where a notebook writes; a batch run chooses it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One assignment of the parameters cell.

    ``default`` is None where it is not a plain value; ``source`` is its text, ``choices`` are those
    of a ``Literal`` annotation.

    Example: ``lr: float = 3e-4  # learning rate`` gives ``Parameter(name="lr", default=0.0003,
    source="0.0003", help="learning rate", choices=())``.
    """

    name: str
    default: Any
    source: str
    help: str
    choices: tuple[Any, ...] = ()


def parameters_of(notebook: Path) -> dict[str, Parameter]:
    """The parameters by name.

    Raises:
        DataError: It is no notebook, has not exactly one cell tagged ``parameters``, or that cell
            is no Python.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        tagged = [c for c in cells if "parameters" in c["metadata"].get("tags", [])]
        sources = ["".join(cell["source"]) for cell in tagged]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{notebook} is not a notebook: {error!r}.") from error
    if len(sources) != 1:
        raise DataError(
            f"{notebook} needs exactly one cell tagged 'parameters'; it has {len(sources)}."
        )
    try:
        statements, comments = ast.parse(sources[0]).body, _comments(sources[0])
    except (SyntaxError, tokenize.TokenError) as error:
        raise DataError(f"{notebook}: its parameters cell is no Python: {error}.") from error
    found = {}
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            note = statement.annotation if isinstance(statement, ast.AnnAssign) else None
            for name in (t.id for t in targets if isinstance(t, ast.Name)):
                found[name] = Parameter(
                    name=name,
                    default=_plain(statement.value),
                    source=ast.unparse(statement.value),
                    help=comments.get(statement.end_lineno or 0, ""),
                    choices=_choices(note),
                )
    return found


def checked(notebook: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the notebook's parameters take them: types kept, texts from a shell read.

    A text becomes what its default is: a number, a truth value, a list, a dict, or a text as it
    stands. ``null`` is None.

    Raises:
        ConfigError: Names that the notebook does not have, values of another type, or ones that a
            ``Literal`` does not list; all in one message.
        DataError: As :func:`parameters_of`.
    """
    known = parameters_of(notebook)
    settable = ", ".join(f"{n}={p.source}" for n, p in known.items() if n != RUN_FOLDER)
    problems, values = [], {}
    for name, value in given.items():
        if name == RUN_FOLDER:
            problems.append(f"{RUN_FOLDER} is chosen here; pass --out for where runs go")
        elif name not in known:
            problems.append(f"{name!r} is no parameter of the notebook; it has {settable}")
        else:
            try:
                values[name] = _fitted(known[name], value)
            except ValueError as error:
                problems.append(str(error))
    if problems:
        raise all_problems(f"run {notebook.name}", problems)
    return values


def _fitted(parameter: Parameter, value: Any) -> Any:
    """The value as the parameter's type; ValueError where it is another."""
    default = parameter.default
    read = _read(value, default)
    wanted = type(default)
    if default is not None and read is not None:
        if wanted is float and isinstance(read, int) and not isinstance(read, bool):
            read = float(read)
        if type(read) is not wanted and not isinstance(default, list | tuple):
            raise ValueError(
                f"{parameter.name} is {wanted.__name__} ({parameter.source}); got "
                f"{type(read).__name__} {value!r}"
            )
        if isinstance(default, list | tuple) and not isinstance(read, list | tuple):
            raise ValueError(f"{parameter.name} is a list ({parameter.source}); got {value!r}")
    if parameter.choices and read not in parameter.choices:
        raise ValueError(f"{parameter.name} must be one of {parameter.choices}; got {value!r}")
    return read


def _read(value: Any, default: Any) -> Any:
    """A text from a shell as a value; a text stays one where the default is a text."""
    if not isinstance(value, str):
        return value
    if isinstance(default, str):
        return None if value == "null" else value
    try:
        return json.loads(value)
    except ValueError:
        words = {"True": True, "False": False, "None": None}
        return words.get(value, value)


def _plain(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _choices(annotation: ast.expr | None) -> tuple[Any, ...]:
    if not isinstance(annotation, ast.Subscript) or "Literal" not in ast.unparse(annotation.value):
        return ()
    inside = annotation.slice
    listed: Sequence[ast.expr] = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    return tuple(ast.literal_eval(each) for each in listed)


def _comments(source: str) -> dict[int, str]:
    """The comment at the end of each line."""
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
