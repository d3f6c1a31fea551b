"""Fast functions of float32 as polynomials on whole registers, no tables and no calls."""
from __future__ import annotations

FLOAT32 = {}
