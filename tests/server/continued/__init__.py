"""A program and a server of a function whose processes are killed, and what goes on with their runs."""
