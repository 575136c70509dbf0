"""Models and roles: what an algorithm calls, dispatched to worker groups."""
