"""Reads files into labelled rows, and rows into sequences."""
