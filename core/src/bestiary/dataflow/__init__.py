"""The schedules: when ``collect`` and ``learn`` run."""
