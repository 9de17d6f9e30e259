"""Code shared by all programs: startup, flags, error handling and the output directory."""
