"""LoRA on a text classifier: the encoder stays frozen, and only the adapters travel."""

from fedlight import cli

cli.help_first(__name__, __file__)

import torch
from jsonargparse.typing import PositiveInt
from lightning import LightningModule, seed_everything
from torch import Tensor, nn

from fedlight import FederatedDataModule, FedTrainer
from fedlight.aggregators import FedBuff
from fedlight.arrivals import ContinuousArrivals, ExponentialDurations

THINGS = ["soup", "bread", "tea", "film", "song", "chair", "lamp", "shirt"]  # one per client
MOODS = [["awful", "dull", "broken", "cold"], ["lovely", "bright", "warm", "fine"]]
WORDS = ["the", "is", *THINGS, *MOODS[0], *MOODS[1]]
TINY = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}


class TextClassifier(LightningModule):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.network(**batch).loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        scores = self.network(**batch).logits
        self.log("val_acc", (scores.argmax(-1) == batch["labels"]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.005)


def main(model: str | None = None, rank: PositiveInt = 4, max_rounds: PositiveInt = 40) -> None:
    """Train adapters and a classifier; each of eight clients writes of a thing of its own.

    Args:
        model: A text model of the hub, such as bert-base-uncased, or a folder; null for a tiny
            BERT with random weights, for which nothing is downloaded.
        rank: Rank of the adapters.
        max_rounds: Server updates.
    """
    import transformers
    from peft import LoraConfig, get_peft_model

    seed_everything(0, verbose=False)
    if model:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        network = transformers.AutoModelForSequenceClassification.from_pretrained(model)
    else:
        config = transformers.BertConfig(vocab_size=len(WORDS), intermediate_size=64, **TINY)
        network = transformers.BertForSequenceClassification(config)

    def collate(rows: list[tuple[str, int]]) -> dict[str, Tensor]:
        texts, labels = zip(*rows, strict=True)
        if model:
            inputs = dict(tokenizer(list(texts), padding=True, return_tensors="pt"))
            return inputs | {"labels": torch.tensor(labels)}
        ids = [[*map(WORDS.index, text.split())] for text in texts]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}

    words = [(word, mood) for mood in (0, 1) for word in MOODS[mood]]
    clients = [[(f"the {thing} is {word}", mood) for word, mood in words] for thing in THINGS]
    rules = {"arrivals": ContinuousArrivals(ExponentialDurations(1.0)), "aggregator": FedBuff(4)}
    trainer = FedTrainer(**rules, max_rounds=max_rounds, logger=False)
    module = TextClassifier(get_peft_model(network, LoraConfig("SEQ_CLS", r=rank)))
    val = [row for rows in clients for row in rows]
    data = FederatedDataModule.from_client_datasets(clients, 4, val_dataset=val, collate_fn=collate)
    trainer.fit(module, data)
    travel, size = trainer.state.params.numel(), sum(map(Tensor.numel, module.parameters()))
    print(f"{travel} of {size} parameters travel")
    print(f"val_acc {trainer.callback_metrics['val_acc']:.4f}")


if __name__ == "__main__":
    cli.run(main)
