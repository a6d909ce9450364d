"""transformers: the Trainer makes its loaders itself, with a tiny model from a config."""

import tempfile

import torch
from reporting import delivered, in_the_loop
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    """Sample i: a few token numbers, which begin with i."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return {
            "input_ids": torch.tensor([index, 1, 2]),
            "attention_mask": torch.ones(3, dtype=torch.long),
            "labels": 0,
        }


class SayingTrainer(Trainer):
    """Says what it is given."""

    def training_step(self, model, inputs, *more):
        """Learns from a batch."""
        delivered(inputs["input_ids"][:, 0])
        return super().training_step(model, inputs, *more)

    def get_train_dataloader(self):
        """Says which loader it trains with."""
        loader = super().get_train_dataloader()
        in_the_loop(loader)
        return loader


if __name__ == "__main__":
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=32, **small))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=2, per_device_train_batch_size=4, report_to=[], save_strategy="no",
            use_cpu=True, dataloader_num_workers=1, disable_tqdm=True, logging_strategy="no", seed=4,
        )  # fmt: skip
        SayingTrainer(model=model, args=arguments, train_dataset=Rows()).train()
