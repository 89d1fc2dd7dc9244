"""Runs the core of the tests on a pretended device (`tests/device/pretended.py`).

    python tests/on_device.py [arguments of pytest]     builds the device first (a minute, with g++)
    python tests/on_device.py --operators               makes the table of benchmarks/operators.py
    python tests/on_device.py --real cuda [arguments]   the same tests on a GPU, where there is one

The pretended device stands in for a GPU where there is none: a tensor on the wrong device raises.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "pretended"
CORE = (
    "tests/device",
    "tests/fit/test_trainer.py",
    "tests/test_checkpoint.py",
    "tests/fit/test_resume.py",
    "tests/module",
    "tests/clients",
    "tests/aggregators",
    "tests/local_optimizers",
    "tests/executors",
)
LEFT_OUT = {
    "tests/executors/test_ray.py": "its actors know no pretended device",
    "tests/executors/test_clusters.py": "its actors know no pretended device",
    "tests/executors/test_processes.py": "its processes compute on the CPU",
}
"""Files that are not run, and why."""

PROCESSES = "its processes compute on the CPU"
SINE = "its module takes a sine, for which the pretended device would resize an output"
WITH_THE_CPU = {
    "tests/aggregators/test_fedasmu.py::test_other_executors_agree": PROCESSES,
    "tests/aggregators/test_fedcompass.py::test_other_executors_agree": PROCESSES,
    "tests/aggregators/test_halos.py::test_workers_and_stacks": PROCESSES,
    "tests/aggregators/test_look_ahead.py::test_processes_pull": PROCESSES,
    "tests/aggregators/test_private_sum.py::test_any_number_of_workers": PROCESSES,
    "tests/executors/stack/test_independence.py::test_company_changes_no_bit": "looks at the CPU's "
    "operators",
    "tests/executors/stack/test_independence.py::test_two_threads_give": "looks at the CPU's "
    "operators",
    "tests/executors/test_base.py::test_processes_hold": PROCESSES,
    "tests/executors/test_changed_settings.py": "has tensors that are no buffers in its modules, "
    "and processes",
    "tests/executors/test_feedback.py::test_one_by_one_in_workers": PROCESSES,
    "tests/executors/test_feedback.py::test_a_run_resumed_at_any_update": PROCESSES,
    "tests/local_optimizers/test_kept.py::test_a_local_run_that_fails": SINE,
    "tests/local_optimizers/test_kept.py::test_a_scheduler_of_schedulers": SINE,
    "tests/local_optimizers/test_kept.py::test_each_client_keeps": SINE,
    "tests/local_optimizers/test_kept.py::test_one_client_alone": SINE,
    "tests/local_optimizers/test_kept.py::test_processes_give": PROCESSES,
    "tests/executors/tracing/test_constants.py": "has tensors that are no buffers in its modules",
    "tests/executors/random/test_streams.py::test_a_traced_step_draws_the_same[Dropping": "expects "
    "TorchScript's interpreter, which runs programs of the CPU alone",
    "tests/local_optimizers/test_module_optimizer.py::test_parameters_that_share": "compares",
    "tests/local_optimizers/test_own.py::test_a_servers_vector_alone": "compares",
    "tests/local_optimizers/test_own.py::test_feddyn_by_hand": "compares",
    "tests/local_optimizers/test_own.py::test_overlapping_tasks_start": "compares",
    "tests/local_optimizers/test_own.py::test_sam_with_batchnorm": "compares",
    "tests/local_optimizers/test_scaffold.py::test_float32_control_variates": "compares",
    "tests/local_optimizers/test_scaffold.py::test_option_1_is_the_gradient": "compares",
    "tests/fit/test_resume.py::test_stopped_at_every_round[LSTM": "has no kernel for a fused LSTM",
    "tests/fit/test_resume.py::test_the_module_is_the_servers_model_right_after": "compares",
    "tests/fit/test_trainer.py::test_examples_of_any_kind": "makes a tensor on the CPU in its step",
    "tests/fit/test_trainer.py::test_it_says_once_which_executor": "expects the words 'on cpu'",
    "tests/fit/test_trainer.py::test_self_device_and_loggers": "expects the CPU",
    "tests/fit/test_trainer.py::test_the_module_is_given_back": "a parameter is another object "
    "after a way there and back, which it is not with CUDA",
}
"""Tests that need the CPU, and why: they compare with its tensors, or put some among others."""


def build() -> None:
    """Compile the device, unless that was done since its source or torch changed."""
    import torch

    source, library = ROOT / "tests" / "device" / "pretended.cpp", FOLDER / "_pretended.so"
    home = Path(torch.__file__).parent
    newest = max(source.stat().st_mtime, (home / "version.py").stat().st_mtime)
    if library.is_file() and library.stat().st_mtime > newest:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    include = home / "include"
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", "-w", "-DTORCH_EXTENSION_NAME=_pretended"]
    folders = [include, include / "torch/csrc/api/include", sysconfig.get_paths()["include"]]
    linked = ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    print("building the pretended device …", flush=True)
    command = ["g++", *flags, *(f"-I{folder}" for folder in folders), str(source)]
    command += ["-o", str(library), f"-L{home / 'lib'}", *linked]
    subprocess.run(command, check=True)


def core(given: list[str]) -> list[str]:
    """The arguments of pytest: those given, and the core unless they name tests."""
    options = ["-m", "pytest", "-o", "addopts=", "--import-mode=importlib", "-q"]
    if any((ROOT / each.partition("::")[0]).exists() for each in given):
        return [*options, *given]
    left_out = [f"--ignore={each}" for each in LEFT_OUT]
    left_out += [f"--deselect={each}" for each in WITH_THE_CPU]
    return [*options, *left_out, *given, *CORE]


def main() -> int:
    given = sys.argv[1:]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if given[:1] == ["--real"]:
        surroundings["FEDLIGHT_ACCELERATOR"] = given[1]
        command = core(given[2:])
    else:
        build()
        surroundings["FEDLIGHT_PRETENDED"] = str(FOLDER)
        command = [*core(given), "-p", "tests.device.pretended"]
        if given == ["--operators"]:
            made = "import tests.device.pretended; from benchmarks.operators import *; "
            command = ["-c", made + "print(table([*WORKLOADS.values()], 'cpu'))"]
    return subprocess.run([sys.executable, *command], env=surroundings, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
