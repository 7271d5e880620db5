"""Screenshots by reference in dedicated Ray actors."""

from __future__ import annotations

import logging

from awrl_pixelstore.client import PixelStoreClient
from awrl_pixelstore.config import PixelStoreConfig
from awrl_pixelstore.core import PixelStoreCore
from awrl_pixelstore.errors import (
    InvalidImage,
    PixelNotFound,
    PixelStoreError,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_pixelstore.statistics import PixelStoreStatistics, Pressure
from awrl_pixelstore.store import end_pixel_stores, get_or_create_pixel_store

__all__ = [
    "InvalidImage",
    "PixelNotFound",
    "PixelStoreClient",
    "PixelStoreConfig",
    "PixelStoreCore",
    "PixelStoreError",
    "PixelStoreFull",
    "PixelStoreStatistics",
    "PixelStoreUnavailable",
    "Pressure",
    "end_pixel_stores",
    "get_or_create_pixel_store",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
