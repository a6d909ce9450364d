"""What a user says of workers on other machines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cluster.address import WORDS, host_and_port
from headrace.core.errors import wrong_argument

PLACE = "headrace.Ray"


@dataclass(frozen=True)
class Ray:
    """For `DataLoader(backend=)`: workers run on the machines of a Ray cluster.

    Each remote worker is a Ray actor. Ray chooses its machine and starts another one where a machine is lost.

    Attributes:
        address: of the cluster, as for `ray.init`; None: that of `RAY_ADDRESS`, or of the cluster that this machine
            belongs to, or else a new one on this machine alone.
        local: how many of the loader's `num_workers` run on this machine without Ray. They come first.
        num_cpus: what a worker takes of a machine's CPUs, in Ray's account.
        resources: what else it takes, by Ray's names, such as `{"cpu_node": 0.01}`.
        start_timeout: seconds that a worker may wait for a machine that has room. Raise it where an autoscaler starts
            machines.

    Raises:
        UsageError: anything else.

    Examples:
        >>> backend = headrace.Ray("auto", local=2, num_cpus=0.5)
        >>> loader = headrace.DataLoader(list(range(6)), num_workers=8, backend=backend)
    """

    address: str | None = None
    local: int = 0
    num_cpus: float = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    start_timeout: float = 30

    def __post_init__(self) -> None:
        if self.address is not None and not _is_address(self.address):
            expected = '"host:port", "ray://host:port", "auto", "local" or None'
            raise wrong_argument("address", self.address, expected, place=PLACE)
        if isinstance(self.local, bool) or not isinstance(self.local, int) or self.local < 0:
            raise wrong_argument("local", self.local, "a number of workers, at least 0", place=PLACE)
        if not _is_number(self.num_cpus) or self.num_cpus < 0:
            raise wrong_argument("num_cpus", self.num_cpus, "a number, at least 0", place=PLACE)
        if not _are_resources(self.resources):
            raise wrong_argument("resources", self.resources, "numbers by Ray's names of resources", place=PLACE)
        if own := {"CPU", "GPU", "memory", "object_store_memory"} & self.resources.keys():
            expected = f"resources of your own; {min(own)} is one of Ray's, and num_cpus= says what a worker takes"
            raise wrong_argument("resources", self.resources, expected, place=PLACE)
        if not _is_number(self.start_timeout) or self.start_timeout <= 0:
            raise wrong_argument("start_timeout", self.start_timeout, "a positive number of seconds", place=PLACE)

    @property
    def needs(self) -> dict[str, float]:
        """What a worker takes of a machine, as Ray names it in what it reports."""
        return {"CPU": self.num_cpus, **self.resources}


def _is_address(value: object) -> bool:
    return isinstance(value, str) and (value in WORDS or host_and_port(value) is not None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_resources(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(isinstance(name, str) and _is_number(amount) and amount > 0 for name, amount in value.items())
