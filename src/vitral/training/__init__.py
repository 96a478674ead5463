"""Batches become weights."""
