"""Code shared by all programs: start and end, flags, and the output directory."""
