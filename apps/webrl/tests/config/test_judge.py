"""Section `judge`: an address, no secret, and a verdict that fits into the episode."""

from __future__ import annotations

import pytest
from webrl.config import JudgeSection, config_warnings, load_config, to_toml
from webrl.errors import ConfigError
from webrl.launch.component_configs import controller_config, server_spec, worker_spec
from webrl.rollout.worker import WorkerSpec

JUDGED = (
    "tasks=[{name='webgym:x.jsonl'}]",
    "judge.url=http://127.0.0.1:8000/v1",
    "judge.model=m",
    "judge.deadline_s=30",
)


def _spec(*overrides: str, is_synchronous: bool = False) -> WorkerSpec:
    """Return what a rollout worker with one slot is built from."""
    config = load_config("laptop", overrides).config
    return worker_spec(
        config,
        server_spec(config, "policy"),
        (),
        num_slots=1,
        temperature=1.0,
        is_synchronous=is_synchronous,
    )


def _judge(*overrides: str) -> JudgeSection | None:
    """Return the judge that a rollout worker is given."""
    return _spec(*overrides).judge


def test_a_worker_takes_more_episodes_than_slots_where_some_wait_for_a_verdict() -> None:
    assert _spec(*JUDGED, "judge.max_waiting=7").num_episodes == 1 + 7
    assert _spec(*JUDGED, "judge.max_waiting=7", is_synchronous=True).num_episodes == 1
    assert _spec().num_episodes == 1


def test_the_controller_leaves_an_episode_the_time_of_an_outage() -> None:
    limits = [
        controller_config(load_config("laptop", words).config).episode_deadline_s
        for words in (JUDGED, [*JUDGED, "judge.max_outage_s=100"], [])
    ]
    assert limits[0] is not None
    assert limits[1] is not None
    assert limits[2] is not None
    assert (limits[0] - limits[2], limits[1] - limits[2]) == (1800.0, 100.0)


def test_a_worker_gets_the_section_and_none_without_an_address() -> None:
    judge = _judge(*JUDGED, "judge.deadline_s=7", "judge.max_retries=1")
    assert judge is not None
    assert (judge.url, judge.model) == ("http://127.0.0.1:8000/v1", "m")
    assert (judge.api_key_env, judge.deadline_s, judge.max_retries) == (None, 7.0, 1)
    assert (judge.temperature, judge.token_limit_field) == (0.0, "max_tokens")
    assert _judge() is None


def test_what_a_reasoning_model_refuses_can_be_left_out() -> None:
    judge = _judge(
        *JUDGED, "judge.temperature=none", "judge.token_limit_field=max_completion_tokens"
    )
    assert judge is not None
    assert (judge.temperature, judge.token_limit_field) == (None, "max_completion_tokens")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("judge.model=none", "judge.model must be set together with judge.url, got None."),
        ("judge.url=none", "judge.url must be set for 'webgym:x.jsonl', got nothing."),
        ("judge.url=localhost:1", "judge.url must be an address with http:// or https://"),
        ("judge.url=https://api.example/v1?key=abc", "without user, password or query"),
        ("judge.url=https://me:abc@api.example", "without user, password or query"),
        ("judge.deadline_s=9999", "judge.deadline_s must be < env.episode_timeout_s (60), got"),
        ("judge.temperature=3", "judge.temperature must be between 0 and 2, got 3.0."),
        ("judge.max_retries=-1", "judge.max_retries must be >= 0, got -1."),
        ("judge.api_key_env=sk-abc", "must be the name of an environment variable, got '6 other"),
    ],
)
def test_what_can_not_work_is_one_message_without_a_secret(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", [*JUDGED, override])
    assert message in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_key_is_not_sent_in_the_clear_to_another_machine() -> None:
    overrides = [*JUDGED, "judge.api_key_env=JUDGE_KEY"]
    assert load_config("laptop", overrides).config.judge.api_key_env == "JUDGE_KEY"
    with pytest.raises(ConfigError, match="https:// where a key is sent to another machine"):
        load_config("laptop", [*overrides, "judge.url=http://api.example/v1"])


def test_a_dump_names_the_variable_and_never_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-0123456789")
    text = to_toml(load_config("laptop", [*JUDGED, "judge.api_key_env=JUDGE_KEY"]).config)
    assert 'api_key_env = "JUDGE_KEY"' in text
    assert "sk-0123456789" not in text


def test_a_judge_without_work_is_warned_about() -> None:
    config = load_config("laptop", JUDGED[1:]).config
    assert "judge has no effect: no task has a rubric (webgym:PATH)." in config_warnings(config)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("[{name='a', split='test'}]", "tasks must hold one to train on"),
        ("[{name='a', split='train'}]", "tasks must hold one for the test rollout"),
        ("[{name='a', split='all'}]", "split must be one of 'both', 'train', 'test'"),
    ],
)
def test_both_uses_have_tasks(tasks: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("laptop", [f"tasks={tasks}", "test_rollout.enabled=true"])
    assert message in str(caught.value)
