"""LitData: its streaming dataset in the loader, or with the argument `own` in LitData's own loader, also resumed."""

import sys
import tempfile

from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from reporting import DataLoader, numbers_streamed

OWN = "own" in sys.argv[1:]


def write(folder: str) -> None:
    """Writes forty numbers, five to a chunk."""
    writer = BinaryWriter(folder, chunk_size=5)
    for number in range(40):
        writer[number] = {"number": number}
    writer.done()
    writer.merge()


def main() -> None:
    """Epochs with each kind of workers; LitData's own loader stops in a further one and is resumed."""
    kind = StreamingDataLoader if OWN else DataLoader
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        numbers_streamed(
            lambda **words: kind(StreamingDataset(folder, shuffle=True), batch_size=4, **words), resumes=OWN
        )


if __name__ == "__main__":
    main()
