"""Language models on four unequal islands: who waits, and what a server does with late updates.

Four islands with speeds of 1, 1.3, 2.6 and 5.7 steps train one small GPT on texts as bytes. The
synchronous DiLoCo waits for the slowest; delayed Nesterov, with and without steps by speed,
momentum look-ahead, HeLoCo, plain asynchronous Nesterov and asynchronous SGD do not. The tables
have the loss after equal numbers of tokens, and at equal virtual times.

    python recipes/islands.py --path studies/islands
    python recipes/islands.py --texts python --size tiny --tasks 40 --seeds 1

Source: Asynchronous Local-SGD Training for Language Modeling, https://arxiv.org/abs/2401.09135
"""

from fedlight import cli

cli.help_first(__name__, __file__)

from functools import partial
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from fedlight import sweep
from fedlight.data import python_texts, shakespeare_texts, text_data
from fedlight.models import TinyGPT
from parts.islands import SIZES, SPEEDS, table


def main(
    texts: Literal["shakespeare", "python"] = "shakespeare",
    source: str = "flwrlabs/shakespeare",
    size: Literal["small", "tiny"] = "small",
    tasks: PositiveInt = 100,
    lr: PositiveFloat = 0.002,
    seeds: PositiveInt = 5,
    path: cli.Folder | None = None,
) -> None:
    """Train all methods with equal seeds; print losses with intervals, draw two figures.

    Args:
        texts: What the islands read: parts of Shakespeare, or of Python's own library.
        source: The hub id of Shakespeare, or a folder with the same files.
        size: "small" has tasks of 25 steps of a GPT with 120,576 parameters; "tiny" is for a try.
        tasks: Tasks of all islands together.
        lr: The largest rate of AdamW on the islands.
        seeds: Runs per method.
        path: Folder of the study: runs, of which none is made twice, TensorBoard and figures.
    """
    read = shakespeare_texts(source) if texts == "shakespeare" else python_texts()
    all_of_it = [each if isinstance(each, str) else each.decode() for each in read.values()]
    chosen = SIZES[size]
    num_steps, context = chosen.num_steps, chosen.context
    islands = {f"island {k}": "".join(all_of_it[k::4])[: chosen.most] for k in range(4)}
    data = text_data(islands, context)
    module = partial(TinyGPT, context=context, num_layers=2, num_heads=4, width=chosen.width)
    options = {"path": path, "logger_dir": f"{path}/logs"} if path else {}
    options |= {"metric": "val_loss", "mode": "min"}
    study = sweep({"method": table(lr, num_steps, tasks)}, seeds=range(seeds),
                  module=module, datamodule=data, **options)  # fmt: skip
    steps = num_steps * tasks
    for axis, end in (("tokens", steps * 8 * context), ("virtual_time", steps / sum(SPEEDS))):
        print(
            study.at([share * end for share in (0.25, 0.5, 0.95)], axis).to_markdown(), end="\n\n"
        )
        if path:
            study.plot(axis).savefig(f"{path}/{axis}.png")


if __name__ == "__main__":
    cli.run(main)
