"""Scorers: reward and cost models by path, and rules; each is a component of its own."""

from bestiary import Registry, hookimpl


@hookimpl
def bestiary_register(registry: Registry) -> None:
    """Register each scorer by name; it is imported when chosen."""
    for name, target, options in (
        ("classifier", "classifier:Classifier", "ClassifierOptions"),
        ("length", "rules:Length", "LengthOptions"),
        ("pattern", "rules:Pattern", "PatternOptions"),
        ("overlong", "rules:Overlong", "OverlongOptions"),
        ("sentiment", "lexical:Sentiment", "SentimentOptions"),
        ("toxicity", "lexical:Toxicity", "ToxicityOptions"),
    ):
        registry.reward(
            name,
            target=f"bestiary_scorers.{target}",
            options=f"bestiary_scorers.options:{options}",
        )
