"""A checkpoint whose chat template has tools and thinking, as those of Qwen's models have."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer
from webrl.policy import InitPolicyConfig, PolicyProcessor, WarmupConfig, init_policy

TEMPLATE = r"""\
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|im_start|>system
{{ parts(messages[0].content) }}

<tools>
{% for tool in tools -%}
{{ tool | tojson }}
{% endfor -%}
</tools><|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' and tools -%}
{%- elif message.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ parts(message.content) }}
</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ parts(message.content) }}
{%- for call in message.tool_calls or [] -%}
{{ '\n' }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined -%}
<think>
{% if not enable_thinking %}
</think>

{% endif -%}
{%- endif -%}
{%- endif -%}
"""


@pytest.fixture(scope="session")
def plain_processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    """Return the processor of the tiny policy, whose template has neither."""
    folder = tmp_path_factory.mktemp("tiny")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    return PolicyProcessor.from_pretrained(folder)


@pytest.fixture(scope="session")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PolicyProcessor:
    """Return a processor with tools and thinking."""
    folder: Path = tmp_path_factory.mktemp("tools")
    init_policy(folder, InitPolicyConfig(warmup=WarmupConfig(num_updates=0)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return PolicyProcessor.from_pretrained(folder)
