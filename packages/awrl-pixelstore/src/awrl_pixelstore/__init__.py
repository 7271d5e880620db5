"""Screenshots by reference in dedicated Ray actors."""
