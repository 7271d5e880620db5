"""No command line and no configuration file ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webrl.cli import main
from webrl.config import all_keys, load_config, packaged_configs
from webrl.errors import ConfigError

KEYS = st.sampled_from(all_keys())
TEXTS = st.text(max_size=8)
WRONG = (
    *("", "none", "true", "'", '"""', "[", "[1, [2]]", "{a = 1}", "[{name = 1}]", "{}", "a=b"),
    *("1e999", "-0", "0x10", "9" * 40, "07:32:00", "1979-05-27", "[1, 'a']", "\x00", "\ud800"),
    *("sglang:d1", "sglang[rollout]:d0+fsdp:d1", "vllm:t2|fsdp:p2", "+", "d" * 99, "runs/{x}"),
)
VALUES = st.one_of(
    TEXTS,
    st.integers().map(str),
    st.floats().map(repr),
    st.sampled_from(WRONG),
)
SETTINGS = st.builds(lambda key, value: f"{key}={value}", KEYS | TEXTS, VALUES)
WORDS = st.one_of(
    SETTINGS,
    TEXTS.filter(lambda text: not text.startswith("-")),
    st.sampled_from(
        ["--config", "--json", "--seeds", "--resume", "--nothing", "--", "-x", "--sweep"]
    ),
    st.sampled_from(
        ["laptop", "one_gpu", "file.toml", "folder", "empty.toml", "binary", "missing"]
    ),
)
COMMANDS = st.one_of(
    # A plan starts nothing, whatever the words make of it; neither does an unknown option.
    st.lists(WORDS, max_size=5).map(lambda words: ["train", "--dry-run", *words]),
    st.lists(WORDS, max_size=4).map(lambda words: ["compare", *words, "total_steps=1"]),
    st.lists(WORDS, max_size=4).map(lambda words: ["eval", *words]),
    st.lists(WORDS, max_size=3).map(lambda words: ["simulate", *words, "total_steps=0"]),
    st.tuples(st.sampled_from(["tasks", "configs"]), st.lists(WORDS, max_size=3)).map(
        lambda parts: [parts[0], *parts[1]]
    ),
    st.tuples(st.sampled_from(["tasks:", "webgym:"]), TEXTS | st.just("folder")).map(
        lambda parts: ["tasks", "".join(parts)]
    ),
    st.lists(WORDS, max_size=2).map(lambda words: ["init-policy", *words, "--updates=-1"]),
    st.lists(WORDS, max_size=2).map(lambda words: ["doctor", "--url", "nowhere", *words]),
    st.lists(TEXTS, max_size=2),
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with files of every wrong kind."""
    place, before = tmp_path_factory.mktemp("words"), Path.cwd()
    (place / "folder").mkdir()
    (place / "file.toml").write_text("seed = 1\n")
    (place / "empty.toml").write_text("")
    (place / "binary").write_bytes(b"\xff\xfe\x00")
    os.chdir(place)
    yield place
    os.chdir(before)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(words=COMMANDS)
def test_every_command_line_ends_with_an_exit_code(words: list[str]) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    assert code in (0, 1, 2)
    assert code == 0 or err.getvalue().strip()


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(packaged_configs())), words=st.lists(SETTINGS, max_size=3))
def test_every_setting_is_taken_or_refused_by_name(name: str, words: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        load_config(name, words)


@settings(max_examples=300, deadline=None)
@given(
    keys=st.lists(KEYS.map(lambda key: key.replace("[]", "")), min_size=1, max_size=3),
    value=VALUES,
)
def test_every_file_is_taken_or_refused(keys: list[str], value: str, folder: Path) -> None:
    file = folder / "any.toml"
    file.write_text(
        "".join(f"{key} = {value}\n" for key in keys), encoding="utf-8", errors="replace"
    )
    with contextlib.suppress(ConfigError):
        load_config(str(file))
