"""The boundary to transformers where a policy's folder is read and written: it raises anything."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import transformers

from webrl.errors import PolicyError


@contextmanager
def reading_policy(path: Path) -> Generator[None]:
    """Turn whatever a damaged, foreign or newer folder makes transformers raise into one error.

    Raises:
        PolicyError: It can't be read; chained to what was raised.
    """
    if not (path / "config.json").is_file():
        msg = f"path must be a checkpoint directory with a config.json, got {str(path)!r}."
        raise PolicyError(msg)
    rule = f"be whole and one that transformers {transformers.__version__} reads"
    with _one_error(path, rule, "Copy or make it again, or update transformers."):
        yield


@contextmanager
def writing_policy(path: Path) -> Generator[None]:
    """Turn whatever a full disk makes transformers raise into one error.

    Raises:
        PolicyError: It can't be written; chained to what was raised.
    """
    with _one_error(path, "be writable", "Free space or name another folder."):
        yield


@contextmanager
def _one_error(path: Path, rule: str, advice: str) -> Generator[None]:
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy {str(path)!r} must {rule}, got {type(error).__name__}: {error} {advice}"
        ) from error
