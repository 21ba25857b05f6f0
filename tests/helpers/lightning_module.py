"""A small Lightning module and its data; as a script, a training on two processes: FILE."""

import sys
import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import macc
from macc import losses


class Small(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = macc.attach(
            nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), estimator="analytic"
        )
        self.criterion = losses.CrossEntropy() + losses.MACC()

    def training_step(self, batch, _):
        return self.criterion(self.network(batch[0]), batch[1])

    def validation_step(self, batch, _):
        return {"logits": self.network(batch[0]), "labels": batch[1]}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    labels = torch.multinomial((2 * inputs[:, :3]).softmax(1), 1, generator=generator)[:, 0]
    return TensorDataset(inputs, labels)


def loaders(batch=16):
    return DataLoader(samples(64, 0), batch), DataLoader(samples(100, 1), batch)


def trainer(folder, callbacks, **arguments):
    return Trainer(
        default_root_dir=folder, accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks, enable_checkpointing=False, **arguments,
    )  # fmt: skip


def main(path):
    from macc.integrations.lightning import Calibrate

    callback = Calibrate(3)
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(folder, [callback], devices=2, strategy="ddp")
        model = Small()
        run.fit(model, *loaders(8))
        if run.is_global_zero:
            found = {name: float(value) for name, value in run.callback_metrics.items()}
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
            torch.save(
                {"metrics": found, "temperature": callback.calibrator.temperature, "weights": weights}, path
            )


if __name__ == "__main__":
    main(sys.argv[1])
