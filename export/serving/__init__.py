"""Configuration files and tools for serving exports; see README.md in this directory."""
