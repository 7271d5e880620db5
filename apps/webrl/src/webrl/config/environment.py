"""Sections `tasks`, `env` and `policy`: what is done, in which browsers, by which model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from webrl.config.rules import Rules

__all__ = ["EnvConfig", "PolicyConfig", "PolicyInitSection", "TaskEntry"]

LONGEST_EPISODE = 30
"""Most actions of a task that sets its own limit; a file's task with a higher one should be given
`max_steps`, so that the pixel store is sized for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskEntry:
    """One task, or one file of tasks, to train and evaluate on."""

    name: str
    """A name that `webrl tasks` lists, such as `miniwob/click-test-2`; or a file of tasks:
    `tasks:PATH` for those of one's own, `webgym:PATH` for WebGym's format, which needs a judge."""
    split: Literal["both", "train", "test"] = "both"
    """What the tasks are for: training, the test rollout and `webrl eval`, or both."""
    max_steps: int | None = None
    """Actions of one episode before it ends as a failure; each task's own limit when unset, which
    for `webgym:PATH` goes by difficulty: 10, 20, 30 in training, 30, 50, 70 in tests."""
    test_max_steps: int | None = None
    """The same for the test rollout; `max_steps`, else each task's own limit, when unset."""
    weight: float = 1.0
    """How often the task is drawn, relative to the others."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.not_blank("name", self.name, "List the names with: webrl tasks.")
        rules.one_of("split", self.split, ("both", "train", "test"))
        rules.at_least("max_steps", self.max_steps, 1, "An episode needs one action.")
        rules.at_least("test_max_steps", self.test_max_steps, 1, "Leave it out for max_steps.")
        rules.above("weight", self.weight, 0, "Remove the task to never draw it.")
        rules.finish()

    @property
    def is_judged(self) -> bool:
        """Return whether a judge decides about the episodes."""
        return self.name.startswith("webgym:")

    @property
    def most_steps(self) -> int:
        """Return an upper bound of a training episode's actions."""
        return self.max_steps or LONGEST_EPISODE


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvConfig:
    """Rollout workers and their browsers."""

    num_workers: int = 1
    """Rollout worker processes, each with a browser of its own."""
    slots_per_worker: int = 16
    """Episodes that one worker can run at one moment."""
    viewport_width: int | None = None
    """Width of page and screenshot in CSS pixels; each task's own when unset."""
    viewport_height: int | None = None
    """Height of page and screenshot in CSS pixels; each task's own when unset."""
    action_mode: Literal["coordinates", "set_of_marks"] = "coordinates"
    """How the policy says where: by a point of a grid, or by the number that the screenshot shows
    beside an element. Decides screenshots, prompt and grammar."""
    screenshot_format: Literal["png", "jpeg"] = "jpeg"
    """What the policy sees and the pixel store holds: `png` for small flat pages."""
    jpeg_quality: int = 80
    """Quality of `jpeg` screenshots, 1 to 100."""
    reset: Literal["keep_page", "reload", "new_context"] | None = None
    """How an episode starts clean; each task's own way when unset."""
    history_window: int = 1
    """Screenshots in one prompt: the newest and the ones before it."""
    action_timeout_s: float = 10.0
    """Deadline of one browser action, in seconds."""
    episode_timeout_s: float = 120.0
    """Deadline of one episode, in seconds; past it the episode is a fault, not a failure."""
    page_latency_s: float = 0.0
    """Mean of an artificial wait before each action, in seconds: a slow site on a fast machine."""
    page_latency_cv: float = 1.0
    """Coefficient of variation of that wait, lognormal and fixed by task, seed and step."""
    num_train_seeds: int = 100_000
    """Training seeds of each task; an epoch visits every task with every one of them."""
    recycle_after_episodes: int = 2000
    """Episodes after which a browser process is replaced."""
    recycle_after_s: float = 3600.0
    """Age in seconds at which a browser process is replaced."""
    recycle_above_bytes: int = 4 << 30
    """Memory of a browser with all its processes at which it is replaced."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("num_workers", self.num_workers, 1, "Someone must run the episodes.")
        rules.at_least("slots_per_worker", self.slots_per_worker, 1, "Use 1 for one at a time.")
        for key, size in (("width", self.viewport_width), ("height", self.viewport_height)):
            if size is not None:
                rules.within(f"viewport_{key}", size, 16, 8192, "Typical values: 1280 and 720.")
        rules.require(
            (self.viewport_width is None) == (self.viewport_height is None),
            "viewport_width",
            "set together with viewport_height, or neither",
            self.viewport_width,
            "Give both.",
        )
        rules.one_of("action_mode", self.action_mode, ("coordinates", "set_of_marks"))
        rules.one_of("screenshot_format", self.screenshot_format, ("png", "jpeg"))
        rules.within("jpeg_quality", self.jpeg_quality, 1, 100, "Typical value: 80.")
        if self.reset is not None:
            rules.one_of("reset", self.reset, ("keep_page", "reload", "new_context"))
        rules.at_least("history_window", self.history_window, 1, "The policy needs a screenshot.")
        rules.above("action_timeout_s", self.action_timeout_s, 0, "Typical value: 10.")
        rules.above("episode_timeout_s", self.episode_timeout_s, 0, "Typical value: 120.")
        rules.at_least("page_latency_s", self.page_latency_s, 0, "Use 0 for none.")
        rules.at_least("page_latency_cv", self.page_latency_cv, 0, "Use 0 for a fixed wait.")
        rules.at_least("num_train_seeds", self.num_train_seeds, 1, "Typical: 100000.")
        rules.at_least("recycle_after_episodes", self.recycle_after_episodes, 1, "Typical: 2000.")
        rules.above("recycle_after_s", self.recycle_after_s, 0, "Typical value: 3600.")
        rules.at_least(
            "recycle_above_bytes", self.recycle_above_bytes, 1 << 28, "Typical: 4294967296."
        )
        rules.finish()

    @property
    def num_slots(self) -> int:
        """Episodes that all workers together can run at one moment."""
        return self.num_workers * self.slots_per_worker


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyInitSection:
    """How a tiny policy is made when `policy.path` is unset."""

    num_updates: int = 200
    """Optimizer steps of the warm-up on synthetic pages; 0 leaves random weights."""
    batch_size: int = 48
    """Synthetic pages of one warm-up step."""
    lr: float = 1e-3
    """Peak learning rate of the warm-up."""
    seed: int | None = None
    """Seed of weights and pages; the run's seed when unset."""

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a value is out of its range.
        """
        rules = Rules()
        rules.at_least("num_updates", self.num_updates, 0, "Use 0 for random weights.")
        rules.at_least("batch_size", self.batch_size, 1, "Typical value: 48.")
        rules.above("lr", self.lr, 0, "Typical value: 1e-3.")
        rules.at_least("seed", self.seed, 0, "Leave it out to use the run's seed.")
        rules.finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """Where the policy comes from."""

    path: str | None = None
    """Local folder of a Hugging Face checkpoint; a tiny one is made from `init` when unset."""
    init: PolicyInitSection = field(default_factory=PolicyInitSection)
    """How the tiny policy is made; used only without `path`."""

    def __post_init__(self) -> None:
        """Check the path's form.

        Raises:
            ConfigError: the path is blank.
        """
        rules = Rules()
        if self.path is not None:
            rules.not_blank("path", self.path, "Leave it out to make a tiny policy.")
        rules.finish()
