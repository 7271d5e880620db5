"""Who goes into quarantine after a broadcast: the lost, and those that hold other bytes.

Invariant: one receiver's fault never puts another in quarantine while the other still answers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from awrl_trainer.boundary import Outcome
from awrl_trainer.errors import PublishError, PublishTimeoutError
from awrl_trainer.weights.membership import Membership
from awrl_trainer.weights.protocols import VerifiableReceiver, WeightSource
from awrl_trainer.weights.report import PublisherConfig

__all__ = ["find_lost", "quarantine_corrupt"]


async def find_lost(
    members: Membership,
    outcomes: Mapping[str, Outcome[None]],
    source_error: Exception | None,
    *,
    deadline_s: float,
) -> None:
    """Quarantine those who caused a failed broadcast; those who still answer stay.

    In a broken collective the innocent fail too. Whoever never answered is stuck in it, whoever
    can't leave the group is dead, and whoever fails though the source succeeded is broken.

    Args:
        members: The group, left by everybody afterwards.
        outcomes: How each receiver's part ended.
        source_error: How the source failed, None if it didn't.
        deadline_s: Limit that the source had, for the error.

    Raises:
        PublishTimeoutError: The source itself never answered.
        PublishError: The source failed though every receiver is well.
    """
    if isinstance(source_error, TimeoutError) and not isinstance(source_error, PublishError):
        raise PublishTimeoutError(
            f"a bucket must leave the trainer within {deadline_s:g} s, got no answer from its ranks."
            " Restart the trainer.",
            phase="broadcast",
        ) from source_error
    if source_error is not None and not any(o.error for o in outcomes.values()):
        raise PublishError(
            f"the trainer must broadcast every bucket, got {source_error!r}.", phase="broadcast"
        ) from source_error
    if source_error is not None:
        outcomes = {n: o for n, o in outcomes.items() if isinstance(o.error, TimeoutError)}
    members.quarantine_failed(outcomes, "broadcast")
    members.quarantine_failed(await members.close(), "broadcast")


async def quarantine_corrupt(
    members: Membership, source: WeightSource, version: int, config: PublisherConfig
) -> None:
    """Compare checksums of a sample of weights; a receiver that differs is quarantined.

    Args:
        members: Those that hold the version, and the plan.
        source: Says what was sent.
        version: Seeds the sample, so that every publish looks at other weights.
        config: How many, and the limit.
    """
    assert members.plan is not None
    verifiable = {
        name: receiver
        for name, receiver in members.active().items()
        if isinstance(receiver, VerifiableReceiver)
    }
    specs = members.plan.specs
    count = min(config.num_verified_tensors, len(specs))
    if not verifiable or not count:
        return
    names = random.Random(version).sample([spec.name for spec in specs], count)
    sent = await source.weight_checksums(names)
    outcomes = await members.each(
        {name: receiver.weight_checksums(names) for name, receiver in verifiable.items()},
        config.broadcast_deadline_s,
    )
    members.quarantine_failed(outcomes, "verify")
    for name, outcome in outcomes.items():
        held = sent if outcome.value is None else outcome.value
        wrong = [weight for weight in names if held.get(weight) != sent[weight]]
        if wrong:
            members.quarantine(name, f"verify: other bytes of {wrong}")
