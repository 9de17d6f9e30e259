"""From predictions to figures."""
