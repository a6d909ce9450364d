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

A_NAME = "a name that torch.device takes, such as 'cuda' or 'cuda:1', or 'auto'"
"""What `device=` may be."""

AHEAD = 1
"""How many batches are on their way while the loop has one, unless the user says otherwise."""


@dataclass(frozen=True)
class OnDevice:
    """Where batches go, and what becomes of them there. The arguments are checked."""

    device: torch.device | None
    """None: the accelerator that there is."""
    ahead: int = AHEAD
    transform: Callable[[Any], Any] | None = None
    fixed_addresses: bool = False

    @property
    def name(self) -> str:
        """The device as the user names it."""
        return "auto" if self.device is None else str(self.device)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that the user gave, by their names."""
        arguments: dict[str, Any] = {"device": self.name}
        if self.ahead != AHEAD:
            arguments["ahead"] = self.ahead
        if self.transform is not None:
            arguments["device_transform"] = self.transform
        if self.fixed_addresses:
            arguments["fixed_addresses"] = True
        return arguments


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
                    fix=f"add device=, or leave {name}= out",
                )
        return None

    named = _checked_name(device)
    if ahead is None:
        ahead = AHEAD
    if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 0:
        expected = "how many batches are on their way while the loop has one: 0, 1, ..."
        raise wrong_argument("ahead", ahead, expected, place=PLACE, fix=f"leave it out for {AHEAD}")
    if transform is not None and not callable(transform):
        raise wrong_argument(
            "device_transform",
            transform,
            "a function of a batch, or a module",
            place=PLACE,
            fix="pass the function itself, or leave device_transform= out",
        )
    if not isinstance(fixed_addresses, bool):
        raise wrong_argument(
            "fixed_addresses", fixed_addresses, "True or False", place=PLACE, fix="write True, or leave it out"
        )
    return OnDevice(named, ahead, transform, fixed_addresses)


def _checked_name(device: object) -> torch.device | None:
    if isinstance(device, str) and device == "auto":
        return None
    if not isinstance(device, (str, torch.device)):
        fix = "correct it, or leave device= out"
        if isinstance(device, int) and not isinstance(device, bool):
            fix = f"write 'cuda:{device}'"
        raise wrong_argument("device", device, f"{A_NAME}, or a torch.device", place=PLACE, fix=fix)

    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise no_such_device(device, A_NAME) from error
    if found.type == "meta":
        raise no_such_device(device, "a device that holds numbers")
    return found


def no_such_device(device: AskedDevice, expected: str) -> UsageError:
    """Returns the error for a device that cannot be had; the caller raises it. expected: in words, what can be."""
    return UsageError.about(
        "no such device",
        place=f"{PLACE}(device=)",
        found=repr(str(device)),
        expected=expected,
        fix="correct the name, or write 'auto', which takes the accelerator that there is",
    )
