"""WebRL: the asynchronous reinforcement-learning system for multimodal web agents."""
