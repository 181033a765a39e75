"""One JupyterLab server and one page for the tests of a file, with homes of their own."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[3]
HOMES = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
OVERRIDES = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
STARTING = 90
LONG = 1000 * STARTING


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def lab_server(folder):
    """The address of a JupyterLab whose files lie in ``folder``; stopped at the end."""
    homes = {name: str(folder / ".homes" / name.lower()) for name in HOMES}
    for home in homes.values():
        Path(home).mkdir(parents=True)
    settings = folder / ".homes" / "settings"
    settings.mkdir()
    (settings / "overrides.json").write_text(json.dumps(OVERRIDES))
    port = free_port()
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--IdentityProvider.token=", "--expose-app-in-browser"),
        *("--LabApp.extension_manager=readonly", f"--ServerApp.root_dir={folder}"),
        f"--LabApp.app_settings_dir={settings}",
    ]
    environment = os.environ | homes | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("NBRL_DISPLAY", None)
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            wait_for(f"http://127.0.0.1:{port}/api/status", folder / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for(address, log):
    """Return when the server answers; its log is the error where it does not."""
    end = time.monotonic() + STARTING
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.2)
    raise TimeoutError(log.read_text()[-3000:])


def write_notebook(path, cells):
    """A notebook with these code cells."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)


def open_notebook(page, address, name):
    """The page shows the notebook, its kernel idle."""
    page.goto(f"{address}/lab/tree/{name}?reset", wait_until="domcontentloaded")
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext", timeout=LONG)
    page.evaluate(
        """async () => {
            const panel = window.jupyterapp.shell.currentWidget;
            await panel.context.ready;
            await panel.sessionContext.ready;
        }"""
    )
    page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
        timeout=LONG,
    )


def run_command(page, command):
    """Run one of JupyterLab's commands; answers when it is done."""
    page.evaluate("(name) => window.jupyterapp.commands.execute(name)", command)
