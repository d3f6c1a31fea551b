"""Things to do with graphs."""
