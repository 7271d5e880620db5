"""The handle that programs hold: every operation blocking and awaiting.

Invariants: a client is plain data and pickles anywhere that can reach the same Ray cluster; it keeps
no image but in its bounded read cache; every call ends within its limit, with a result or a typed
error; repeating a call after an error is always safe.

Inside an async actor or any running event loop use the `_async` methods only.
"""

from awrl_pixelstore.client_async import AwaitingCalls
from awrl_pixelstore.client_sync import BlockingCalls


class PixelStoreClient(BlockingCalls, AwaitingCalls):
    """A store, seen from one process. Made by `get_or_create_pixel_store`, or unpickled.

    One thread or event loop at a time uses a client; give each its own: `copy.copy` is cheap.
    """
