"""One small program for each framework, run by ``make frameworks`` in an environment of its own."""
