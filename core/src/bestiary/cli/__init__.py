"""The command ``bestiary``."""
