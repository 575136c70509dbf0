"""The plugin system: hooks, the registry of components, and the manager that loads both.

Everything here is light: listing, checking and fingerprinting plugins imports neither torch, ray,
transformers, hydra nor numpy. A component's own code is imported when it is chosen.
"""
