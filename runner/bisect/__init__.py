"""Bisect: names the first step at which two recorded runs part, or at which a NaN began."""
