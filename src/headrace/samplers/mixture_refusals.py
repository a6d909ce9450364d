"""Why a mixture does not take weights: the errors that say it."""

from __future__ import annotations

from headrace.core.errors import UsageError


def no_end(place: str, found: str, expected: str, fix: str) -> UsageError:
    """Returns the error for weights with which nobody knows where an epoch ends."""
    what = "the end of an epoch must be known beforehand"
    return UsageError.about(what, place=place, found=found, expected=expected, fix=fix)


def planned_ahead(planner: str) -> UsageError:
    """Returns the error for weights that come too late. planner: the sampler that has planned with the old ones."""
    return UsageError.about(
        "documents are planned ahead, with the weights that were known then",
        place="MixtureSampler.set_weights",
        found=f"a sampler that is the order= of a {planner}",
        expected="weights that can be asked for at each window",
        fix="give the mixture an object with weights_at(count), a function or a file, and change what it says",
    )


def split_elsewhere(framework: str) -> UsageError:
    """Returns the error for a change within an epoch whose samples a framework splits over the ranks."""
    return UsageError.about(
        "the ranks would change their weights at different places",
        place="MixtureSampler.set_weights",
        found=f"an epoch whose samples {framework} splits over the ranks",
        expected="a call between two epochs, or ranks that the sampler splits the samples over itself",
        fix=f"keep the loader from {framework}, or change the weights when the epoch is over",
    )
