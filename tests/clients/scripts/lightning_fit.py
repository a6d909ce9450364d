"""Lightning: a fit whose loader is built anew (`overfit_batches`), a whole fit, and a prediction."""

from lightning_module import Net, trainer
from reporting import DataLoader, Numbers

if __name__ == "__main__":
    net = Net()
    trainer(overfit_batches=2).fit(net, DataLoader(Numbers(), batch_size=4))
    trainer(max_epochs=2).fit(net, DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1))
    trainer().predict(net, DataLoader(Numbers(10), batch_size=4, num_workers=2, persistent_workers=True))
