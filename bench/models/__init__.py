"""Models that are measured, and the way to run one file on both libraries."""
