"""Table "continuing": agents whose process is killed in the middle of a run, in four hosts.

The same agent, with two tools and three turns of the model, in a program of each host; the hosts beside google-adk have
environments of their own. The process is killed with SIGKILL at the same places: in each turn before the model has said
something, in the middle of its text and of its arguments, while each tool runs, and when it has done its work but has not
returned. Then it is started again, as the host's documents say.

- finished: runs that came to their end.
- turns paid again: requests whose answer had come whole before the kill. A turn that was cut is asked for again by all.
- tools repeated: tools that had begun before the kill and began once more.
- lines: of the program that are there because it may be killed; they are marked ``# +``.
- going on: from the kill until the model is asked or a tool begins, the start of the process included.
"""
