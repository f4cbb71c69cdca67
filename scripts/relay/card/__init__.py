"""A task, looked at: what the planner has to know of its model, its data and its loss."""
