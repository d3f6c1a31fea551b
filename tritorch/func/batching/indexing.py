"""Rules of operators that take elements, rows and slices by their places, or write them there."""
