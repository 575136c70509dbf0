"""Processes: pools, worker groups, supervision and clean-up.

Light: ray and torch are imported where a cluster is started or a rank runs, never at import, so
that placement options and plans can be read without them.
"""
