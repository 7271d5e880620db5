"""What a run says at its end."""

from __future__ import annotations

from awrl_trainer import latest_complete_checkpoint
from rich.console import Console

from webrl.records.run_folder import RunFolders
from webrl.training.step_loop import Progress


def describe_end(progress: Progress, folders: RunFolders, console: Console) -> None:
    """Print where the results are."""
    console.print(
        f"{progress.num_steps} updates in {progress.train_s:.0f} s; trained on "
        f"{progress.num_trained_episodes} of {progress.num_finished_episodes} episodes "
        f"({progress.trained_share:.0%}); weight version {progress.version}"
    )
    console.print(f"  metrics       {folders.root / 'metrics.jsonl'}")
    console.print(f"  evaluations   {folders.evaluations}")
    console.print(f"  trajectories  {folders.samples}")
    if (newest := latest_complete_checkpoint(folders.policies)) is not None:
        console.print(f"  policy        {newest}")
