"""What keeps tables healthy beside their writers: services with plans, when they run, and what they did."""
