"""skorch: the loader that it makes in the middle of `fit` goes on in mid-epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import skorch
import torch
from resumed import EPOCHS, STEPS_OF_EPOCH, Noisy, asked, told, workers

import headrace


class Net(skorch.NeuralNet):
    """Begins with the state of a loader, and stops behind a step, as with Ctrl-C."""

    state: Path | None = None
    stop = 0
    step = 0

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Makes the loader for the training."""
        self.loader = super().get_iterator(dataset, training)
        if self.state:
            self.loader.load_state_dict(torch.load(self.state, weights_only=True))
        return self.loader

    def get_loss(self, y_pred: Any, y_true: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a loss that needs no labels."""
        return y_pred.mean()

    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any) -> None:
        """Saves the loader's state behind the step."""
        super().on_batch_end(net, batch=batch, training=training, **kwargs)
        told([batch])
        self.step += 1
        if self.step == self.stop:
            torch.save(self.loader.state_dict(), f"{folder}/{self.stop}")
            raise KeyboardInterrupt


if __name__ == "__main__":
    folder, stop, begun, batch_size = asked()
    torch.manual_seed(1)
    net = Net(
        torch.nn.Linear(4, 1), torch.nn.MSELoss, max_epochs=EPOCHS - begun // STEPS_OF_EPOCH, batch_size=batch_size,
        train_split=None, verbose=0, lr=0.01, iterator_train=headrace.DataLoader, iterator_train__shuffle=True,
        iterator_train__num_workers=workers(begun), iterator_train__seed=3,
    )  # fmt: skip
    net.stop = stop
    if begun:
        net.state = Path(folder, str(begun))
    net.fit(Noisy(), None)
