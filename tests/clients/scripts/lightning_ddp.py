"""Lightning: distributed training in two processes, of which Lightning starts the second as `python script.py`."""

from lightning_module import Net, trainer
from reporting import DataLoader, Numbers

if __name__ == "__main__":
    training = trainer(max_epochs=2, devices=2, strategy="ddp")
    training.fit(Net(), DataLoader(Numbers(21), batch_size=4, num_workers=1))
