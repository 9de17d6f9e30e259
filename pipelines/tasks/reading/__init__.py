"""Reads files into labelled rows and converts the rows to sequences."""
