"""The hybrid engine: one model that trains and generates in the same processes."""
