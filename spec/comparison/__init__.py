"""Comparing the state graphs of two models: recording, equivalence, differences."""
