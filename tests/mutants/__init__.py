"""The protocol with one rule taken out at a time: each of these programs is wrong, and something has to notice it."""
