"""Modules that are exported as SavedModels, one class per kind of model."""
