"""Turns a model's logits into answers, for fine-tuning, pipelines.predict and the exports."""
