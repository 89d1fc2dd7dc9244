"""Scripts in a process of their own that do not import torch anew, which takes seconds.

Each is a fork of an interpreter that has imported Lightning and fedlight and waits. To the script,
that is a process of its own whose imports are quick: with its own exit, signals and output.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

WAITING = """
import json, os, sys
import lightning.pytorch, fedlight.comparison, fedlight.executors, fedlight.trainer

def asked():
    line = b""
    while not line.endswith(b"\\n"):
        byte = os.read(0, 1)  # a buffer would be shared with the forks
        if not byte:
            raise SystemExit
        line += byte
    return json.loads(line)

while True:
    ask = asked()
    child = os.fork()
    if child:
        os.write(1, b"%d\\n" % child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(1, b"%d\\n" % code)
        continue
    os.setsid()
    os.chdir(ask["cwd"])
    streams = [(os.devnull, os.O_RDONLY), (ask["out"], os.O_WRONLY), (ask["err"], os.O_WRONLY)]
    for number, (path, mode) in enumerate(streams):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv[1:] = ask["arguments"]
    exec(compile(ask["code"], "<script>", "exec"))
    break
"""


class Script:
    """A script that runs; like `subprocess.Popen`."""

    returncode: int

    def __init__(self, waiting: subprocess.Popen[str], ask: dict[str, Any]) -> None:
        self._waiting, self._err = waiting, Path(ask["err"])
        waiting.stdin.write(json.dumps(ask) + "\n")
        waiting.stdin.flush()
        self.pid = int(waiting.stdout.readline())
        self.stdout = open(ask["out"])  # noqa: SIM115 (a pipe: waits for the script's end of it)

    def communicate(self) -> tuple[str, str]:
        """What it still prints, and its errors, when it has ended."""
        with self.stdout:
            out = self.stdout.read()
        self.returncode = int(self._waiting.stdout.readline())
        return out, self._err.read_text()


class Scripts:
    """Starts one script after another."""

    def __init__(self, waiting: subprocess.Popen[str], folder: Path) -> None:
        self._waiting, self._folder, self._number = waiting, folder, 0

    def start(self, code: str, *arguments: str) -> Script:
        """Start a script in the working folder, in a session of its own."""
        self._number += 1
        out, err = (self._folder / f"{self._number}.{name}" for name in ("out", "err"))
        os.mkfifo(out)
        err.touch()
        ask = {"code": code, "arguments": arguments, "cwd": os.getcwd()}
        return Script(self._waiting, {**ask, "out": str(out), "err": str(err)})

    def run(self, code: str, *arguments: str) -> tuple[int, str, str]:
        """The exit code of a script, what it prints, and its errors."""
        script = self.start(code, *arguments)
        out, err = script.communicate()
        return script.returncode, out, err


@contextmanager
def waiting_interpreter() -> Iterator[Scripts]:
    """An interpreter for one script after another."""
    command = [sys.executable, "-c", WAITING]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            yield Scripts(process, Path(folder))
        finally:
            process.kill()
            process.communicate()
