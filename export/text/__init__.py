"""Raw text to sequences and back to characters, in the graph."""
