"""Histories of random writers, judged by a sequential model.

``model``       rows, conditions and the effect of each verb, in plain Python; it knows nothing of the engine
``programs``    what a writer does, drawn at random: single verbs, and transactions that write what they read
``sessions``    runs one program on a lake and records its calls, reads and outcomes
``records``     what a history leaves behind: the writers' records and the table's versions
``replay``      applies a history's records in commit order to the model and finds the first that differs
``interleave``  one process, many open transactions, every order decided by a seed; shrinks what it finds
``processes``   real writer processes on a real catalog, each with its own log
"""
