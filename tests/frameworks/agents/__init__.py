"""A small agent with each framework: ``run(base_url, cs, tools)`` asks it, and returns its last word.

``tools`` has ``write`` as a coroutine function and ``write_now`` as a plain one, both of them tools of that Callstream
named ``write``. A program may say ``WIRE``, and ``LAST``, the steps by which a model ends the agent's work.
"""
