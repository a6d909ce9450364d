"""MosaicML Streaming: its dataset in the loader, or with the argument `own` in its own loader, also resumed."""

import sys
import tempfile

from reporting import DataLoader, numbers_streamed
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

OWN = "own" in sys.argv[1:]


def dataset_in(folder: str) -> StreamingDataset:
    """Forty numbers in random order."""
    return StreamingDataset(local=folder, shuffle=True, shuffle_seed=7, batch_size=4)


def main() -> None:
    """Epochs with each kind of workers; the own loader stops in a further one and is resumed."""
    kind = StreamingDataLoader if OWN else DataLoader
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(out=folder, columns={"number": "int"}, size_limit=256) as writer:
            for number in range(40):
                writer.write({"number": number})

        numbers_streamed(lambda **words: kind(dataset_in(folder), batch_size=4, **words), resumes=OWN)


if __name__ == "__main__":
    main()
