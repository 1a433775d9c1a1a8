"""Two replicas on one PostgreSQL that are killed again and again, and clients that do not notice.

``python -m tests.server.chaos [--threads 50] [--turns 2] [--kills 12] [--seed 1]``

Threads talk to an agent of google-adk behind two replicas of the server. The model writes arguments piece by piece and
calls tools: some run on the server, some are the client's, some want an approval. A client sends each message and each
answer to any replica, drops its stream at random and joins again at any replica; a second reader of each thread does
nothing but drop and join. Meanwhile replicas are killed with SIGKILL and started again. One reader of the journal is
never disturbed. At the end all of them must have the same messages, no call may have been executed twice, and nothing
may hang. The last line is ``threads N, kills N, joins N, lost N, doubled N, hung N``; the exit code is 1 if anything was
lost, doubled, hung or otherwise wrong.
"""
