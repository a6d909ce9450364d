"""Workers of a Ray cluster under frameworks: what is trained on is what local workers make, also after a resume."""

from __future__ import annotations

import pytest
import torch

import headrace
from tests.clients.lightning_trainer import trainer

pytestmark = [pytest.mark.clients, pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore"),
              pytest.mark.usefixtures("on_ray")]  # fmt: skip

COUNT = 240
BATCH = 10


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, key):
        return {"id": key, "x": torch.full((16,), float(key))}


def loader_of(**words):
    return headrace.DataLoader(Numbers(), BATCH, shuffle=True, seed=3, **words)


def expected(epochs):
    loader = loader_of()
    return [number for _ in range(epochs) for batch in loader for number in batch["id"].tolist()]


def test_lightning_trains_on_other_machines_and_goes_on_without_them(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)
            self.seen = []

        def training_step(self, batch, _):
            self.seen += batch["id"].tolist()
            return self.layer(batch["x"]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    first = Model()
    begun = trainer(tmp_path, 31)
    loader = loader_of(num_workers=1, persistent_workers=True, backend="ray")
    begun.fit(first, loader)
    begun.save_checkpoint(tmp_path / "saved.ckpt")
    assert set(loader.recorder.hosts) == {0}

    second = Model()
    trainer(tmp_path, 48).fit(second, loader_of(num_workers=1), ckpt_path=tmp_path / "saved.ckpt")

    assert len(first.seen) == 31 * BATCH
    assert first.seen + second.seen == expected(epochs=2)
