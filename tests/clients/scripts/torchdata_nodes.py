"""torchdata.nodes: a chain of nodes as the iterator of a dataset, split over workers."""

from collections.abc import Iterator

import torchdata.nodes as nodes
from reporting import DataLoader, delivered, in_the_loop, ways_of_workers
from torch.utils.data import IterableDataset, get_worker_info


def doubled(number: int) -> int:
    """A step."""
    return 2 * number


class Chain(IterableDataset):
    """This worker's share of forty numbers, doubled."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        numbers = nodes.IterableWrapper(range(worker, 40, workers))
        return iter(nodes.Loader(nodes.ParallelMapper(numbers, doubled, num_workers=2, method="thread")))


def main() -> None:
    """Epochs with each kind of workers."""
    for words, epochs in ways_of_workers():
        loader = DataLoader(Chain(), batch_size=4, **words)
        in_the_loop(loader)
        for _ in range(epochs):
            for numbers in loader:
                delivered(numbers)


if __name__ == "__main__":
    main()
