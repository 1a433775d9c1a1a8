"""Measurements. Each module prints a table and its thresholds, and exits with 1 if one is missed."""
