"""What the parts of an episode raise, as the faults that the executor counts.

Invariant: a failure of the infrastructure leaves an episode as a typed fault with the name of the
part that broke; it never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from awrl_pixelstore import PixelStoreError
from awrl_rollout import (
    EpisodeFaultError,
    FaultKind,
    ServerRefusedError,
    ServerUnavailableError,
)

from webrl.errors import BrowserFault, JudgeError

BROWSER_FAULTS: Mapping[str, FaultKind] = {
    "browser_lost": FaultKind.BROWSER_LOST,
    "driver_lost": FaultKind.BROWSER_LOST,
    "page_crashed": FaultKind.BROWSER_LOST,
    "navigation_error": FaultKind.NAVIGATION_ERROR,
    "timeout": FaultKind.TIMEOUT,
    "dialog_storm": FaultKind.NAVIGATION_ERROR,
    "page_error": FaultKind.NAVIGATION_ERROR,
    "blocked": FaultKind.SITE_BLOCKED,
}
"""The browser layer's kinds of fault as the rollout package counts them."""


@contextmanager
def typed_faults() -> Generator[None]:
    """Raise what browser, servers, pixel store and judge raise as a typed fault.

    Raises:
        EpisodeFaultError: One of them failed.
    """
    try:
        yield
    except BrowserFault as fault:
        raise EpisodeFaultError(
            BROWSER_FAULTS[fault.kind], str(fault), boundary="browser"
        ) from fault
    except (ServerRefusedError, ServerUnavailableError) as error:
        raise EpisodeFaultError(
            FaultKind.GENERATION_ERROR, str(error), boundary="generation"
        ) from error
    except PixelStoreError as error:
        raise EpisodeFaultError(
            FaultKind.WORKFLOW_ERROR, str(error), boundary="pixelstore"
        ) from error
    except JudgeError as error:
        raise EpisodeFaultError(FaultKind.JUDGE_ERROR, str(error), boundary="judge") from error
