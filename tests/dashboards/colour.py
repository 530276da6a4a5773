"""How far apart two colours look, to most eyes and to those with dichromacy.

Input: sRGB as ``#RRGGBB``. Output: CIEDE2000 (Sharma, Wu and Dalal 2005) under D65, after Machado, Oliveira and
Fernandes (2009) at severity 1 for deuteranopia and protanopia. Invariant: symmetric, 0 for the same colour. CIEDE2000
and not the plain distance in Lab, which calls two dark or two saturated colours farther apart than they look.
"""

from collections.abc import Mapping
from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

Triple = tuple[float, float, float]
_SAME = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
EYES: Mapping[str, tuple[Triple, ...]] = {
    "usual": _SAME,
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
_XYZ = ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041))
_WHITE = (0.95047, 1.0, 1.08883)


def seen(colour: str, eye: str) -> Triple:
    """Return a colour in Lab as this eye sees it."""
    linear = tuple(_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    shown = tuple(min(max(part, 0.0), 1.0) for part in _times(EYES[eye], linear))
    x, y, z = (_cube(part / white) for part, white in zip(_times(_XYZ, shown), _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _linear(part: float) -> float:
    return float(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)


def _times(matrix: tuple[Triple, ...], vector: tuple[float, ...]) -> Triple:
    x, y, z = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return x, y, z


def _cube(t: float) -> float:
    return float(t ** (1 / 3)) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116


def apart(one: str, other: str, eye: str) -> float:
    """Return how different two colours look to this eye; about 1 is just visible side by side."""
    return ciede2000(seen(one, eye), seen(other, eye))


def ciede2000(one: Triple, other: Triple) -> float:
    """Return the difference of two colours in Lab."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    g = _chroma_weight((hypot(a1, b1) + hypot(a2, b2)) / 2) / 2
    a1, a2 = a1 * (1.5 - g), a2 * (1.5 - g)
    c1, c2, h1, h2 = hypot(a1, b1), hypot(a2, b2), degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = (
        1 - 0.17 * cos(radians(hue - 30)) + 0.24 * cos(radians(2 * hue)) + 0.32 * cos(radians(3 * hue + 6))
        - 0.20 * cos(radians(4 * hue - 63))
    )  # fmt: skip
    d_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    d_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    d_hue = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * chroma * t)
    rotation = -2 * _chroma_weight(chroma) * sin(radians(60 * exp(-(((hue - 275) / 25) ** 2))))
    return sqrt(d_light**2 + d_chroma**2 + d_hue**2 + rotation * d_chroma * d_hue)


def _chroma_weight(chroma: float) -> float:
    return sqrt(chroma**7 / (chroma**7 + 25**7))
