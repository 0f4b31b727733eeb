"""Everything that can go wrong around writers, again and again, on real processes, disks and databases.

``faults``    what can be done to a writer, its disk, its connection or its database
``writer``    one writer process: it appends, notes the outcomes, and continues whatever happens
``proxy``     between the writers and Postgres: it delays, and cuts before or after chosen messages
``campaign``  one fault after the other, at random, and a check of the resulting table
``cli``       the same from a terminal
"""
