"""Student's t: what comparisons and trends are held against, without a library of statistics.

Input: a t and its degrees of freedom. Output: chances. Invariant: exact for whole degrees of freedom.
"""

from math import atan, cos, pi, sin, sqrt


def two_sided(t: float, freedom: int) -> float:
    """Return the chance of a t at least as far from 0 (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    sine, cosine = sin(angle), cos(angle)
    term, total = 1.0, 0.0
    if freedom % 2:
        term = cosine
        for k in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= cosine * cosine * (2 * k) / (2 * k + 1)
        return max(0.0, 1 - 2 / pi * (angle + sine * total))
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cosine * cosine * (2 * k - 1) / (2 * k)
    return max(0.0, 1 - sine * total)


def below(t: float, freedom: int) -> float:
    """Return the chance of a smaller t."""
    half = two_sided(abs(t), freedom) / 2
    return 1 - half if t > 0 else half


def threshold(level: float, freedom: int) -> float:
    """Return the t that is exceeded, either way, with this chance."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return (low + high) / 2
