"""What one screenshot costs in tokens, from the policy's image processor and the configuration."""

from __future__ import annotations

from pathlib import Path

from webrl.config import WebRLConfig
from webrl.config.web_sections import LARGEST_VIEWPORT


def describe_screenshots(config: WebRLConfig) -> list[str]:
    """Return a line of text; none where the policy is not here to be asked."""
    path = config.policy.path
    if path is None or not (Path(path) / "preprocessor_config.json").is_file():
        return []
    # The image processor brings torch and transformers, which take seconds to import.
    from webrl.policy import image_tokens, size_within  # noqa: PLC0415

    page_width, page_height = LARGEST_VIEWPORT
    page_width = config.env.viewport_width or page_width
    page_height = config.env.viewport_height or page_height
    height, width = size_within(page_height, page_width, config.agent.max_pixels)
    num_tokens = image_tokens(Path(path), height, width)
    answer, images = config.gconfig.max_new_tokens, config.agent.images
    room = config.inference.context_length - answer
    if config.agent.max_prompt_tokens is not None:
        room = min(room, config.agent.max_prompt_tokens)
    left = room - images * num_tokens
    return [
        f"screenshots of {page_width} x {page_height}, shown at {width} x {height}: {num_tokens:,} "
        f"tokens each; agent.images = {images} and an answer of {answer:,} leave {left:,} to text"
    ]
