"""Small policies and receivers for tests and examples; nothing here is for production."""

from awrl_trainer.testing.policies import TinyImagePolicy, TinyPolicy
from awrl_trainer.testing.receivers import GlooReceiverProcess, RecordingReceiver

__all__ = ["GlooReceiverProcess", "RecordingReceiver", "TinyImagePolicy", "TinyPolicy"]
