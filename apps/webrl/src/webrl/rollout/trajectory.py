"""The record of one episode: what was seen (by key), said, done and earned.

Invariants:
    * a trajectory holds no pixels, only keys of the PixelStore and the images' sizes;
    * `output_ids`, `behavior_logprobs` and `versions` of a step have equal lengths;
    * only `success` and `failure` carry a reward; a fault is an executor's business.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from webrl.judge import Verdict
from webrl.tasks import Task


class ImageRef(msgspec.Struct, frozen=True, kw_only=True):
    """A screenshot by reference."""

    key: str
    """Key in the PixelStore."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One decision of the policy: a prompt, the sampled action, what it did."""

    prompt_ids: list[int]
    """Prompt tokens with one placeholder per image."""
    output_ids: list[int]
    """Sampled tokens, the end-of-turn token included when it was sampled."""
    behavior_logprobs: list[float]
    """Log-probability of each sampled token as the server answered it, in nats."""
    versions: list[int]
    """Weight version that produced each sampled token."""
    images: list[ImageRef]
    """Screenshots of the prompt, in order."""
    reply: str
    """Decoded text of the answer, for people; no later prompt and no judge sees it."""
    action: str
    """The action in it, canonical and cut to 200 characters; `no action` when there is none."""
    thought: str = ""
    """Why, in the policy's words; empty where the agent reads none."""
    memory: str | None = None
    """What the policy noted with it; None where it noted nothing."""
    is_truncated: bool = False
    """Whether the answer has as many tokens as it may have, and no end."""
    is_in_form: bool = True
    """Whether the reply was written as the agent asks."""
    is_trainable: bool = True
    """Whether its tokens are trained on."""
    is_valid: bool
    """False when there is no action in the reply; the page was left alone."""
    events: list[str]
    """What happened besides (why an action did nothing, dialogs, popups, refused downloads)."""
    generate_s: float
    """Seconds from request to answer, interruptions included."""
    environment_s: float
    """Seconds of the browser for this step."""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One finished episode of one task."""

    task: str
    """Task name, such as `miniwob/click-test-2`."""
    seed: int
    """Seed of the page."""
    goal: str
    """Instruction as shown to the policy."""
    outcome: Literal["success", "failure"]
    """Whether the reward reached the task's threshold."""
    ending: str
    """What ended it, by its name in `webrl.endings`: a result of the policy's."""
    reward: float
    """1.0 on success, else 0.0, less the penalties of `[agent]`; above 0 exactly on success."""
    raw_reward: float
    """What the page reported."""
    steps: list[Step]
    """In order; never empty."""
    reset_s: float
    """Seconds of the page reset."""
    verdict: Verdict | None = None
    """What the judge found, for tasks with a rubric."""

    @property
    def oldest_version(self) -> int:
        """Return the oldest version among the trainable (sampled) tokens."""
        return min(version for step in self.steps for version in step.versions)

    @property
    def newest_version(self) -> int:
        """Return the newest version among the trainable (sampled) tokens."""
        return max(version for step in self.steps for version in step.versions)

    @property
    def image_keys(self) -> list[str]:
        """Return the keys of every screenshot, in order of first use."""
        return list(dict.fromkeys(image.key for step in self.steps for image in step.images))


class EpisodeTask(msgspec.Struct, frozen=True, kw_only=True):
    """What an episode request asks for: the payload of an `EpisodeRequest`.

    It brings its task along, so that no worker has to hold a data set of hundreds of thousands.
    """

    definition: Task
    """The task, with the limits of this kind of episode."""
    seed: int
    """Seed of the page; siblings of a group share it."""
    greedy: bool = False
    """Argmax instead of sampling (evaluation)."""

    @property
    def task(self) -> str:
        """Return the task's full name."""
        return self.definition.full_name


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """Return the trajectory as MessagePack bytes."""
    return msgspec.msgpack.encode(trajectory)


def decode_trajectory(data: bytes) -> Trajectory:
    """Return the trajectory that `encode_trajectory` wrote.

    Raises:
        msgspec.ValidationError: The bytes are not a trajectory.
    """
    return msgspec.msgpack.decode(data, type=Trajectory)


def trajectory_dict(trajectory: Trajectory) -> dict[str, Any]:
    """Return the trajectory as plain JSON types."""
    return msgspec.to_builtins(trajectory)
