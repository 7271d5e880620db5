from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from webrl.embedded.batch import RunningBatch
from webrl.embedded.kv_cache import DecodeView, PromptKV
from webrl.embedded.request import (
    GenerationAnswer,
    GenerationRequest,
    PreparedPrompt,
    PromptState,
    prepared_key,
)
from webrl.embedded.scheduler import RequestScheduler
from webrl.embedded.wire import SamplingParams
from webrl.errors import BadRequestError
from webrl.policy import ModelInputs

VOCAB = 11
EOS = 0
BAD = 99


class CountingRunner:
    """A model whose next token is the last one plus one, unless that is the end token."""

    def __init__(self) -> None:
        self.prefills: list[int] = []
        self.num_decodes = 0
        self.num_weight_changes = 0
        self.fails = False

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def context_length(self) -> int:
        return 20

    def prepare(self, token_ids: Sequence[int], images: Sequence[bytes]) -> PreparedPrompt:
        if BAD in token_ids:
            raise BadRequestError("input_ids must be small")
        ids = torch.tensor(token_ids)
        inputs = ModelInputs(
            input_ids=ids,
            mm_token_type_ids=torch.zeros_like(ids),
            position_ids=torch.arange(len(ids)).expand(3, -1),
            pixel_values=None,
            image_grid_thw=None,
        )
        return PreparedPrompt(key=prepared_key(token_ids, images), inputs=inputs)

    def prefill(self, prompts: Sequence[PreparedPrompt]) -> list[PromptState]:
        if self.fails:
            raise RuntimeError("out of memory")
        self.prefills.append(len(prompts))
        return [
            PromptState(
                kv=PromptKV(
                    [torch.zeros((1, prompt.num_tokens, 1))],
                    [torch.zeros((1, prompt.num_tokens, 1))],
                ),
                logits=self._logits([int(prompt.inputs.input_ids[-1])])[0],
                next_position=prompt.num_tokens,
            )
            for prompt in prompts
        ]

    def decode(
        self, token_ids: Sequence[int], positions: Sequence[int], cache: DecodeView
    ) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("out of memory")
        self.num_decodes += 1
        assert cache.get_seq_length() == max(positions)
        return self._logits(token_ids)

    def weights_changed(self) -> None:
        self.num_weight_changes += 1

    def _logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        logits = torch.full((len(token_ids), VOCAB), -5.0)
        for index, token in enumerate(token_ids):
            logits[index, (token + 1) % VOCAB] = 5.0
        return logits


class World:
    """A scheduler with its runner, and the answers that came out."""

    def __init__(
        self,
        *,
        max_running: int = 64,
        max_prefill_tokens: int = 16384,
        prompt_cache_bytes: int = 2**29,
    ) -> None:
        self.runner = CountingRunner()
        batch = RunningBatch(
            self.runner, max_prefill_tokens=max_prefill_tokens, cache_bytes=prompt_cache_bytes
        )
        self.scheduler = RequestScheduler(self.runner, batch, max_running=max_running)
        self.answers: dict[str, list[GenerationAnswer]] = {}

    def submit(
        self, rid: str, prompt: tuple[int, ...] = (1, 2), *, is_stream: bool = False, **params: int
    ) -> None:
        self.answers[rid] = []
        sampling = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 3, **params})  # pyright: ignore[reportArgumentType]
        self.scheduler.submit(
            GenerationRequest(
                rid=rid,
                prompt_ids=prompt,
                images=(),
                params=sampling,
                bias=None,
                seed=1,
                deliver=self.answers[rid].append,
                is_stream=is_stream,
            )
        )
        self._deliver()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.scheduler.step()
            self._deliver()

    def do(self, name: str, *args: object) -> None:
        getattr(self.scheduler, name)(*args)
        self._deliver()

    def _deliver(self) -> None:
        for deliver, answer in self.scheduler.take_deliveries():
            deliver(answer)

    def only(self, rid: str) -> GenerationAnswer:
        (answer,) = self.answers[rid]
        return answer


def finish_type(answer: GenerationAnswer) -> str | None:
    return answer.finish.type if answer.finish else None


def test_an_answer_ends_at_its_budget() -> None:
    world = World()
    world.submit("a")
    world.step(5)
    assert world.only("a").output_ids == (3, 4, 5)
    assert finish_type(world.only("a")) == "length"
    assert world.only("a").versions == ("default",) * 3


def test_an_answer_ends_at_the_end_token_and_holds_it() -> None:
    world = World()
    world.submit("a", (8,), max_new_tokens=9)
    world.step(9)
    assert world.only("a").output_ids == (9, 10, 0)
    assert finish_type(world.only("a")) == "stop"


def test_the_budget_is_bounded_by_the_context() -> None:
    world = World()
    world.submit("a", (1,) * 18, max_new_tokens=9)
    world.step(9)
    assert len(world.only("a").output_ids) == 2


def test_an_input_that_fills_the_context_is_answered_with_an_error() -> None:
    world = World()
    world.submit("a", (1,) * 20)
    assert isinstance(world.only("a").error, BadRequestError)
    assert world.scheduler.statistics().num_refused == 1


def test_requests_join_a_running_batch_between_steps() -> None:
    world = World()
    world.submit("a", max_new_tokens=8)
    world.step()
    world.submit("b", (5,), max_new_tokens=2)
    world.step(8)
    assert world.only("a").output_ids == (3, 4, 5, 6, 7, 8, 9, 10)
    assert world.only("b").output_ids == (6, 7)


def test_siblings_share_one_prefill() -> None:
    world = World()
    for index in range(5):
        world.submit(f"s{index}")
    world.submit("other", (4,))
    world.step(5)
    assert world.runner.prefills == [2]
    assert world.scheduler.statistics().num_shared_prompts == 4


def test_prompts_are_kept_within_their_bytes_and_the_oldest_go_first() -> None:
    one = 4 * (2 + 2 + VOCAB)  # keys, values and logits of a prompt of two tokens
    world = World(prompt_cache_bytes=2 * one)
    for number, prompt in enumerate([(1, 2), (1, 3), (1, 2), (1, 4), (1, 2), (1, 3)]):
        world.submit(f"p{number}", prompt)
        world.step(4)
    assert world.scheduler.statistics().num_shared_prompts == 2
    assert world.runner.prefills == [1] * 4


def test_a_prompt_bigger_than_the_cache_is_answered_and_not_kept() -> None:
    world = World(prompt_cache_bytes=1)
    for number in range(2):
        world.submit(f"p{number}")
        world.step(4)
        assert world.only(f"p{number}").output_ids == (3, 4, 5)
    assert world.scheduler.statistics().num_shared_prompts == 0


def test_a_sibling_that_comes_later_shares_too_until_the_weights_change() -> None:
    world = World()
    world.submit("a")
    world.step(5)
    world.submit("b")
    world.step(5)
    assert world.runner.prefills == [1]
    world.do("weights_changed", "1")
    world.submit("c")
    world.step(5)
    assert world.runner.prefills == [1, 1]
    assert world.runner.num_weight_changes == 1


def test_tokens_carry_the_version_of_their_own_step() -> None:
    world = World()
    world.submit("a", max_new_tokens=5)
    world.step()
    world.do("weights_changed", "7")
    world.step(5)
    assert world.only("a").versions == ("default", "default", "7", "7", "7")
    assert world.only("a").weight_version == "7"


def test_at_most_max_running_requests_have_a_row() -> None:
    world = World(max_running=2)
    for index in range(5):
        world.submit(f"r{index}", max_new_tokens=4)
    world.step()
    assert world.scheduler.num_running == 2
    world.step(20)
    assert all(finish_type(world.only(f"r{index}")) == "length" for index in range(5))


def test_long_prompts_are_prefilled_in_pieces() -> None:
    world = World(max_prefill_tokens=8)
    for index in range(4):
        world.submit(f"r{index}", (1, 2, index))
    world.step(5)
    assert world.runner.prefills == [2, 2]
    assert all(len(world.only(f"r{index}").output_ids) == 3 for index in range(4))


def test_abort_by_prefix_answers_waiting_and_running_with_what_they_have() -> None:
    world = World(max_running=1)
    world.submit("ep1/a", max_new_tokens=8)
    world.step()
    world.submit("ep1/b")
    world.submit("ep2/a")
    world.do("abort", "ep1/")
    assert world.only("ep1/a").output_ids == (3, 4)
    assert world.only("ep1/b").output_ids == ()
    assert finish_type(world.only("ep1/b")) == "abort"
    world.step(5)
    assert finish_type(world.only("ep2/a")) == "length"


def test_pause_with_abort_empties_both_queues_and_holds_what_comes_later() -> None:
    world = World(max_running=1)
    world.submit("a", max_new_tokens=8)
    world.submit("b")
    world.step()
    world.do("pause", "abort")
    assert [finish_type(world.only(rid)) for rid in "ab"] == ["abort", "abort"]
    world.submit("c")
    world.do("pause", "abort")
    world.step(3)
    assert world.answers["c"] == []
    world.do("resume")
    world.step(5)
    assert world.only("c").output_ids == (3, 4, 5)


def test_pause_in_place_goes_on_without_a_new_prefill() -> None:
    world = World()
    world.submit("a", max_new_tokens=6)
    world.step()
    world.do("pause", "in_place")
    world.step(3)
    assert world.answers["a"] == []
    world.do("resume")
    world.step(6)
    assert world.only("a").output_ids == (3, 4, 5, 6, 7, 8)
    assert world.runner.prefills == [1]


def test_retract_prefills_again_what_was_running() -> None:
    world = World()
    world.submit("a", max_new_tokens=6)
    world.step()
    world.do("pause", "retract")
    assert world.scheduler.num_running == 0
    world.do("weights_changed", "2")
    world.do("resume")
    world.step(6)
    assert world.only("a").output_ids == (3, 4, 5, 6, 7, 8)
    assert world.only("a").versions == ("default", "default", "2", "2", "2", "2")
    assert world.runner.prefills == [1, 1]


def test_nothing_is_admitted_while_draining() -> None:
    world = World()
    world.submit("a")
    world.step()
    world.do("set_draining", True)
    world.submit("b")
    world.step(5)
    assert len(world.only("a").output_ids) == 3
    assert world.answers["b"] == []
    world.do("set_draining", False)
    world.step(5)
    assert len(world.only("b").output_ids) == 3


def test_flush_is_refused_while_requests_are_here() -> None:
    world = World()
    world.submit("a")
    assert not world.scheduler.flush()
    world.step(5)
    assert world.scheduler.flush()
    world.submit("b")
    world.step(5)
    assert world.runner.prefills == [1, 1]


def test_a_stream_is_answered_at_every_token() -> None:
    world = World()
    world.submit("a", is_stream=True)
    world.step(5)
    assert [answer.output_ids for answer in world.answers["a"]] == [(3,), (3, 4), (3, 4, 5)]
    assert [finish_type(answer) for answer in world.answers["a"]] == [None, None, "length"]


@pytest.mark.parametrize("num_steps_before", [0, 1])
def test_a_failed_forward_ends_the_requests_in_it_and_no_others(num_steps_before: int) -> None:
    world = World(max_running=2)
    for rid in "abc":
        world.submit(rid, max_new_tokens=8)
    world.step(num_steps_before)
    world.runner.fails = True
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        world.scheduler.step()
    world.do("fail_running", caught.value)
    world.runner.fails = False
    assert str(world.only("a").error) == "out of memory"
    assert str(world.only("b").error) == "out of memory"
    world.step(9)
    assert world.only("c").output_ids == (3, 4, 5, 6, 7, 8, 9, 10)


def test_every_request_is_answered_exactly_once_whatever_happens() -> None:
    world = World(max_running=3, max_prefill_tokens=4)
    generator = torch.Generator().manual_seed(0)
    for number in range(300):
        event = int(torch.randint(0, 12, (1,), generator=generator))
        if event < 5:
            first = BAD if event == 0 else 1 + number % 5
            world.submit(f"r{number % 7}/{number}", (first,), max_new_tokens=1 + number % 6)
        elif event < 9:
            world.step()
        elif event == 9:
            world.do("abort", f"r{number % 7}/")
        elif event == 10:
            world.do("pause", ("abort", "in_place", "retract")[number % 3])
            world.do("weights_changed", str(number))
        world.do("resume")
    world.step(200)
    assert all(len(answers) == 1 for answers in world.answers.values())
    found = world.scheduler.statistics()
    assert found.num_finished + found.num_aborted + found.num_refused == len(world.answers)
    assert (found.num_running, found.num_waiting) == (0, 0)
