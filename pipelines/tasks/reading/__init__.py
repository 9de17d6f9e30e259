"""From files to labelled rows, and from rows to sequences."""
