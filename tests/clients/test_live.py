"""Data that never end under a framework: PyTorch Lightning resumes in mid-epoch, and each record comes once."""

from __future__ import annotations

import pytest

import headrace
from tests.clients.lightning_trainer import trainer
from tests.sources.loading import values

pytestmark = [pytest.mark.clients, pytest.mark.timeout(180)]

COUNT = 400


def loader_of(url: str, workers: int) -> headrace.DataLoader:
    data = headrace.follow(url, decode="json", span=100)
    return headrace.DataLoader(data, batch_size=10, shuffle=True, num_workers=workers, batches_per_epoch=10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_goes_on_with_the_next_batch(kafka_broker, tmp_path, workers):
    lightning = pytest.importorskip("lightning")
    torch = pytest.importorskip("torch")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1, dtype=torch.float64)
            self.seen = []

        def training_step(self, batch, _):
            self.seen += batch["id"].tolist()
            return self.layer(batch["x"][:, None]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    kafka_broker.make_topic("clicks")
    kafka_broker.produce("clicks", values(range(COUNT)))
    url = kafka_broker.url("clicks")
    first = Model()
    begun = trainer(tmp_path, 25)
    loader = loader_of(url, workers)
    begun.fit(first, loader)
    begun.save_checkpoint(tmp_path / "saved.ckpt")
    loader.commit(loader.state_dict())
    assert kafka_broker.committed("clicks") == {0: 200}

    second = Model()
    trainer(tmp_path, 40).fit(second, loader_of(url, workers), ckpt_path=tmp_path / "saved.ckpt")
    assert len(first.seen) == 250
    assert sorted(first.seen + second.seen) == list(range(COUNT))
