#!/usr/bin/env bash
# The first quarter of an hour on a machine with a GPU: speed, bits, waits, memory, tests.
#
#     PY=python3 OUT=gpu-out bash benchmarks/first_gpu_run.sh
#
# Each part writes a file into $OUT and has a time limit of its own, so one that fails or hangs does
# not keep the others from running. The results belong into docs/performance.md, with the card's name.
# DEVICE=cpu tries the script itself where there is no GPU.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=$PWD OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} DEVICE=${DEVICE:-cuda}
PY=${PY:-python3}
out=$(mkdir -p "${OUT:-build/gpu-out}" && cd "${OUT:-build/gpu-out}" && pwd)

part() { # NAME SECONDS COMMAND…
    local name=$1 limit=$2
    shift 2
    timeout "$limit" "$@" >"$out/$name.txt" 2>&1
    echo "== $name: exit status $?"
    tail -n 5 "$out/$name.txt"
}

part card 20 nvidia-smi
part versions 60 "$PY" -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name())'

# client updates a second, twice each (the first run compiles kernels), and the peak of memory
cat >"$out/speed.py" <<'END'
import os
import sys
import torch
from benchmarks.federations import timed
from benchmarks.workloads import LSTM, SMALL_CNN, A, B

on, cuda = os.environ["DEVICE"], torch.cuda.is_available()
work = {"A": A, "B": B, "CNN": SMALL_CNN, "LSTM": LSTM}[sys.argv[1]]
for executor in ("sequential", "vectorized", "auto"):
    try:
        for _ in range(2):
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            found = timed(work, work.data(), on, 40 * work.per_round, executor=executor)
            peak = torch.cuda.max_memory_allocated() >> 20 if cuda else 0
            print(work.name, executor, found, peak, "MiB", flush=True)
    except Exception as error:  # an LSTM has no stacked operators
        print(work.name, executor, type(error).__name__, str(error)[:300], flush=True)
END
for work in A B CNN LSTM; do part "speed_$work" 120 "$PY" "$out/speed.py" "$work"; done

# the same seed twice: the same bits? and how far from the CPU's
cat >"$out/bits.py" <<'END'
import os
import torch
from torch import nn
from tests.boring import Boring, classes, fitted

def conv():
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 8, 3), nn.Flatten(), nn.Linear(16, 3))

def norm():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))

on = os.environ["DEVICE"]
for make in (lambda: nn.Linear(4, 3), conv, norm):
    for executor in ("sequential", "vectorized"):
        for accelerator, deterministic in (("cpu", None), *[(on, d) for d in (None, None, True, True)]):
            torch.manual_seed(0)
            run = fitted(Boring(make()), classes(), executor=executor, accelerator=accelerator,
                         deterministic=deterministic, max_rounds=60)
            print(executor, accelerator, deterministic, run.fingerprint(), run.state.params.sum().item())
END
# torch looks at this variable once in a process, with the first product of matrices
CUBLAS_WORKSPACE_CONFIG=:4096:8 part bits 150 "$PY" "$out/bits.py"

# little memory: stacks are halved, and the result is the same but for its last bits
cat >"$out/memory.py" <<'END'
import os
import torch
from torch import nn
from fedlight.arrivals import UniformArrivals
from tests.boring import Boring, classes, fitted

on, cuda = os.environ["DEVICE"], torch.cuda.is_available()

def run():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 200_000), nn.ReLU(), nn.Linear(200_000, 3))
    return fitted(Boring(net), classes(sizes=(8,) * 64), executor="vectorized", accelerator=on,
                  arrivals=UniformArrivals(64), max_rounds=3)

free = run()
if cuda:
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.7 * peak / total)
    print("peak", peak >> 20, "MiB")
tight = run()
print("stacks of", tight.run.executor.max_batch)
print("largest difference", (free.state.params - tight.state.params).abs().max().item())
END
part memory 120 "$PY" "$out/memory.py"

part operators 120 "$PY" benchmarks/operators.py --device "$DEVICE"
part tests 300 "$PY" tests/on_device.py --real "$DEVICE" -p no:cacheprovider --maxfail=40
part bench 200 "$PY" benchmarks/run.py --device "$DEVICE" --quick --turns 2 --only A B CNN
