"""Servers that are killed while their runs work, and runs that go on.

``python -m tests.server.continuing [--kills 16] [--journal sqlite|postgres] [--kind llm …] [--wire gemini …] [--stop]
[--seed 1]``, or with ``--odd``: what seldom happens (``odd``), or with ``--clients [--client ai6 …] [--moment 'half a text' …]``: what
published clients show of it (``audience``)

Agents of google-adk run behind ``callstream serve``: with SQLite one process that is started again after each kill, with
PostgreSQL two replicas. Some runs are at work at a time; when one of them has written a certain record, the process that
works on it is killed with SIGKILL; with ``--stop`` it is ended with SIGTERM, and hands its runs over. At the end every run must
have been taken and have finished; no turn of a model that had been answered may have been asked for again, no tool that is
not safe and no function of a Workflow that had returned may have run twice, and who joins sees every text once. The last line
of each kind is ``kills N, runs N, interrupted N, unfinished N, not taken N, paid again N, repeated N, shown wrongly N``; the exit
code is 1 if anything after ``interrupted`` is more than 0.
"""
