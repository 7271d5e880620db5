"""A real SGLang server whose key is in no argument and no log."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from awrl_rollout import GenerateRequest, SGLangClient
from webrl.cluster.network import NetworkConfig
from webrl.policy import InitPolicyConfig, WarmupConfig, init_policy
from webrl.servers.server_actor import InferenceServer, ServerSpec
from webrl.servers.sglang_main import HiddenText


class OpenNetwork(NetworkConfig):
    """Asks for a token, and listens on loopback all the same."""

    def host(self) -> str:
        return "127.0.0.1"


def test_a_hidden_text_is_itself_but_for_its_repr() -> None:
    text = HiddenText("secret")
    assert text == "secret"
    assert f"{text!r}" == "'***'"


@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the extra sglang")
def test_a_real_server_asks_for_the_token_and_shows_it_nowhere(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    init_policy(policy, InitPolicyConfig(seed=1, warmup=WarmupConfig(num_updates=0)))
    token = "token-of-this-test"
    spec = ServerSpec(
        backend="sglang",
        model_path=str(policy),
        start_timeout_s=400.0,
        extra_args=("--dtype", "float32"),
        network=OpenNetwork(token=token),
    )
    server = InferenceServer(spec, 0, "token", str(tmp_path))
    try:
        url = asyncio.run(server.start())
        for path in (
            "/generate",
            "/pause_generation",
            "/init_weights_update_group",
            "/server_info",
        ):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url + path)
        answer = asyncio.run(_generate(url, token))
        assert 1 <= len(answer) <= 2
        words = [
            word for child in psutil.Process().children(recursive=True) for word in child.cmdline()
        ]
        assert "webrl.servers.sglang_main" in words
        assert not any(token in word for word in words)
    finally:
        server.stop()
    log = (tmp_path / "token.log").read_text(errors="replace")
    assert "api_key='***'" in log
    assert token not in log
    assert os.environ.get("AWRL_SERVER_TOKEN") is None


async def _generate(url: str, token: str) -> list[int]:
    async with SGLangClient(url, token=token) as client:
        request = GenerateRequest(input_ids=[1, 2, 3], max_new_tokens=2)
        return list((await client.generate(request)).output_ids)
