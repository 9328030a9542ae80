"""Figures, colors and tables that the commands report with."""
