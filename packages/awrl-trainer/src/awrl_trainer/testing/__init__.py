"""Small policies, and a receiver in a process, for tests and examples; nothing here is for production."""

from __future__ import annotations

from awrl_trainer.testing.policies import TinyImagePolicy, TinyPolicy
from awrl_trainer.testing.receiver_process import ReceiverProcess

__all__ = ["ReceiverProcess", "TinyImagePolicy", "TinyPolicy"]
