"""Lightning: distributed training in two processes over a bucket, with the sampler that Lightning puts in."""

import torch
from lightning_module import Net, trainer
from reporting import DataLoader, delivered
from stored_elsewhere import dataset, features_of


class NetOfDicts(Net):
    """Takes batches as the stored columns."""

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        delivered(batch["number"])
        return self.layer(features_of(batch)).mean()


if __name__ == "__main__":
    training = trainer(max_epochs=2, devices=2, strategy="ddp")
    training.fit(NetOfDicts(), DataLoader(dataset(), batch_size=4, num_workers=1, shuffle=True))
