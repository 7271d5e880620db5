"""What the tiny policy is made of, and how long it is warmed up.

Every field has the value that the laptop run uses; all are validated once, on construction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE_KINDS = ("button", "dialog", "sequence", "field", "section")
"""Kinds of synthetic pages that the warm-up can draw: click the button that a goal names, close a
dialog by its cross, click two buttons in order, click a text field, open a section and submit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionGrid:
    """The screen positions that the tiny policy can name with one token per axis."""

    viewport_width: int = 160
    """Width of the browser viewport, pixels."""
    viewport_height: int = 224
    """Height of the browser viewport, pixels."""
    bin_px: int = 8
    """Edge of one bin, pixels; a click goes to the centre of a bin."""

    def __post_init__(self) -> None:
        """Refuse grids whose bins do not tile the viewport."""
        for name in ("viewport_width", "viewport_height"):
            value = getattr(self, name)
            if value <= 0 or value % self.bin_px != 0:
                msg = (
                    f"{name} must be a positive multiple of bin_px ({self.bin_px}), got {value}. "
                    "Choose a bin that tiles the viewport."
                )
                raise ValueError(msg)

    @property
    def num_x(self) -> int:
        """Bins along the width."""
        return self.viewport_width // self.bin_px

    @property
    def num_y(self) -> int:
        """Bins along the height."""
        return self.viewport_height // self.bin_px

    def x_values(self) -> tuple[int, ...]:
        """Bin centres along the width on the 0-1000 grid of the action grammar."""
        return tuple(self._centre(i, self.viewport_width) for i in range(self.num_x))

    def y_values(self) -> tuple[int, ...]:
        """Bin centres along the height on the 0-1000 grid of the action grammar."""
        return tuple(self._centre(i, self.viewport_height) for i in range(self.num_y))

    def _centre(self, index: int, extent: int) -> int:
        return round((index + 0.5) * self.bin_px * 1000 / extent)


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmupConfig:
    """Supervised warm-up on synthetic pages."""

    num_updates: int = 80
    """Optimizer updates; 0 leaves the weights random."""
    batch_size: int = 48
    """Pages per update."""
    learning_rate: float = 2.0e-3
    """Peak learning rate of AdamW; linear warm-up over 10 updates, then linear decay to a tenth."""
    page_kinds: tuple[str, ...] = ("field", "dialog", "section")
    """Kinds of pages, drawn in turn; the default ones need no reading, which a policy of this size
    does not learn in so few pages."""

    def __post_init__(self) -> None:
        """Refuse counts and kinds that cannot be trained on."""
        if self.num_updates < 0:
            msg = f"num_updates must be >= 0, got {self.num_updates}. Use 0 for random weights."
            raise ValueError(msg)
        if self.batch_size < 1:
            msg = f"batch_size must be >= 1, got {self.batch_size}. Use 48."
            raise ValueError(msg)
        if not self.learning_rate > 0:
            msg = f"learning_rate must be > 0, got {self.learning_rate}. Use 2e-3."
            raise ValueError(msg)
        unknown = sorted(set(self.page_kinds) - set(PAGE_KINDS))
        if unknown or not self.page_kinds:
            msg = (
                f"page_kinds must be a non-empty choice of {', '.join(PAGE_KINDS)}, "
                f"got {self.page_kinds!r}. Remove {unknown!r}."
            )
            raise ValueError(msg)


@dataclass(frozen=True, kw_only=True, slots=True)
class InitPolicyConfig:
    """A tiny Qwen3-VL: sizes, image layout, action grid, warm-up."""

    seed: int = 0
    """Seed of the weights and of the synthetic pages."""
    hidden_size: int = 128
    """Width of the text model."""
    num_layers: int = 2
    """Layers of the text model."""
    num_heads: int = 4
    """Attention heads of the text model; half as many key-value heads."""
    intermediate_size: int = 256
    """Width of the text model's MLP."""
    vision_hidden_size: int = 64
    """Width of the vision model."""
    vision_depth: int = 2
    """Layers of the vision model; layer 0 also feeds the text model (deepstack)."""
    vision_heads: int = 4
    """Attention heads of the vision model."""
    vision_intermediate_size: int = 128
    """Width of the vision model's MLP."""
    patch_px: int = 16
    """Edge of a vision patch, pixels of the resized screenshot."""
    merge: int = 1
    """Edge of the square of patches that becomes one image token."""
    max_pixels: int = 80 * 112
    """Largest area of a resized screenshot, pixels; 80 * 112 halves the laptop viewport."""
    initializer_range: float = 0.08
    """Standard deviation of the initial weights."""
    grid: ActionGrid = field(default_factory=ActionGrid)
    """Positions that one action can name."""
    has_text_actions: bool = False
    """Whether text may be sampled, as typing needs; without it only action pieces are, which no
    exploration bonus can drive out of the syntax."""
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    """Supervised warm-up that ends `init_policy`."""

    def __post_init__(self) -> None:
        """Refuse sizes that the architecture cannot have."""
        if self.hidden_size % self.num_heads or self.hidden_size // self.num_heads % 8:
            msg = (
                f"hidden_size must be num_heads ({self.num_heads}) times a multiple of 8, "
                f"got {self.hidden_size}. Use 128 with 4 heads."
            )
            raise ValueError(msg)
        if self.num_heads % 2:
            msg = f"num_heads must be even, got {self.num_heads}. Two heads share one key."
            raise ValueError(msg)
        if self.vision_hidden_size % (2 * self.vision_heads):
            msg = (
                f"vision_hidden_size must be a multiple of 2 * vision_heads "
                f"({2 * self.vision_heads}), got {self.vision_hidden_size}. Use 64 with 4 heads."
            )
            raise ValueError(msg)
        if self.merge < 1:
            msg = f"merge must be >= 1, got {self.merge}. Use 1 for one token per patch."
            raise ValueError(msg)
        smallest = (self.patch_px * self.merge) ** 2
        if self.max_pixels < smallest:
            msg = (
                f"max_pixels must be at least one merged patch ({smallest}), "
                f"got {self.max_pixels}. Use {80 * 112}."
            )
            raise ValueError(msg)
