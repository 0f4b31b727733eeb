"""Writers that die or freeze while they commit for others.

``orders``    what the campaign asks of whoever comes first to a named moment, and how that one takes the order
``writer``    one writer process: it appends, notes what happens to it, and obeys orders
``campaign``  starts the writers, gives one order a round, replaces the dead, and judges what they left
``cli``       many rounds from a terminal
"""
