"""Sampled trajectories on disk: whole, with pictures beside them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from awrl_rollout import EpisodeRecord, Outcome
from webrl.records.episodes import EpisodeLog, image_suffix, write_sample
from webrl.rollout.trajectory import (
    ImageRef,
    Step,
    Trajectory,
    decode_trajectory,
    encode_trajectory,
)
from webrl.rollout.worker import EpochClock

STEP = Step(
    prompt_ids=[1, 2],
    output_ids=[3],
    behavior_logprobs=[-0.25],
    versions=[7],
    images=[ImageRef(key="k", height=224, width=160)],
    reply="wait()",
    action="wait()",
    is_valid=True,
    events=["dialog: hello"],
    generate_s=0.1,
    environment_s=0.2,
)
TRAJECTORY = Trajectory(
    task="t",
    seed=3,
    goal="g",
    outcome="success",
    ending="task",
    reward=1.0,
    raw_reward=0.9,
    steps=[STEP, STEP],
    reset_s=0.3,
)


def test_a_trajectory_survives_its_encoding() -> None:
    assert decode_trajectory(encode_trajectory(TRAJECTORY)) == TRAJECTORY
    assert (TRAJECTORY.oldest_version, TRAJECTORY.newest_version) == (7, 7)
    assert TRAJECTORY.image_keys == ["k"]


def test_a_trajectory_travels_without_pixels() -> None:
    assert len(encode_trajectory(TRAJECTORY)) < 1024


def test_a_sample_is_one_folder_with_its_pictures(tmp_path: Path) -> None:
    png = b"\x89PNG rest"
    folder = write_sample(tmp_path, "5/2", TRAJECTORY, {"k": png}, {"advantage": -0.5})
    record = json.loads((folder / "trajectory.json").read_text())
    assert folder.name == "5-2"
    assert (folder / record["files"]["k"]).read_bytes() == png
    assert record["advantage"] == -0.5
    assert record["steps"][0]["versions"] == [7]
    assert not list(tmp_path.glob("*.partial"))


def test_a_sample_holds_the_text_of_its_tokens(tmp_path: Path) -> None:
    def decode(ids: Sequence[int]) -> str:
        return "-".join(map(str, ids))

    folder = write_sample(tmp_path, "5/2", TRAJECTORY, {}, {}, decode)
    record = json.loads((folder / "trajectory.json").read_text())
    assert [(step["prompt"], step["output"]) for step in record["steps"]] == [("1-2", "3")] * 2


def test_an_episode_says_when_and_in_which_slot_it_ran(tmp_path: Path) -> None:
    clock = EpochClock()
    before_s, started_s = time.time(), clock.time()
    record = EpisodeRecord(
        episode_id="0/0",
        group_id="0",
        outcome=Outcome.SUCCESS,
        payload=TRAJECTORY,
        worker="w",
        slot=3,
        started_s=started_s,
        ended_s=clock.time(),
    )
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    log.note([record])
    log.close()
    [member] = json.loads((tmp_path / "episodes.jsonl").read_text())["members"]
    assert member["slot"] == 3
    # The clock of metrics.jsonl, but for what it was set by meanwhile.
    assert abs(member["started_s"] - before_s) < 60


def test_writing_again_replaces_the_folder(tmp_path: Path) -> None:
    write_sample(tmp_path, "5/2", TRAJECTORY, {"k": b"\x89PNG"}, {})
    folder = write_sample(tmp_path, "5/2", TRAJECTORY, {}, {})
    assert [file.name for file in folder.iterdir()] == ["trajectory.json"]


def test_suffixes_follow_the_bytes() -> None:
    assert image_suffix(b"\x89PNG....") == ".png"
    assert image_suffix(b"\xff\xd8\xff\xe0..") == ".jpg"
