"""The chat template of the tiny policy; what stands in its chats is the agent's affair."""

from __future__ import annotations

TINY_CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role != 'system' -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
"""Qwen's chat mark-up without the system turn and without tools."""
