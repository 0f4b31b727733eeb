"""What keeps tables healthy beside their writers: services, when they run, and what is known of their actions."""
