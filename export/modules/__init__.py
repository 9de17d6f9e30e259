"""Modules that are saved as SavedModels: one class for each kind of model."""
