"""Attention maps, explanations and their figures; contact sheets; the glass."""
