"""The whole asynchronous loop in one file: a tiny policy learns to click on real pages.

    python examples/spine.py [NUMBER OF UPDATES]

      .---> slots: Chromium, one episode after the other, no barrier ---.
      |        |                                                        |
    action   prompt, screenshot                              groups of finished siblings
      |        v                                                        v
     inference server (own process, SGLang's HTTP)         a batch, at most eta versions old
               ^                                                        |
               '=== weights, broadcast in place === trainer <-----------'

Pages, protocol, broadcast and loss are real, and small. `webrl train` runs the same parts as Ray
actors on many machines; here only Chromium and the server are processes of their own. `train`, at
the end, is the loop; what it uses stands above it.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
import tempfile
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import awrl_rollout
import awrl_trainer
import msgspec
import numpy as np
import torch
from awrl_pixelstore import PixelStoreCore
from awrl_ppo_loss import group_normalized_advantages
from awrl_rollout import EpisodeRecord, EpisodeRequest, InterruptibleGenerator, SGLangClient
from awrl_staleness import StalenessConfig, StalenessManager
from awrl_trainer import FSDPActor, OptimizerConfig, TrainRow
from webrl.actions import parse_action, show_action
from webrl.browser import BrowserConfig, BrowserPool, BrowserSession
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy, load_policy
from webrl.tasks import Viewport, load_task
from webrl.training.publishing import SGLangReceiver
from webrl.training.rows import Collator

SLOTS = 8  # episodes that run at once
GROUP = 8  # siblings on one page; an advantage says how much better than them
BATCH = 64  # B: episodes of one update
ETA = 2  # weight versions that a trained token may lie behind

TASK = msgspec.structs.replace(  # one click into a text field whose place the seed decides
    load_task("miniwob/focus-text"), max_steps=1, viewport=Viewport(160, 224), reset="keep_page"
)


@dataclass(frozen=True)
class Step:
    """One decision: what the policy saw, and what it said under which weights."""

    prompt_ids: list[int]
    image_key: str
    answer: awrl_rollout.GenerateResult


@dataclass
class Episodes:
    """What every slot runs; a slot keeps its browser session for its whole life."""

    browsers: BrowserPool
    generator: InterruptibleGenerator
    processor: PolicyProcessor
    pixels: PixelStoreCore
    sessions: dict[int, BrowserSession] = field(default_factory=dict[int, BrowserSession])
    rewards: list[float] = field(default_factory=list[float])  # since the last update

    async def __call__(
        self, request: EpisodeRequest, context: awrl_rollout.EpisodeContext
    ) -> awrl_rollout.EpisodeResult:
        """Look, ask, act, until the page is done."""
        session = self.sessions.get(context.slot) or await self.browsers.session()
        self.sessions[context.slot] = session
        observation = await session.reset(TASK, seed=int(request.group_id))
        steps, actions, reward = list[Step](), list[str](), 0.0
        while observation is not None:  # None once the page is done or the steps are used up
            # From here on the screenshot is a key. Siblings who see one page get one key.
            key = self.pixels.put(observation.screenshot, trajectory_id=request.episode_id)
            prompt_ids = self.processor.build_prompt(observation.goal, actions, num_images=1)
            # A publish may cut the answer; it goes on where it was cut. Each token comes with its
            # log-prob, and with the version of the weights that sampled it.
            answer = await self.generator.generate(
                awrl_rollout.GenerateRequest(
                    input_ids=prompt_ids,
                    images=["data:image/png;base64," + b64encode(observation.screenshot).decode()],
                    max_new_tokens=16,
                    masked_token_ids=self.processor.masked_token_ids,
                    episode_id=request.episode_id,
                )
            )
            steps.append(Step(prompt_ids, key, answer))
            action = parse_action(self.processor.decode(answer.output_ids), "coordinates")
            actions.append(show_action(action))
            outcome = await session.step(action)
            observation, reward = outcome.observation, outcome.reward or 0.0
        self.rewards.append(reward)
        versions = [version for step in steps for version in step.answer.versions]
        return awrl_rollout.EpisodeResult(
            is_success=reward > 0,
            reward=reward,
            payload=steps,
            oldest_version=min(versions),
            newest_version=max(versions),
        )


def has_no_contrast(group: Sequence[EpisodeRecord]) -> str | None:
    """Refuse a group whose members all did equally well: every advantage would be 0."""
    return "equal rewards" if len({record.reward for record in group}) == 1 else None


def rows_of(batch: awrl_rollout.RolloutBatch) -> list[TrainRow]:
    """Return one row per step. Members that expired count in the advantages, and have no rows."""
    records = [record for group in batch for record in group.records]
    rewards, ids = [record.reward or 0.0 for record in records], [r.group_id for r in records]
    advantages = group_normalized_advantages(rewards, ids)
    trainable = {record.episode_id for group in batch for record in group.trainable}
    return [
        row_of(step, f"{record.episode_id}#{number}", advantage)
        for record, advantage in zip(records, advantages.tolist(), strict=True)
        if record.episode_id in trainable
        for number, step in enumerate(cast("list[Step]", record.payload))
    ]


def row_of(step: Step, row_id: str, advantage: float) -> TrainRow:
    """Return prompt and answer; only the answer's tokens are trained on."""
    answer, blank = step.answer, [0] * len(step.prompt_ids)
    return TrainRow(
        row_id=row_id,
        input_ids=np.array([*step.prompt_ids, *answer.output_ids]),
        loss_mask=np.arange(len(blank) + len(answer.output_ids)) >= len(blank),
        behavior_logprobs=np.array([*blank, *answer.logprobs], dtype=np.float32),
        versions=np.array([*blank, *answer.versions]),
        advantages=advantage,
        image_keys=(step.image_key,),
        prefix_id=f"{step.image_key} {step.prompt_ids}",  # what siblings share is computed once
    )


def make_actor(policy: Path, processor: PolicyProcessor, images: Mapping[str, bytes]) -> FSDPActor:
    """Return the policy that is trained, as one rank in this process."""
    # Per token L = -w * min(r * A, clip(r) * A): w = proximal / behavior makes up for staleness and
    # is never clipped; r = current / proximal, what this very update has changed, alone is.
    loss = awrl_trainer.LossConfig(
        use_decoupled_loss=True,
        proximal_method="recompute",
        entropy_coefficient=0.04,
        masked_token_ids=processor.masked_token_ids,
    )
    config = awrl_trainer.ActorConfig(
        optimizer=OptimizerConfig(lr=5e-4), loss=loss, num_mini_batches=4, publish_dtype="float32"
    )
    # Rows hold keys; they become pixels when the model's input for a micro-batch is built.
    collate = Collator(processor, lambda keys: [images[key] for key in keys])
    return FSDPActor(load_policy(policy), config, collate=collate)


@asynccontextmanager
async def inference_server(policy: Path) -> AsyncGenerator[SGLangClient]:
    """Run the embedded server, which speaks SGLang's HTTP, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "webrl.embedded", "--end-with-stdin", "--log-level", "warning"]
    server = await asyncio.create_subprocess_exec(
        *command, "--model-path", str(policy), "--port", port, stdin=asyncio.subprocess.PIPE
    )
    try:
        async with SGLangClient(f"http://127.0.0.1:{port}") as client:
            await client.wait_until_healthy(deadline_s=60.0)
            yield client
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


async def train(policy: Path, num_updates: int) -> None:
    """Collect, update, publish. The slots wait for none of it: they run on beside every line."""
    processor = PolicyProcessor.from_pretrained(policy)
    pixels, seeds, images = PixelStoreCore(), itertools.count(), dict[str, bytes]()
    actor = make_actor(policy, processor, images)
    # The one authority on pacing: at most (eta + 1) * B episodes run or wait for their update.
    pace = StalenessConfig(max_concurrent=SLOTS, consumer_batch_size=BATCH, max_off_policyness=ETA)

    def next_group() -> list[EpisodeRequest]:  # an endless stream; siblings share a page's seed
        seed = str(next(seeds))
        return [
            EpisodeRequest(episode_id=f"{seed}/{i}", group_id=seed, member=i) for i in range(GROUP)
        ]

    def forget(records: Sequence[EpisodeRecord], reason: str) -> None:
        pixels.release(*(record.episode_id for record in records))

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        client = await enter(inference_server(policy))
        browsers = await enter(BrowserPool(BrowserConfig(num_slots=SLOTS)))
        episodes = Episodes(browsers, InterruptibleGenerator(client), processor, pixels)
        slots = await enter(awrl_rollout.WorkflowExecutor(episodes, num_slots=SLOTS))
        rollout = await enter(
            awrl_rollout.RolloutController(
                [awrl_rollout.LocalWorker(slots)],
                StalenessManager(pace),
                source=next_group,
                accept_group=has_no_contrast,
                on_discarded=forget,
            )
        )
        source, receiver = awrl_trainer.LocalSource(actor.sender), SGLangReceiver("server", client)
        publisher = awrl_trainer.WeightPublisher(source, [receiver], awrl_trainer.PublisherConfig())
        for _ in range(num_updates):
            batch = await rollout.prepare_batch(BATCH)
            rows = rows_of(batch)
            keys = list({key for row in rows for key in row.image_keys})
            images |= zip(keys, map(bytes, pixels.get_many(keys)), strict=True)
            updated = await asyncio.to_thread(actor.update, rows)  # the slots go on meanwhile
            report = await publisher.publish(updated.version)  # pause, broadcast, go on
            rollout.advance(updated.version)  # the batch's budget is free for new episodes
            images.clear()
            forget([record for group in batch for record in group.records], "trained on")
            trained = [record for group in batch for record in group.trainable]
            ages = [batch.version - (record.oldest_version or 0) for record in trained]
            num_spanning = sum(record.oldest_version != record.newest_version for record in trained)
            print(
                f"version {updated.version:2}  success {np.mean(episodes.rewards):4.0%} of"
                f" {len(episodes.rewards):3}  staleness {min(ages)} to {max(ages)} of at most {ETA}"
                f" ({num_spanning} episodes span versions)  pause {1e3 * report.window_s:3.0f} ms"
                f"  server's weights {(await client.weights.checksums()).total[:8]}",
            )
            episodes.rewards.clear()
        await publisher.aclose()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print("a policy is made, and shown some drawn pages ...")
        init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=30)))
        asyncio.run(train(Path(folder), num_updates=int(sys.argv[1]) if sys.argv[1:] else 30))
