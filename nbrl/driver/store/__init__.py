"""The run folder: the one owner of every path inside it.

``files`` writes whole files and whole lines, ``folder`` names what a run leaves, ``samples`` turns
rollouts and scores into Parquet and back, ``recording`` writes them beside the training,
``checkpoints`` keeps states, ``environment`` says where a run was made. May import ``types``,
``config`` and ``errors``.
"""

from nbrl.driver.store.folder import RunFolder, open_run_folder

__all__ = ["RunFolder", "open_run_folder"]
