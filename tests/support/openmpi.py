"""Programs that Open MPI's launchers start, for the tests of the openshmem fabric and of MPI as a peer."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

# .ci/run says so when it has installed Open MPI: then a skipped test would be one that nobody has run.
NEEDED = os.environ.get("TRICOLL_TEST_NEEDS") == "openmpi"


def needs(what, reason):
    """Marks tests that need Open MPI; ``reason``: why they cannot run, None if they can."""
    return pytest.mark.skipif(reason is not None and not NEEDED, reason=f"{what}: {reason}")


def start(launcher, n, script, *arguments, environment=()):
    """Start a program of ``n`` processes. Its output comes as text, standard error included."""
    path = shutil.which(launcher)
    assert path, f"{launcher} is not installed (on Debian: apt-get install openmpi-bin libopenmpi3)"
    ours = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE") and not k.startswith("OMPI_")}
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Open MPI's own files, which a process that is killed leaves to the launcher, if it has time for that.
    folder = tempfile.TemporaryDirectory()
    ours["OMPI_MCA_btl_vader_backing_directory"] = folder.name
    program = subprocess.Popen(
        [path, *root, "--oversubscribe", "-np", str(n), sys.executable, "-W", "ignore", str(script), *arguments],
        env=ours | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    program.folder = folder
    return program


def finish(program, limit):
    """The exit code and the output of a program; it is ended, and fails the test, after ``limit`` seconds."""
    try:
        output, _ = program.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGTERM)  # the launcher ends its processes
        output, _ = program.communicate(timeout=20)
        raise AssertionError(f"the program had not ended after {limit} s:\n{output[-4000:]}") from None
    finally:
        program.folder.cleanup()
    return program.returncode, output
