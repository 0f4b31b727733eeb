"""A bank: two tables of accounts and a ledger. Each transfer is two updates and an append in one transaction.

``tables``    the tables, a transfer, and the check of one instant
``campaign``  processes that transfer and audit, some of them killed, with connections cut on Postgres
``crashes``   one transfer after another that dies at a named moment: every table has it or none
``cli``       both from a terminal: ``make bank``
"""
