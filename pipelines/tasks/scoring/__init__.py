"""Computes metrics from predictions."""
