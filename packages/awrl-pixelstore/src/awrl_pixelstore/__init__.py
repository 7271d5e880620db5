"""Screenshots by reference in dedicated Ray actors."""

import logging

from awrl_pixelstore.cache import CacheStatistics
from awrl_pixelstore.client import PixelStoreClient
from awrl_pixelstore.config import DiskConfig, PixelStoreConfig
from awrl_pixelstore.core import PixelStoreCore
from awrl_pixelstore.errors import (
    DiskTierError,
    InvalidImage,
    InvalidKey,
    PixelNotFound,
    PixelStoreError,
    PixelStoreFull,
    PixelStoreUnavailable,
)
from awrl_pixelstore.image import Image, ImageInfo
from awrl_pixelstore.pressure import Pressure, Room, room_for_episodes
from awrl_pixelstore.statistics import PixelStoreStatistics
from awrl_pixelstore.store import get_or_create_pixel_store

__all__ = [
    "CacheStatistics",
    "DiskConfig",
    "DiskTierError",
    "Image",
    "ImageInfo",
    "InvalidImage",
    "InvalidKey",
    "PixelNotFound",
    "PixelStoreClient",
    "PixelStoreConfig",
    "PixelStoreCore",
    "PixelStoreError",
    "PixelStoreFull",
    "PixelStoreStatistics",
    "PixelStoreUnavailable",
    "Pressure",
    "Room",
    "get_or_create_pixel_store",
    "room_for_episodes",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
