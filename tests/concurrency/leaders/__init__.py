"""Group leaders that die or freeze.

``orders``    orders to the first writer that reaches a named moment, and how a writer takes one
``writer``    one writer process: it appends, notes what happens to it, and obeys orders
``campaign``  starts the writers, gives one order a round, replaces the dead, and checks the table
``cli``       many rounds from a terminal
"""
