"""Why a mixture does not take weights: the errors that say it."""

from __future__ import annotations

from headrace.core.errors import StateError, UsageError


def no_end_if_asked(when_exhausted: str) -> UsageError:
    """Returns the error for weights that are asked for on the way: nobody knows where an epoch ends."""
    return UsageError.about(
        "the end of an epoch must be known beforehand",
        place="MixtureSampler(when_exhausted=)",
        found=f"when_exhausted={when_exhausted!r}, and weights that are asked for on the way",
        expected="weights, or a mapping of counts to weights",
        fix="leave when_exhausted out and give num_samples=, or give such weights",
    )


def no_end_if_set(when_exhausted: str) -> UsageError:
    """Returns the error for weights that are set on the way: nobody knows where an epoch ends."""
    return UsageError.about(
        "the end of an epoch must be known beforehand",
        place="MixtureSampler.set_weights",
        found=f"when_exhausted={when_exhausted!r}",
        expected="when_exhausted='repeat'",
        fix="give the weights to the sampler as a mapping of counts to weights",
    )


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


def other_weights(until: int, given: str, *, is_planned: bool) -> StateError:
    """Returns the error for a state of other weights.

    until: the position before which the weights differ. given: the arguments that decide on them. is_planned: whether
    a sampler plans ahead by them.
    """
    fix = f"give the {given} that the run began with; for others from here on, add them to a schedule, "
    fix += "weights={0: [...], <position>: [...]}"
    if not is_planned:
        fix += ", or call set_weights behind load_state_dict"
    return StateError.about(
        "this state was made with other weights",
        place="MixtureSampler.load_state_dict",
        found=f"other {given} before position {until:,}, counted over all epochs",
        expected=f"the {given} that held up to there; a row that begins behind may be another one",
        fix=fix,
    )
