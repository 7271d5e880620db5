"""Publishing weights: what is sent, who receives it, and the window in which it happens."""
