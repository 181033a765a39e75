"""A notebook run as ``nbrl run`` does, and what it left."""

from dataclasses import dataclass
from pathlib import Path

from nbrl.notebook.execution import execute_run, summary_of
from nbrl.notebook.parameters import checked


@dataclass
class Ran:
    """The executed notebook, its run folder and the summary of its last cell."""

    notebook: Path
    run_folder: Path
    summary: dict


def run_notebook(notebook, folder, parameters):
    """What a notebook left that went through with these parameters."""
    outcome = execute_run(notebook, folder, checked(notebook, parameters))
    assert outcome.code == 0, (outcome.cell, outcome.error)
    assert outcome.run_folder is not None
    return Ran(Path(outcome.notebook), Path(outcome.run_folder), summary_of(outcome.run_folder))
