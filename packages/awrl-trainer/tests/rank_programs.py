"""Programs that run on every rank of a gloo world: `python rank_programs.py RANK WORLD DIR`.

Starting a process costs more than all programs together, so one pair of processes runs them all.
Each program returns something that `torch.save` takes; it lands in `DIR/NAME_WORLD_RANK.pt`.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from awrl_trainer import (
    ActorConfig,
    Batch,
    BatchError,
    FSDPActor,
    LossConfig,
    OptimizerConfig,
    SnapshotWriter,
    TrainRow,
    collate_text,
    latest_complete_checkpoint,
    open_store,
)
from awrl_trainer.folders import mark_complete
from awrl_trainer.optimizer import SteppedOptimizer
from awrl_trainer.policy_module import PolicyModule
from awrl_trainer.ranks import gathered
from awrl_trainer.sharding import data_parallel_mesh, parameters_on_meta, shard_module
from awrl_trainer.testing import TinyImagePolicy, TinyPolicy
from awrl_trainer.weights.group import destroy_group, form_group
from disk_trouble import DiskTrouble
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

PROGRAMS: dict[str, Callable[[Path], Any]] = {}


def program(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    PROGRAMS[function.__name__] = function
    return function


def make_rows(
    count: int, *, seed: int = 0, longest: int = 9, length: int | None = None, version: int = 0
) -> list[TrainRow]:
    rng = np.random.default_rng(seed)
    rows: list[TrainRow] = []
    chosen = length
    for index in range(count):
        length = chosen or int(rng.integers(3, longest + 1))
        mask = np.zeros(length, dtype=np.bool_)
        mask[int(rng.integers(1, length)) :] = True
        rows.append(
            TrainRow(
                input_ids=rng.integers(0, 30, length),
                loss_mask=mask,
                behavior_logprobs=rng.normal(-3.4, 0.1, length).astype(np.float32),
                advantages=float(rng.normal()),
                versions=np.full(length, version, dtype=np.int64),
                row_id=str(index),
            )
        )
    return rows


def image_row(row: TrainRow, image: int) -> TrainRow:
    """Put an image of two patches before the row's text."""
    ones = np.ones(2)
    return TrainRow(
        input_ids=np.concatenate([31 * ones, row.input_ids]).astype(np.int64),
        loss_mask=np.concatenate([0 * ones, row.loss_mask]).astype(np.bool_),
        behavior_logprobs=np.concatenate([0 * ones, row.behavior_logprobs]).astype(np.float32),
        advantages=row.advantages,
        image_keys=(str(image),),
        row_id=row.row_id,
    )


def collate_images(rows: Sequence[TrainRow]) -> Batch:
    batch = collate_text(rows)
    keys = [key for row in rows for key in row.image_keys]
    if not keys:
        return batch
    patches = torch.tensor([[float(key) + patch, *range(5)] for key in keys for patch in (0, 1)])
    return Batch(
        kwargs={**batch.kwargs, "pixel_values": patches / 8},
        token_positions=batch.token_positions,
    )


def sgd(**loss: Any) -> ActorConfig:
    return ActorConfig(
        optimizer=OptimizerConfig(kind="sgd", lr=0.2),
        loss=LossConfig(**loss),
        token_budget=30,
    )


def full_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in module.state_dict().items()
    }


@program
def three_sgd_steps(_: Path) -> Any:
    actor = FSDPActor(
        TinyPolicy(),
        sgd(entropy_coefficient=0.01, kl_coefficient=0.1, masked_token_ids=(30, 31)),
        collate=collate_text,
    )
    metrics = [actor.update(make_rows(7, seed=step)).metrics for step in range(3)]
    return metrics, full_weights(actor.policy)


@program
def mixed_images(_: Path) -> Any:
    """One rank has images where the other has none."""
    actor = FSDPActor(TinyImagePolicy(), sgd(), collate=collate_images)
    metrics: list[dict[str, float]] = []
    for step in range(3):
        rows = make_rows(5, seed=step)
        metrics.append(actor.update([image_row(rows[0], step), *rows[1:]]).metrics)
    return metrics, full_weights(actor.policy)


@program
def mini_batches_by_epochs(_: Path) -> Any:
    """Two steps an epoch, two epochs: proximal log-probs stay those of the start."""
    results: list[Any] = []
    for loss in (
        LossConfig(aggregation="sequence_mean", weight_cap=1.1),
        LossConfig(use_decoupled_loss=False, proximal_method="behavior", dual_clip=3.0),
        LossConfig(proximal_method="metrics", clip_low=0.01, clip_high=0.01),
    ):
        config = ActorConfig(
            optimizer=OptimizerConfig(kind="sgd", lr=2.0, max_grad_norm=None),
            loss=loss,
            token_budget=30,
            num_mini_batches=2,
            num_epochs=2,
        )
        actor = FSDPActor(TinyPolicy(), config, collate=collate_text)
        results.append(([actor.update(make_rows(7)).metrics], full_weights(actor.policy)))
    metrics = [metric for each, _ in results for metric in each]
    weights = {f"{i}/{name}": v for i, (_, ws) in enumerate(results) for name, v in ws.items()}
    return metrics, weights


@program
def few_rows(_: Path) -> Any:
    """Fewer rows than ranks."""
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    return [actor.update(make_rows(1, seed=3)).metrics], full_weights(actor.policy)


@program
def unequal_token_counts(_: Path) -> Any:
    """Five trainable tokens on one rank, one on the other."""
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    rows: list[TrainRow] = []
    for count, advantage in ((5, -0.01), (1, -0.07)):
        mask = np.zeros(7, dtype=np.bool_)
        mask[-count:] = True
        ids = np.arange(7)
        # On-policy: ratios are 1, so the loss of a token is minus its advantage.
        row = TrainRow(
            input_ids=ids, loss_mask=mask, behavior_logprobs=np.zeros(7, np.float32), advantages=0.0
        )
        logprobs = np.zeros(7, dtype=np.float32)
        logprobs[mask] = actor.logprobs([row])[0]
        rows.append(
            TrainRow(
                input_ids=ids, loss_mask=mask, behavior_logprobs=logprobs, advantages=advantage
            )
        )
    return [actor.update(rows).metrics], full_weights(actor.policy)


@program
def different_rows(_: Path) -> Any:
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    try:
        actor.update(make_rows(4, seed=dist.get_rank()))
    except BatchError as error:
        return str(error)
    return "no error"


def changed(rows: list[TrainRow], **changes: Any) -> list[TrainRow]:
    """Return the rows with the first one changed."""
    return [replace(rows[0], **changes), *rows[1:]]


WRONG_ROWS: dict[str, Callable[[list[TrainRow]], Any]] = {
    "none": lambda rows: [],
    "one too few": lambda rows: rows[1:],
    "another order": lambda rows: rows[::-1],
    "no row at all": lambda rows: [None, *rows[1:]],
    "other tokens": lambda rows: changed(rows, input_ids=rows[0].input_ids + 1),
    "another mask": lambda rows: changed(rows, loss_mask=~rows[0].loss_mask & (np.arange(9) > 0)),
    "other log-probs": lambda rows: changed(rows, behavior_logprobs=rows[0].behavior_logprobs - 1),
    "another advantage": lambda rows: changed(rows, advantages=7.0),
    "advantages by token": lambda rows: changed(rows, advantages=np.ones(9, np.float32)),
    "a version from the future": lambda rows: changed(rows, versions=np.full(9, 10**6)),
    "a negative version": lambda rows: changed(rows, versions=np.full(9, -1)),
    "an older version": lambda rows: changed(rows, versions=np.arange(9) * 0),
    "no version": lambda rows: changed(rows, versions=None),
    "an image": lambda rows: changed(rows, image_keys=("4",)),
    "a prefix": lambda rows: changed(rows, prefix_id="p"),
    "two beginnings of one prefix": lambda rows: [replace(row, prefix_id="p") for row in rows],
    "another name": lambda rows: changed(rows, row_id="x"),
    "another group": lambda rows: changed(rows, group_id="x"),
    "another size": lambda rows: changed(rows, num_model_tokens=17),
    "something for collate": lambda rows: changed(rows, extras={"a": "b"}),
}
"""What one rank is given in place of the rows of nine tokens that the other gets."""

COLLATE_ERRORS = [
    KeyError("image-7"),
    BatchError("no such image"),
    MemoryError("full"),
    OSError(28),
]


@program
def one_rank_fails(_: Path) -> Any:
    """Whatever one rank finds wrong is the same error on both, and the update after it is whole."""

    def collate(rows: Sequence[TrainRow]) -> Batch:
        if failing:
            num_left[0] -= 1
            if num_left[0] < 0:
                raise failing[0]
        return collate_text(rows)

    failing, num_left = list[Exception](), [0]
    config = ActorConfig(
        optimizer=OptimizerConfig(kind="sgd", lr=0.01),
        loss=LossConfig(proximal_method="metrics"),
        token_budget=9,
        num_mini_batches=2,
    )
    actor = FSDPActor(TinyPolicy(), config, collate=collate)
    results: list[Any] = []

    def attempt(name: str, method: Callable[..., object], rows: Any) -> None:
        before = actor.version, actor.optimizer.num_steps
        try:
            method(rows)
            error = "no error"
        except Exception as caught:  # noqa: BLE001 - what it is is what is tested
            error = f"{type(caught).__name__}: {caught}"
        rises = actor.version - before[0], actor.optimizer.num_steps - before[1]
        failing.clear()
        actor.update(make_rows(6, length=9, version=actor.version))
        results.append((name, error, rises))

    # Each finding is one rank's in an update, and the other's in a computation of log-probs.
    for number, (name, change) in enumerate(WRONG_ROWS.items()):
        for rank, method in enumerate((actor.update, actor.logprobs), start=number):
            rows = make_rows(6, length=9, version=actor.version)
            is_mine = dist.get_rank() == rank % dist.get_world_size()
            attempt(f"{method.__name__}: {name}", method, change(rows) if is_mine else rows)
    for rank in range(dist.get_world_size()):
        for index, error in enumerate([*COLLATE_ERRORS, *COLLATE_ERRORS[:2]]):
            failing[:] = [error] if dist.get_rank() == rank else []
            num_left[0] = index
            rows = make_rows(6, length=9, version=actor.version)
            attempt(f"collate: {error!r} at call {index}", actor.update, rows)
    return results, full_weights(actor.policy)


def saved_in_background(actor: FSDPActor, root: Path) -> Path:
    actor.start_save(root, keep=2)
    report = actor.finish_save()
    assert report is not None
    assert report.path is not None
    return report.path


@program
def disk_of_one_rank_fails(directory: Path) -> Any:
    """At every file operation of a save and of a load, on either rank."""
    trouble, results = DiskTrouble(), list[Any]()
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    root = directory / f"trouble_{dist.get_world_size()}"
    actor.save(root)
    for what in ("save", "load"):
        for rank in range(dist.get_world_size()):
            for after in itertools.count():
                actor.update(make_rows(2, version=actor.version))
                path = latest_complete_checkpoint(root)
                assert path is not None
                dist.barrier()
                if dist.get_rank() == rank:
                    trouble.begin(root, after)
                try:
                    _ = saved_in_background(actor, root) if what == "save" else actor.load(path)
                    error = ""
                except Exception as caught:  # noqa: BLE001 - what it is is what is tested
                    error = f"{type(caught).__name__}: {caught}"
                trouble.end()
                has_struck = any(gathered(trouble.has_struck, actor.mesh.get_group()))
                trouble.has_struck = False
                kept = latest_complete_checkpoint(root)
                results.append((f"{what} {rank} {after}", error, has_struck, kept, actor.version))
                if not has_struck:
                    break
    return results, full_weights(actor.policy)


@program
def collate_fails_on_one_rank(_: Path) -> Any:
    def collate(rows: Sequence[TrainRow]) -> Batch:
        if dist.get_rank() == 1 and not is_whole[0]:
            raise KeyError("image-7")
        return collate_text(rows)

    is_whole = [False]
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate)
    try:
        actor.update(make_rows(4))
        message = "no error"
    except (BatchError, KeyError) as error:
        message = f"{type(error).__name__}: {error}"
    is_whole[0] = True
    actor.update(make_rows(4))
    return message, actor.version, full_weights(actor.policy)


@program
def global_norm_and_skip(_: Path) -> Any:
    """Gradients [3, 0] and [0, 4]; then NaN on the last rank only."""
    rank, world = dist.get_rank(), dist.get_world_size()
    module = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(module.weight)
    shard_module(module, data_parallel_mesh("cpu"), compute_dtype=torch.float32)
    optimizer = SteppedOptimizer(module, OptimizerConfig(kind="sgd", lr=1.0))

    def step(gradient: list[float]) -> Any:
        whole = torch.tensor([gradient])
        weight: Any = module.weight
        across = distribute_tensor(whole, weight.device_mesh, [Shard(1)])
        weight.grad = across.redistribute(placements=weight.placements)
        result = optimizer.step()
        return result, weight.full_tensor().detach().clone()

    clipped = step([3.0, 0.0, 0.0, 4.0])
    skipped = step([0.0, 0.0, 0.0, float("nan")])
    return clipped, skipped, optimizer.num_steps, (rank, world)


@program
def bfloat16_compute(_: Path) -> Any:
    """100 small steps survive in the float32 master weights."""
    module = PolicyModule(TinyPolicy())
    shard_module(module, data_parallel_mesh("cpu"), compute_dtype=torch.bfloat16)
    optimizer = SteppedOptimizer(
        module,
        OptimizerConfig(kind="sgd", lr=1e-3, max_grad_norm=None),
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.0)
    for _step in range(100):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return {str(p.dtype) for p in module.parameters()}, full_weights(module)


@program
def tied_weights(_: Path) -> Any:
    """One parameter for embedding and head, before, during and after."""
    actor = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    names = [spec.name for spec in actor.sender.plan.specs]
    for step in range(3):
        actor.update(make_rows(4, seed=step))
    weights = full_weights(actor.policy)
    return names, weights["model.embed.weight"], weights["model.lm_head.weight"]


@program
def meta_init(_: Path) -> Any:
    """Built without memory, sharded, filled; trains like the one built with memory."""
    whole = TinyPolicy().state_dict()
    with parameters_on_meta():
        model = TinyPolicy(seed=9)
    num_real = sum(not parameter.is_meta for parameter in model.parameters())
    actor = FSDPActor(model, sgd(), collate=collate_text, read_weight=lambda name: whole[name])
    eager = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    for step in range(3):
        for each in (actor, eager):
            each.update(make_rows(4, seed=step))
    return num_real, full_weights(actor.policy), full_weights(eager.policy)


@contextmanager
def group_with_servers() -> Generator[None]:
    """What publishing leaves on rank 0 alone: a group more than the other ranks have."""
    group = None
    if dist.get_rank() == 0:
        store = open_store("127.0.0.1", rank=0, world_size=1, timeout_s=20)
        group = form_group(
            store, rank=0, world_size=1, group_name="servers", backend="gloo", timeout_s=20
        )
    yield
    if group is not None:
        destroy_group(group)


@program
def saved_while_joined_to_servers(directory: Path) -> Any:
    """A snapshot alone, then a checkpoint with one; also by an actor made after rank 0 joined."""
    root = directory / f"joined_{dist.get_world_size()}"
    early = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
    paths: list[list[str]] = []
    with group_with_servers():
        late = FSDPActor(TinyPolicy(), sgd(), collate=collate_text)
        for name, actor in (("early", early), ("late", late)):
            folder = root / name
            writer = SnapshotWriter(folder / "policies", keep=2)
            for state in (None, folder / "state"):
                actor.start_save(state, snapshots=writer)
                actor.update(make_rows(4))
                actor.finish_save()
            dist.barrier()
            paths.append(sorted(str(each.relative_to(folder)) for each in folder.glob("*/*")))
    return paths


@program
def resume(directory: Path) -> Any:
    """The next step after a resume is the same bit for bit."""
    root = directory / f"checkpoints_{dist.get_world_size()}"
    config = ActorConfig(
        optimizer=OptimizerConfig(
            lr=1e-2, schedule="cosine", num_warmup_steps=2, num_total_steps=9, weight_decay=0.1
        ),
        token_budget=30,
        num_mini_batches=2,
        num_epochs=2,
    )
    actor = FSDPActor(TinyPolicy(), config, collate=collate_text)
    for step in range(2):
        actor.update(make_rows(6, seed=step))
    actor.start_save(root, extra={"cursor": 11})
    # Its collectives and those of the write run at the same time.
    actor.logprobs(make_rows(6))
    report = actor.finish_save()
    assert report is not None
    assert report.path is not None
    path = report.path
    other = FSDPActor(TinyPolicy(seed=5), config, collate=collate_text)
    extra = other.load(path)
    version = other.version
    metrics = [dict(each.update(make_rows(6, seed=9)).metrics) for each in (actor, other)]
    weights = [full_weights(each.policy) for each in (actor, other)]
    return version, extra, metrics, weights


@program
def offloaded_state(directory: Path) -> Any:
    """The same updates, a skipped one among them; then each goes on from the other's checkpoint."""
    root = directory / f"offloaded_{dist.get_world_size()}"
    kept = ActorConfig(
        optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1, schedule="linear", num_total_steps=20),
        token_budget=30,
        num_mini_batches=2,
        frozen_modules=("blocks.0",),
    )
    optimizer = replace(kept.optimizer, is_state_offloaded=True)
    configs = (kept, replace(kept, optimizer=optimizer))
    actors = [FSDPActor(TinyPolicy(), config, collate=collate_text) for config in configs]
    metrics: list[list[dict[str, float]]] = [[], []]
    paths: list[Path] = []
    for index, actor in enumerate(actors):
        for step in range(3):
            metrics[index].append(actor.update(make_rows(6, seed=step, version=step)).metrics)
        if actor.rank == 0:  # the other rank's gradients are whole: all skip
            weight: Any = actor.policy.get_parameter("model.lm_head.weight")
            weight.grad = torch.full_like(weight, float("nan"))
        for parameter in actor.policy.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        assert actor.optimizer.step().is_skipped
        paths.append(actor.save(root / str(index)))
    for index, actor in enumerate(actors):
        actor.load(paths[1 - index])
        metrics[index].append(actor.update(make_rows(6, seed=7, version=3)).metrics)
    fingerprints = [actor.sender.fingerprint() for actor in actors]
    return metrics, fingerprints, [full_weights(actor.policy) for actor in actors]


@program
def checkpoints_that_fail_on_one_rank(directory: Path) -> Any:
    """Each rank is last in turn to meet what fails; the next save and load are whole."""
    root = directory / f"failing_{dist.get_world_size()}"
    actor = FSDPActor(
        TinyPolicy(), ActorConfig(optimizer=OptimizerConfig(lr=0.01)), collate=collate_text
    )
    path = actor.save(root / "good")
    if actor.rank == 0:
        (root / "file").write_text("no folder")
        (root / "taken").mkdir()
        (root / "taken" / "version_0").write_text("no folder")
        damaged = shutil.copytree(path, root / "damaged")
        (damaged / "random_1.pt").write_text("no random state")
        mark_complete(damaged)
    dist.barrier()
    errors: list[tuple[str, str]] = []

    def attempt(what: str, act: Callable[[], object]) -> None:
        try:
            act()
            errors.append((what, "no error"))
        except Exception as error:  # noqa: BLE001 - what it is is what is tested
            errors.append((what, f"{type(error).__name__}: {error}"))

    for rank in range(dist.get_world_size()):
        is_mine = dist.get_rank() == rank
        for limit in (0, 5_000):
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit if is_mine else soft, hard))
            attempt(f"disk of {rank} full at {limit}", lambda: actor.save(root / "good"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        missing = root / "none" if is_mine else path
        attempt(f"no folder on {rank}", lambda missing=missing: actor.load(missing))
    attempt("root is a file", lambda: actor.save(root / "file"))
    attempt("rename", lambda: actor.save(root / "taken"))
    attempt("random state of 1", lambda: actor.load(root / "damaged"))
    extra = actor.load(actor.save(root / "good", extra={"cursor": 1}))
    return errors, extra, sorted(entry.name for entry in (root / "good").iterdir())


@program
def zz_resume_on_other_world(directory: Path) -> Any:
    """A checkpoint of one world size loads on another."""
    root = directory / "checkpoints_2"
    path = latest_complete_checkpoint(root)
    config = ActorConfig(optimizer=OptimizerConfig(lr=1e-2), token_budget=30)
    actor = FSDPActor(TinyPolicy(seed=5), config, collate=collate_text)
    if path is not None:
        actor.load(path)
    return actor.version, full_weights(actor.policy)


@program
def published(directory: Path) -> Any:
    """Two ranks gather; rank 0 broadcasts to a receiver; bytes are those of the trainer."""
    actor = FSDPActor(
        TinyPolicy(),
        ActorConfig(optimizer=OptimizerConfig(lr=1e-2), publish_bucket_bytes=1500),
        collate=collate_text,
    )
    actor.update(make_rows(4))
    weights = {
        name.removeprefix("model."): value.to(torch.bfloat16)
        for name, value in full_weights(actor.policy).items()
    }
    flats = [actor.sender.gather(bucket) for bucket in actor.sender.plan.buckets]
    path = actor.write_snapshot(SnapshotWriter(directory / f"hf_{dist.get_world_size()}"))
    return actor.sender.plan, flats, weights, path, actor.sender.checksums(["embed.weight"])


def main() -> None:
    rank, world, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store_{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=200),
    )
    for name, function in PROGRAMS.items():
        result = function(directory)
        torch.save(result, directory / f"{name}_{world}_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
