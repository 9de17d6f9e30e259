"""Local and remote files, progress reports, and errors for users."""
