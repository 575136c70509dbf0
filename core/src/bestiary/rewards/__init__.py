"""Rewards: finding, calling and checking them, and the worker that hosts one."""
