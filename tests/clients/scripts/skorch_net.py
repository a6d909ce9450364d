"""skorch: makes its loaders itself, of the class that it is given, or of torch's."""

import os

import numpy as np
import skorch
import torch
from reporting import DataLoader, delivered, in_the_loop


class Net(skorch.NeuralNetRegressor):
    """Says what it is trained with."""

    def get_iterator(self, dataset, training=False):
        """Says which loader skorch makes."""
        loader = super().get_iterator(dataset, training)
        in_the_loop(loader)
        return loader

    def train_step(self, batch, **options):
        """Learns from a batch."""
        delivered(batch[0][:, 0].long())
        return super().train_step(batch, **options)


if __name__ == "__main__":
    torch.manual_seed(7)
    features = np.arange(20, dtype=np.float32)[:, None].repeat(4, 1)
    ours = {"iterator_train": DataLoader} if os.environ.get("IMPORTED_FROM") == "headrace" else {}
    net = Net(
        torch.nn.Linear(4, 1), max_epochs=2, batch_size=8, iterator_train__shuffle=True, iterator_train__num_workers=1,
        train_split=None, verbose=0, lr=1e-6, **ours,
    )  # fmt: skip
    net.fit(features, features[:, :1])
