"""Everything that can go wrong around writers, again and again, on real processes, disks and databases.

``faults``    what can be done to a writer, its disk, its connection or its database
``writer``    one writer process: it appends, notes what it was told, and goes on whatever happens
``proxy``     stands between the writers and Postgres: it delays, and cuts before or after chosen messages
``campaign``  one fault after the other, at random, and a verdict on the table that is left
``cli``       the same from a terminal
"""
