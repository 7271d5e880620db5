"""FSDP2 policy trainer with exact batches and weight publishing."""
