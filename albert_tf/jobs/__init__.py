"""What every program shares: its start and end, and its output directory."""
