"""Statements beside writers of matching rows, in processes of their own: all land, and each sees all rows before it."""
