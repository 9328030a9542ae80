"""Update rules, schedules, clipping."""
