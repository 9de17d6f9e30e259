"""Configuration and tools for servers of exports: see README.md in this folder."""
