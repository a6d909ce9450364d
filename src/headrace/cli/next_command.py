"""What to run next, after what was found out about a script's loaders."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from headrace.core.text.urls import is_url, shown_url
from headrace.observe.diagnosis.finding import Diagnosis, Finding

OPTION_NAMES = {
    "num_workers": "--num-workers",
    "prefetch_factor": "--prefetch-factor",
    "persistent_workers": "--persistent-workers",
    "pin_memory": "--pin-memory",
    "multiprocessing_context": "--start-method",
    "on_error": "--on-error",
    "quarantine": "--quarantine",
    "sample_timeout": "--sample-timeout",
}
"""The options of `headrace run` that stand for arguments of a loader."""


def next_command(
    diagnoses: Sequence[Diagnosis],
    script: str,
    arguments: Sequence[str],
    *,
    as_module: bool,
    refused: Collection[str] = (),
) -> str:
    """Returns the command that follows from the first finding of the first diagnosis that has one.

    Where the finding is a change of arguments, the command tries it. Where the machine was busy, the script is measured
    again. All else begins with what could be had at best.

    refused: arguments of which it is known that their options change nothing, since the script sets them itself.
    """
    if as_module:
        words = ["-m", script]
    else:
        words = [script]

    target = shlex.join([*words, *map(_shown, arguments)])
    first = None
    for diagnosis in diagnoses:
        if diagnosis.findings:
            first = diagnosis.findings[0]
            break

    # On a busy machine nothing that was measured holds, and so no advice is worth a try.
    if first is not None and first.stage == "machine":
        return f"headrace run {target}"

    options = _options(first)
    if options and first is not None and not first.change.keys() & set(refused):
        return f"headrace run {options} {target}"
    return f"headrace doctor --ideal {target}"


def _shown(argument: str) -> str:
    """Returns an argument of a script without the secrets of a URL, which may stand behind `--option=`, too."""
    if is_url(argument):
        return shown_url(argument)

    name, sign, value = argument.partition("=")
    if sign and is_url(value):
        return f"{name}={shown_url(value)}"
    return argument


def _options(finding: Finding | None) -> str:
    """Returns the change of a finding as options; "" if it is not one of arguments that have options."""
    # A change of which only a part has options, such as seed=, would be tried by half.
    if finding is None or not finding.change or not finding.change.keys() <= OPTION_NAMES.keys():
        return ""
    return " ".join(_option(name, value) for name, value in finding.change.items())


def _option(name: str, value: object) -> str:
    option = OPTION_NAMES[name]
    if value is True:
        return option
    return f"{option} {shlex.quote(str(value))}"
