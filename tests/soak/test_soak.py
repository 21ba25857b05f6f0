"""The soak starts, kills as often as it is asked to, and leaves no process behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from soak import killing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a campaign forks")
TESTS = Path(__file__).parents[1]


def test_it_goes_on_until_there_were_so_many_kills_in_one_thread():
    clean = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    clean["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [clean.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "soak",
        "--only",
        "merge",
        "--minutes",
        "0",
        "--kills",
        "2",
        "--seed",
        "3",
    ]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 3, threads 1" in done.stdout
    assert int(done.stdout.splitlines()[-1].split()[0]) >= 2


def test_no_child_is_left(tmp_path):
    process = killing.child(lambda: time.sleep(60), tmp_path)
    killing.end_all()

    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
