"""Clip fraction of the decoupled and of the coupled update, on the same rollouts, by staleness.

    python benchmarks/ppo_loss/clip_fraction.py > clip_fraction.json   # about 5 CPU minutes
    python benchmarks/ppo_loss/clip_fraction.py seed=1 > clip_fraction.json

Runs the parts of `webrl train --config laptop` in turns: its warmed-up Qwen3-VL, its task's pages in
headless Chromium, its inference server, its actor update. At each version a batch of episodes is
collected, and the policy is trained on it, so that version `u` has a batch of its own. At each
measured version `u`, for each staleness `k`, the actor is put to version `u`, is updated on the batch
of version `u - k`, once with the decoupled and once with the coupled loss, and is put back: both see
the same policy, optimizer state, episodes and mini-batches, and neither bends what comes later.

The clip fraction is the share of trainable tokens (verb, x, y, end) where the bound acts, over the
mini-batches of an update, as the update's own metric `clip/fraction`; means over measured versions.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import dataclasses
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from awrl_pixelstore import get_or_create_pixel_store
from awrl_rollout import EpisodeRecord, EpisodeRequest, SGLangClient
from awrl_trainer import ActorConfig, FSDPActor, SnapshotWriter, TrainRow
from webrl.cluster.ray_cluster import ray_cluster
from webrl.config import WebRLConfig, load_config
from webrl.launch import component_configs, run_tasks
from webrl.policy import PolicyProcessor, load_policy
from webrl.rollout.batch_source import GroupFilter
from webrl.rollout.trajectory import Trajectory
from webrl.rollout.worker import RolloutWorker
from webrl.run.first_policy import ensure_policy
from webrl.servers.server_actor import InferenceServer
from webrl.training.rows import (
    AdvantageConfig,
    Collator,
    GroupMember,
    build_rows,
    group_advantages,
)

LOSSES = {
    "decoupled": {"use_decoupled_loss": True, "proximal_method": "recompute"},
    "coupled": {"use_decoupled_loss": False, "proximal_method": "behavior"},
}
"""Name of an update, and what makes its loss."""

KEPT = {
    "clip": "clip/fraction",
    "clip_low": "clip/low_fraction",
    "clip_high": "clip/high_fraction",
    "weight_max": "staleness_ratio/max",
    "ess": "staleness_ratio/ess_fraction",
}
"""Metrics of an update that are reported, by short name."""

POLL_S = 0.05
"""Between two looks at finished episodes."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is measured, and where."""

    config: WebRLConfig
    staleness: tuple[int, ...]
    num_measured: int
    folder: Path

    @property
    def num_versions(self) -> int:
        """Every staleness is measured at the same versions: those that have a batch so old."""
        return max(self.staleness) + self.num_measured


class Rollouts:
    """Collects batches of whole groups that carry a gradient, with the run's own worker."""

    def __init__(self, config: WebRLConfig, worker: RolloutWorker) -> None:
        self._worker = worker
        self._size = config.rollout.consumer_batch_size
        self._stream = component_configs.task_stream(config)
        self._filter = GroupFilter(self._stream)

    async def collect(self) -> tuple[list[GroupMember], float]:
        """Return the members of a full batch, and the success share of all episodes that ran."""
        before = (self._filter.num_success, self._filter.num_episodes)
        members: list[GroupMember] = []
        while len(members) < self._size:
            groups = [self._stream.next_group() for _ in range(4)]
            records = await self._run([request for group in groups for request in group])
            for group in groups:
                complete = [records[r.episode_id] for r in group if r.episode_id in records]
                if self._filter.accept(complete) is None:
                    members += [member_of(record) for record in complete]
        successes, episodes = self._filter.num_success, self._filter.num_episodes
        return members[: self._size], (successes - before[0]) / (episodes - before[1])

    async def _run(self, requests: Sequence[EpisodeRequest]) -> dict[str, EpisodeRecord]:
        """Run episodes; return the records of those that ended with a reward."""
        await self._worker.submit(requests)
        records: dict[str, EpisodeRecord] = {}
        seen: list[str] = []
        while len(records) < len(requests):
            fresh = await self._worker.take_finished(seen)
            seen = [record.episode_id for record in fresh]
            records.update((record.episode_id, record) for record in fresh)
            await asyncio.sleep(POLL_S)
        await self._worker.take_finished(seen)
        return {key: record for key, record in records.items() if record.has_ended_well}


def member_of(record: EpisodeRecord) -> GroupMember:
    assert isinstance(record.payload, Trajectory)
    return GroupMember(
        episode_id=record.episode_id, group_id=record.group_id, trajectory=record.payload
    )


class Probes:
    """The chain of versions, and an actor for each loss that starts from any of them."""

    def __init__(self, job: Job, policy: Path, collate: Collator) -> None:
        self._folder = job.folder / "state"
        self._publisher = SnapshotWriter(job.folder / "snapshots", base=policy, keep=2)
        processor = PolicyProcessor.from_pretrained(policy)
        spec = component_configs.engine_spec(
            job.config, component_configs.server_spec(job.config, str(policy)), processor
        )

        def actor(config: ActorConfig) -> FSDPActor:
            return FSDPActor(load_policy(policy, torch.float32), config, collate=collate)

        self._chain = actor(spec.actor)
        self._probes = {
            name: actor(
                dataclasses.replace(
                    spec.actor,
                    loss=dataclasses.replace(spec.actor.loss, **changes),
                )
            )
            for name, changes in LOSSES.items()
        }

    def measure(self, rows: Sequence[TrainRow]) -> dict[str, dict[str, float]]:
        """Update each probe from the chain's version on rows; return the metrics by loss."""
        path = self._chain.save(self._folder, keep=1)
        found: dict[str, dict[str, float]] = {}
        for name, probe in self._probes.items():
            probe.load(path)
            metrics = probe.update(rows).metrics
            found[name] = {short: metrics[key] for short, key in KEPT.items()}
        return found

    def advance(self, rows: Sequence[TrainRow]) -> Path:
        """Train the chain on rows and write the next version for the server."""
        self._chain.update(rows)
        path = self._chain.write_snapshot(self._publisher)
        assert path is not None
        return path


async def measure(job: Job) -> dict[str, object]:
    """Start server, browsers and actors, go through the versions, and sum up."""
    config = job.config
    policy = ensure_policy(config, job.folder)
    processor = PolicyProcessor.from_pretrained(policy)
    pixels = await asyncio.to_thread(get_or_create_pixel_store, "clip-fraction", num_shards=1)
    reader = copy.copy(pixels)  # a client serves one thread at a time
    probes = Probes(job, policy, Collator(processor, lambda keys: list(reader.get_many(keys))))
    servers = component_configs.server_spec(config, str(policy))
    server = InferenceServer(servers, 0, "rollout-0", str(job.folder))
    spec = component_configs.worker_spec(
        config,
        servers,
        run_tasks.train_tasks(config),
        num_slots=config.env.slots_per_worker,
        temperature=config.gconfig.temperature,
        is_synchronous=False,
    )
    worker = RolloutWorker("clip-fraction", spec, pixels, None)
    async with AsyncExitStack() as stack:
        stack.callback(server.stop)
        url = await server.start()
        client = await stack.enter_async_context(SGLangClient(url))
        await worker.start([url])
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(worker.serve())
        stack.push_async_callback(worker.stop)
        return await go_through(job, Rollouts(config, worker), probes, processor, client)


async def go_through(
    job: Job,
    rollouts: Rollouts,
    probes: Probes,
    processor: PolicyProcessor,
    client: SGLangClient,
) -> dict[str, object]:
    """Collect, measure and train, version after version."""
    found: dict[int, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    batches: list[list[TrainRow]] = []
    success: list[float] = []
    for version in range(job.num_versions):
        started = time.monotonic()
        members, share = await rollouts.collect()
        advantages = group_advantages(members, AdvantageConfig())
        rows = build_rows(members, advantages, processor)
        batches.append([row for own in rows.values() for row in own])
        success.append(share)
        for k in job.staleness if version >= max(job.staleness) else ():
            metrics = await asyncio.to_thread(probes.measure, batches[version - k])
            for name, values in metrics.items():
                found[k][name].append(values)
        path = await asyncio.to_thread(probes.advance, batches[-1])
        await client.weights.load(str(path), weight_version=version + 1)
        note = f"version {version}: success {share:.2f}, {time.monotonic() - started:.1f} s"
        print(note, file=sys.stderr, flush=True)
    return {"success": success, "staleness": {k: summarise(v) for k, v in found.items()}}


def summarise(found: dict[str, list[dict[str, float]]]) -> dict[str, object]:
    """Return means over versions of each loss, and what the two say together."""
    means = {
        name: {key: fmean(entry[key] for entry in entries) for key in KEPT}
        for name, entries in found.items()
    }
    clips = {name: [entry["clip"] for entry in entries] for name, entries in found.items()}
    pairs = zip(clips["decoupled"], clips["coupled"], strict=True)
    return {
        **means,
        "clip_range": {name: [min(values), max(values)] for name, values in clips.items()},
        "decoupled_over_coupled": means["decoupled"]["clip"] / max(means["coupled"]["clip"], 1e-9),
        "versions_at_most_half": sum(mine <= theirs / 2 for mine, theirs in pairs),
        "versions": len(clips["coupled"]),
    }


def main(arguments: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--versions", type=int, default=12, help="measured versions")
    parser.add_argument("--config", default="laptop")
    parser.add_argument("overrides", nargs="*", help="key=value of the configuration")
    options = parser.parse_args(arguments)
    config = load_config(options.config, options.overrides).config
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, ray_cluster(namespace="clip-fraction"):
        job = Job(
            config=config,
            staleness=tuple(options.staleness),
            num_measured=options.versions,
            folder=Path(folder),
        )
        return asyncio.run(measure(job))


if __name__ == "__main__":
    print(json.dumps(main(), indent=2))
