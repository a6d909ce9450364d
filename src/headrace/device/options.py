"""The arguments of a loader that say what becomes of its batches on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from headrace.core.errors import UsageError, wrong_argument

AskedDevice = str | torch.device
"""`"cuda"`, `"cuda:1"`, `"auto"` or what else `torch.device` takes."""

PLACE = "headrace.DataLoader"

AHEAD = 1
"""How many batches are on their way while the loop has one, unless the user says otherwise."""


@dataclass(frozen=True)
class OnDevice:
    """Where batches go, and what becomes of them there. The arguments are checked."""

    device: AskedDevice
    ahead: int = AHEAD
    transform: Callable[[Any], Any] | None = None
    fixed_addresses: bool = False


def checked_device(
    device: AskedDevice | None,
    ahead: int | None,
    transform: Callable[[Any], Any] | None,
    *,
    fixed_addresses: bool,
) -> OnDevice | None:
    """Returns what the arguments ask for; None: batches stay on this machine. Raises `UsageError`."""
    if device is None:
        given = {"ahead": ahead is not None, "device_transform": transform is not None}
        given["fixed_addresses"] = bool(fixed_addresses)
        for name, is_given in given.items():
            if is_given:
                raise UsageError.about(
                    f"{name}= says what becomes of batches on a device, and no device is given",
                    place=PLACE,
                    found="device=None",
                    expected="device='cuda', 'auto' or another accelerator",
                    cure=f"add device=, or leave {name}= out",
                )
        return None

    if not isinstance(device, (str, torch.device)):
        raise wrong_argument(
            "device", device, "a name such as 'cuda', 'cuda:1' or 'auto', or a torch.device", place=PLACE
        )
    if device != "auto":
        try:
            device = torch.device(device)
        except RuntimeError as error:
            found = str(error).splitlines()[0]
            raise UsageError.about(
                "no such device",
                place=f"{PLACE}(device={device!r})",
                found=found,
                expected="a name that torch.device takes, such as 'cuda' or 'cuda:1', or 'auto'",
                cure="correct the name; 'auto' takes the accelerator that there is",
            ) from error
        if device.type == "meta":
            raise wrong_argument("device", "meta", "a device that holds numbers", place=PLACE)

    if ahead is None:
        ahead = AHEAD
    if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 0:
        expected = "how many batches are on their way while the loop has one: 0, 1, ..."
        raise wrong_argument("ahead", ahead, expected, place=PLACE)
    if transform is not None and not callable(transform):
        raise wrong_argument("device_transform", transform, "a function of a batch, or a module", place=PLACE)
    if not isinstance(fixed_addresses, bool):
        raise wrong_argument("fixed_addresses", fixed_addresses, "True or False", place=PLACE)
    return OnDevice(device, ahead, transform, fixed_addresses)
