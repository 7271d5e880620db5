"""A recorded run as the source of latencies, settings of the model, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from awrl_rollout import EpisodeRecord, EpisodeRequest, Outcome
from webrl.cli import main
from webrl.config import load_config
from webrl.errors import ConfigError
from webrl.records.episodes import EpisodeLog
from webrl.rollout.trajectory import Step, Trajectory
from webrl.simulate import SimulationModel, read_trace, resolve_assumptions, with_settings
from webrl.simulate.assumptions import described

STEP = Step(
    prompt_ids=[1],
    output_ids=[2],
    behavior_logprobs=[-0.1],
    versions=[0],
    images=[],
    reply="wait",
    action="wait",
    is_valid=True,
    events=[],
    generate_s=0.5,
    environment_s=1.5,
)


def record(group: int, member: int, start_s: float) -> EpisodeRecord:
    """An episode of two steps and 4.25 s, of which 0.05 s are in no part of it."""
    trajectory = Trajectory(
        task="t",
        seed=0,
        goal="g",
        outcome="success" if member else "failure",
        ending="task",
        reward=float(member),
        raw_reward=float(member),
        steps=[STEP, STEP],
        reset_s=0.2,
    )
    return EpisodeRecord(
        episode_id=f"{group}/{member}",
        group_id=str(group),
        member=member,
        outcome=Outcome.SUCCESS if member else Outcome.FAILURE,
        payload=trajectory,
        reward=float(member),
        worker="w",
        started_s=start_s,
        ended_s=start_s + 4.25,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 12 groups of two on two slots, 0.1 s between episodes, one group a step."""
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    for group in range(12):
        log.note([record(group, member, 4.35 * group) for member in (0, 1)])
    log.close()
    steps = [
        {
            "step": index + 1,
            "time/step_s": 4.35,
            "time/collect_s": 3.05,
            "time/train_s": 1.0,
            "time/publish_s": 0.2,
            "publish/window_s": 0.15,
            "batch/num_rows": 4.0,
            "rollout/episodes_total": 2.0 * (index + 1),
            "idle/rollout_share": 0.1 / 4.35,
            "staleness/off_policyness_mean_versions": 1.0,
        }
        for index in range(12)
    ]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (tmp_path / "metrics.jsonl").write_text(lines)
    return tmp_path


def test_a_trace_is_the_run_s_own_times(run: Path) -> None:
    trace = read_trace(run, SimulationModel())
    plan = trace.plans.plan(EpisodeRequest(episode_id="3/1", group_id="3", member=1))
    assert plan.is_success
    assert plan.reset_s + sum(plan.step_s) + sum(plan.tokens) == pytest.approx(4.25)
    assert trace.model.trainer.row_s == pytest.approx(0.25)
    assert trace.model.trainer.fixed_s == pytest.approx(0.1)
    assert trace.model.publish.window_s == pytest.approx(0.15)
    assert trace.model.session.dispatch_s == pytest.approx(0.1)
    assert trace.measured(4).episodes_per_h == pytest.approx(2 * 3600 / 4.35)


def test_simulating_a_trace_gives_the_run_back(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures.json"
    arguments = ["simulate", "--config", "laptop", "--trace", str(run), "--json", str(out)]
    settings = ["gconfig.n_samples=2", "rollout.consumer_batch_size=2", "env.slots_per_worker=2"]
    settings += ["rollout.max_concurrent_rollouts=2", "rollout.max_head_offpolicyness=1"]
    assert main([*arguments, *settings, "actor.ppo_n_minibatches=1"]) == 0
    results = json.loads(out.read_text())
    measured, predicted = results["measured"], results["asynchronous"]
    assert predicted["episodes_per_h"] == pytest.approx(measured["episodes_per_h"], rel=0.03)
    assert predicted["slots_idle"] == pytest.approx(measured["slots_idle"], abs=0.02)
    assert "predicted" in capsys.readouterr().out


def test_groups_that_are_there_only_because_they_were_short_are_left_out(tmp_path: Path) -> None:
    """The run ended at 100 s: of the groups that started at 90 s, only the one of 5 s is there."""
    spans = [(0.0, 40.0), (1.0, 5.0), (40.0, 20.0), (60.0, 40.0), (90.0, 5.0)]
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    for group, (start_s, span_s) in sorted(enumerate(spans), key=lambda item: sum(item[1])):
        one = msgspec.structs.replace(record(group, 0, start_s), ended_s=start_s + span_s)
        log.note([one])
    log.close()
    step = {"time/step_s": 1.0, "time/collect_s": 0.5, "time/train_s": 0.3, "time/publish_s": 0.1}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(step)}\n" * 3)
    plans = read_trace(tmp_path, SimulationModel()).plans

    def length_s(group: int) -> float:
        plan = plans.plan(EpisodeRequest(episode_id=f"{group}/0", group_id=str(group)))
        return plan.reset_s + sum(plan.step_s) + sum(plan.tokens)

    assert [length_s(group) for group in range(4)] == pytest.approx([40.0, 5.0, 20.0, 40.0])
    # Whatever the run does not tell repeats it from its first start on, not from its first end.
    assert [length_s(group) for group in (4, 5)] == pytest.approx([40.0, 5.0])


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be the folder of a run"):
        read_trace(tmp_path, SimulationModel())


def test_torn_lines_of_a_run_are_left_out(run: Path) -> None:
    whole = read_trace(run, SimulationModel())
    for name in ("episodes.jsonl", "metrics.jsonl"):
        lines = (run / name).read_text().splitlines(keepends=True)
        torn = [lines[0], lines[0][:9] + lines[1], *lines[1:], lines[0][:20]]
        (run / name).write_text("".join(torn))
    assert read_trace(run, SimulationModel()).steps == whole.steps


@pytest.mark.parametrize("line", ["{}", "[]", "null", '{"members": [{}], "group_id": "0"}'])
def test_a_run_of_another_release_is_refused(line: str, run: Path) -> None:
    (run / "episodes.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match="--trace must be a run that this release wrote"):
        read_trace(run, SimulationModel())


def test_settings_win_over_what_the_configuration_says() -> None:
    config = load_config("webgym_48_16").config
    model = resolve_assumptions(config, ["server.max_running=7"], None).model
    assert (model.server.max_running, model.episode.max_steps) == (7, 30)


@pytest.mark.parametrize("setting", ["episode.step=1", "nothing.step_s=1", "server.token_s=0", "x"])
def test_a_wrong_setting_is_refused_by_name(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"model.{setting.partition('=')[0]}"):
        with_settings(SimulationModel(), [setting])


def test_a_mistyped_setting_is_answered_with_the_right_one_or_with_all() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'model.server.is_sticky'\?"):
        with_settings(SimulationModel(), ["server.is_stick=true"])
    with pytest.raises(ConfigError, match="Its section has window_s, outside_s"):
        with_settings(SimulationModel(), ["publish.bandwidth=3"])


def test_every_assumption_is_listed_with_its_meaning() -> None:
    listed = list(described(SimulationModel()))
    assert len(listed) > 20
    assert all(meaning.endswith(".") for _, _, meaning in listed)


def test_the_command_prints_both_modes_and_draws_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "timeline.svg"
    assert (
        main(["simulate", "--config", "laptop", "total_steps=8", "--timeline", str(picture)]) == 0
    )
    out = capsys.readouterr().out
    assert "asynchronous / synchronous: " in out
    assert "model.episode.step_s" in out
    drawn = ElementTree.fromstring(picture.read_text())
    assert len(list(drawn.iter())) > 50


def test_a_synchronous_configuration_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["cluster.n_inference_servers=0", "rollout.max_head_offpolicyness=0"]
    overrides += ["allocation_mode=embedded[rollout]:d1|fsdp[actor]:d1"]
    assert main(["simulate", "--config", "laptop", *overrides]) == 2
    assert "n_inference_servers must be > 0 to simulate" in capsys.readouterr().err
