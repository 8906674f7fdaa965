"""The commands of ``tricoll``, a file each: options and their help, and what is printed. What they do is elsewhere."""
