"""Text to pieces and tags, in Python and in the graph."""
