"""What `benchmarks/first_gpu_run.sh` calls is there, and takes the arguments that it gives."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import benchmarks.federations
from benchmarks.federations import Timing

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "first_gpu_run.sh"
TEXT = SCRIPT.read_text()
PARTS = dict(re.findall(r'^cat >"\$out/(\w+)\.py" <<\'END\'\n(.*?)^END$', TEXT, re.M | re.S))
COMMANDS = [
    shlex.split(line.partition('"$PY" ')[2].replace("$DEVICE", "cpu"))
    for line in TEXT.splitlines()
    if re.search(r'part .* "\$PY" (benchmarks|tests)/', line)
]


def test_bash_reads_it():
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0
    assert PARTS.keys() == {"speed", "bits", "memory"}
    assert [command[0] for command in COMMANDS] == [
        "benchmarks/operators.py",
        "tests/on_device.py",
        "benchmarks/run.py",
    ]


@pytest.mark.parametrize("command", [c for c in COMMANDS if "benchmarks" in c[0]], ids=str)
def test_its_commands_take_their_arguments(command, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    # a wrong argument ends with status 2 before the help is reached
    monkeypatch.setattr(sys, "argv", [*command, "--help"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(ROOT / command[0]), run_name="__main__")
    assert caught.value.code == 0


def test_the_tests_of_a_device_are_there():
    names = runpy.run_path(str(ROOT / "tests" / "on_device.py"))
    for each in (*names["CORE"], *names["LEFT_OUT"]):
        assert (ROOT / each).exists(), each
    for each in names["WITH_THE_CPU"]:
        file, _, test = each.partition("::")
        assert f"def {test.partition('[')[0]}" in (ROOT / file).read_text(), each
    arguments = names["core"](["--maxfail=40"])
    assert arguments[-len(names["CORE"]) :] == [*names["CORE"]]
    assert "--ignore=tests/executors/test_ray.py" in arguments
    assert names["core"](["tests/device"])[-1] == "tests/device"


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setenv("DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("work", ["A", "B", "CNN", "LSTM"])
def test_speed(on_cpu, monkeypatch, capsys, work):
    real = benchmarks.federations.timed
    asked = []

    def timed(workload, data, device, updates, **given):
        asked.append((device, str(given["executor"])))
        if work != "A":
            return Timing(1.0, 1.0, 1.0, 1, 1)
        return real(workload, data, device, updates // 10, **given)

    monkeypatch.setattr(benchmarks.federations, "timed", timed)
    monkeypatch.setattr(sys, "argv", ["speed.py", work])
    exec(compile(PARTS["speed"], "speed.py", "exec"), {})
    kinds = ["sequential", "vectorized", "auto"]
    assert asked == [("cpu", kind) for kind in kinds for _ in range(2)]
    assert capsys.readouterr().out.count(" MiB\n") == 6


def test_bits(on_cpu, capsys):
    exec(compile(PARTS["bits"].replace("max_rounds=60", "max_rounds=1"), "bits.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    prints = [line.split()[-2] for line in lines]
    assert len(prints) == 3 * 2 * 5
    for start in range(0, len(prints), 5):  # here each of the five is the CPU
        assert len(set(prints[start : start + 5])) == 1


def test_memory(on_cpu, capsys):
    exec(compile(PARTS["memory"].replace("200_000", "20"), "memory.py", "exec"), {})
    assert "largest difference 0.0\n" in capsys.readouterr().out


def test_the_variable_of_cublas_is_one_that_torch_accepts():
    (line,) = [line for line in TEXT.splitlines() if "part bits" in line]
    assert line.startswith("CUBLAS_WORKSPACE_CONFIG=:4096:8 part ")
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
