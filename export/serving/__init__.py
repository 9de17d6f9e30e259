"""What a server of exports needs beside them: see README.md here."""
