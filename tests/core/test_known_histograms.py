"""What is said of known histograms, to four digits: every answer, its bounds, and whether it is sure.

`test_distribution` holds the answers against the truth, on average; here each stays what it is. Who changes the model
changes them: run ``bench/distributions.py``, see that they come nearer to the truth, and take over what
``python -m tests.core.test_known_histograms`` prints.
"""

from array import array
from statistics import NormalDist

import pytest

from tests.core.phases import ONE_TWO_FIVE, TTFT, histogram
from vllm_vitals.core.bucket_shape import shape_of
from vllm_vitals.core.distribution import Cut, fit, is_sure
from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading


def normal(middle: float, sigma: float, count: int) -> list[float]:
    """A log-normal, evenly: its quantiles at the middle of each rank."""
    score = NormalDist().inv_cdf
    return [middle * 2.718281828459045 ** (sigma * score((k + 0.5) / count)) for k in range(count)]


SHAPES: dict[str, tuple[Histogram, tuple[float, float] | None]] = {
    "many buckets": (histogram(normal(150, 0.8, 400), ONE_TWO_FIVE), None),
    "fine buckets": (histogram(normal(0.4, 0.9, 300), TTFT), None),
    "two humps with nothing between": (histogram(normal(3, 0.1, 60) + normal(900, 0.3, 140), ONE_TWO_FIVE), None),
    "three buckets": (histogram(normal(90, 0.35, 80), ONE_TWO_FIVE), None),
    "two buckets": (histogram(normal(190, 0.2, 60), ONE_TWO_FIVE), None),
    "two buckets, of which the lower is the first": (histogram(normal(0.001, 0.5, 60), TTFT), None),
    "one bucket": (histogram(normal(300, 0.1, 50), ONE_TWO_FIVE), None),
    "one bucket, which is the first": (histogram(normal(0.0005, 0.1, 50), TTFT), None),
    "one bucket without an end": (histogram(normal(9000, 0.2, 50), ONE_TWO_FIVE), None),
    "a last bucket without an end": (histogram(normal(2000, 0.9, 200), ONE_TWO_FIVE), None),
    "few": (histogram([30.0, 70.0, 80.0, 150.0, 400.0], ONE_TWO_FIVE), None),
    "one": (histogram([70.0], ONE_TWO_FIVE), None),
    "a sum at the lower edges": (Histogram((10.0, 20.0, 50.0), array("d", [0.0, 40.0, 80.0, 80.0]), 1260.0), None),
    "a sum at the upper edges": (Histogram((10.0, 20.0, 50.0), array("d", [0.0, 40.0, 80.0, 80.0]), 2740.0), None),
    "counts that are not whole": (Histogram((10.0, 20.0, 50.0), array("d", [0.0, 7.25, 31.5, 40.125]), 1500.5), None),
    "cut at a cap": (
        histogram([min(256.0, value) for value in normal(150, 0.8, 200)], ONE_TWO_FIVE), (256.0, 50.0),
    ),
    "nearly all cut at a cap": (
        histogram([min(256.0, value) for value in normal(400, 0.5, 100)], ONE_TWO_FIVE), (256.0, 82.0),
    ),
    "all cut at a cap": (histogram([256.0] * 40, ONE_TWO_FIVE), (256.0, 40.0)),
    "one bucket, cut at a cap": (
        histogram([min(256.0, value) for value in normal(245, 0.06, 50)], ONE_TWO_FIVE), (256.0, 12.0),
    ),
    "all of the last bucket cut at a cap": (
        histogram([*normal(80, 0.08, 30), *[200.0] * 20], ONE_TWO_FIVE), (200.0, 20.0),
    ),
    "wide, without an end": (histogram(normal(2000, 1.8, 200), ONE_TWO_FIVE), None),
    "one bucket far beyond the last edge": (histogram(normal(200_000, 0.2, 60), ONE_TWO_FIVE), None),
    "a few enormous ones": (Histogram((10.0, 20.0, 50.0), array("d", [0.0, 40.0, 70.0, 80.0]), 51_650.0), None),
    "two": (histogram([70.0, 150.0], ONE_TWO_FIVE), None),
    "a hump of three buckets, and another": (histogram(normal(3, 0.5, 60) + normal(900, 0.3, 140), ONE_TWO_FIVE), None),
    "the first bucket, then nothing": (histogram([0.0005] * 40 + normal(0.4, 0.5, 60), TTFT), None),
}  # fmt: skip


def shown(reading: Reading) -> str:
    """Value, bounds, and a mark where no rule may be chosen by it."""
    value, lower, upper = ("-" if one is None else f"{one if abs(one) > 1e-6 else 0:.4g}" for one in reading[:3])
    return f"{value} [{lower} {upper}]" + ("" if is_sure(reading) else "?")


def said(known: Histogram, cut: tuple[float, float] | None) -> list[str]:
    """Quantiles; spread; shares; and how far the ends of the shape are open: likely 2 % and 99 %, likely spread."""
    found, shape = fit(known, cut=None if cut is None else Cut(*cut)), shape_of(known, cut)
    ends = (shape.likely(0.02)[::2], shape.likely(0.99)[::2], shape.spread()[::2])
    return [
        " ".join(shown(found.quantile(q)) for q in (0.02, 0.5, 0.75, 0.9, 0.99)),
        f"cv {shown(found.cv())}, above " + " ".join(shown(found.share_above(x)) for x in (7e-4, 0.3, 30, 130, 700)),
        " ".join(f"{low:.4g}..{high:.4g}" for low, high in ends),
    ]


# fmt: off
SAID: dict[str, list[str]] = {
    "many buckets": [
        "29.2 [20 50] 150.3 [100 200] 256.7 [200 500] 412.4 [200 500] 963 [500 1000]",
        "cv 0.9082 [0.6213 1.426], above 1 [1 1] 1 [1 1] 0.9795 [0.915 0.995] 0.5736 [0.36 0.695] 0.02815 [0.01 0.065]",
        "29.79..29.79 1000..1000 0.8785..0.9676",
    ],
    "fine buckets": [
        "0.06226 [0.06 0.08] 0.3998 [0.25 0.5] 0.7326 [0.5 0.75] 1.244 [1 2.5] 3.107 [2.5 5]",
        "cv 1.094 [0.7537 1.557], above 1 [1 1] 0.6267 [0.4033 0.7] 0 [0 0] 0 [0 0] 0 [0 0]",
        "0.06432..0.06432 3.305..3.305 1.072..1.12",
    ],
    "two humps with nothing between": [
        "3.53 [2 5]? 778.1 [500 1000] 1002 [1000 1730] 1249 [1000 2000] 1761 [1000 2000]",
        "cv 0.7545 [0.6683 1.124], above 1 [1 1] 1 [1 1] 0.7 [0.7 0.7] 0.7 [0.7 0.7] 0.5611 [0.255 0.68]",
        "2.778..4.154 1817..1817 0.7513..0.765",
    ],
    "three buckets": [
        "42.76 [20 50] 89.66 [50 100] 113.7 [100 200] 140.2 [100 200] 219 [200 500]",
        "cv 0.3626 [0.1649 0.8089], above 1 [1 1] 1 [1 1] 0.999 [0.95 1] 0.1505 [0.0125 0.3875] 0 [0 0]",
        "38.27..46.12 202.6..214.4 0.3517..0.3932",
    ],
    "two buckets": [
        "137.2 [100 192.1] 190.7 [100 200] 214.3 [200 401.6] 237.3 [200 500] 289.7 [200 500]",
        "cv 0.1735 [0.02632 0.767]?, above 1 [1 1] 1 [1 1] 1 [1 1] 0.9899 [0.4 1] 0 [0 0]",
        "122.6..147.5 263.5..318.2 0.133..0.2252",
    ],
    "two buckets, of which the lower is the first": [
        "0.0003841 [0 0.001] 0.0009899 [0 0.001] 0.001372 [0.001 0.003361] 0.001822 [0.001 0.005] "
        "0.003002 [0.001259 0.005]",
        "cv 0.4938 [0.1147 1.534], above 0.7675 [0.5 1] 0 [0 0] 0 [0 0] 0 [0 0] 0 [0 0]",
        "0.0003062..0.0004277 0.002544..0.003371 0.4202..0.5739",
    ],
    "one bucket": [
        "236.2 [200 301.5] 299 [200 395.1] 322 [238.8 500] 341.3 [279.4 500] 382.2 [301.5 500]",
        "cv 0.1048 [0 0.4708]?, above 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1] 0 [0 0]",
        "204..276.8 328.2..482.2 0.03881..0.2427",
    ],
    "one bucket, which is the first": [
        "0.0003273 [0 0.0005024]? 0.0004924 [4.885e-06 0.0009662] 0.0005575 [0.0003453 0.001] "
        "0.0006146 [0.0004472 0.001]? 0.000739 [0.0005024 0.001]?",
        "cv 0.1765 [0 0.9951]?, above 0.02347 [0 1] 0 [0 0] 0 [0 0] 0 [0 0] 0 [0 0]",
        "0.0001836..0.0004325 0.0005757..0.0009754 0.06515..0.4062",
    ],
    "one bucket without an end": [
        "6372 [5000 9177]? 9030 [5000 1.303e+04] 1.008e+04 [5000 2.107e+04] 1.099e+04 [5000 3.981e+04]? "
        "1.305e+04 [5000 2.139e+05]?",
        "cv 0.1563 [0 inf]?, above 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1]",
        "5143..8054 1.037e+04..2.441e+04 0.05747..0.4227",
    ],
    "a last bucket without an end": [
        "304.3 [200 500] 1989 [1000 2000] 3649 [2000 5000] 6251 [5000 1.591e+04] 1.481e+04 [5000 8.136e+04]?",
        "cv 1.075 [0.5241 inf], above 1 [1 1] 1 [1 1] 1 [1 1] 0.9989 [0.995 1] 0.8799 [0.78 0.94]",
        "319.7..319.7 1.241e+04..2.202e+04 0.9153..1.366",
    ],
    "few": [
        "38 [20 50]? 82.61 [50 100]? 134.5 [100 200]? 349 [280 500]? 349 [280 500]?",
        "cv 0.9167 [0.5675 1.232]?, above 1 [1 1] 1 [1 1] 0.9535 [0.8 1] 0.3097 [0.2 0.4] 0 [0 0]",
        "20.81..33.12 431.8..499.7 0.7704..1.008",
    ],
    "one": [
        "70 [70 70] 70 [70 70] 70 [70 70] 70 [70 70] 70 [70 70]",
        "cv 0.215 [0 0.3499]?, above 1 [1 1] 1 [1 1] 1 [1 1] 0 [0 0] 0 [0 0]",
        "50..54.75 85.23..99.98 0.1034..0.2892",
    ],
    "a sum at the lower edges": [
        "10.28 [10 11.54] 19.84 [10 20] 22.86 [20 22.86] 26.67 [20 26.67] 47.48 [20 50]",
        "cv 0.434 [0.2698 0.4685], above 1 [1 1] 1 [1 1] 0.2123 [0 0.5] 0 [0 0] 0 [0 0]",
        "10.17..10.5 44.97..48.08 0.3942..0.4713",
    ],
    "a sum at the upper edges": [
        "10.07 [10 20] 19.77 [18.5 20] 47 [47 50] 48.12 [48.12 50] 49.31 [48.5 50]",
        "cv 0.4657 [0.4161 0.4657], above 1 [1 1] 1 [1 1] 0.2877 [0 0.5] 0 [0 0] 0 [0 0]",
        "10.04..10.17 48.11..49.58 0.4726..0.5523",
    ],
    "counts that are not whole": [
        "13.74 [10 20] 33.03 [20 50] 47.79 [20 50] 65.43 [50 174.1] 97.57 [50 504.9]?",
        "cv 0.533 [0.2525 inf]?, above 1 [1 1] 1 [1 1] 0.56 [0.215 0.8193] 0.00306 [0 0.215] 0 [0 0.215]",
        "11.69..16.69 80.4..164.7 0.4379..0.75",
    ],
    "cut at a cap": [
        "28.44 [20 50] 149.6 [100 200] 254.4 [200 256] 256 [256 256] 256 [256 256]",
        "cv 0.4965 [0.319 0.9203], above 1 [1 1] 1 [1 1] 0.9792 [0.915 0.995] 0.572 [0.36 0.695] 0 [0 0]",
        "29.64..29.64 777.2..1146 0.4964..0.4966",
    ],
    "nearly all cut at a cap": [
        "138.4 [100 200] 256 [256 256] 256 [256 256] 256 [256 256] 256 [256 256]",
        "cv 0.1094 [0.05468 0.4952], above 1 [1 1] 1 [1 1] 1 [1 1] 0.9898 [0.92 1] 0 [0 0]",
        "129.4..160.1 1045..1709 0.09911..0.1208",
    ],
    "all cut at a cap": [
        "256 [256 256] 256 [256 256] 256 [256 256] 256 [256 256] 256 [256 256]",
        "cv 0.06551 [0 0.4566]?, above 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1] 0 [0 0]",
        "202.1..243 270.3..387.9 0.02423..0.1671",
    ],
    "one bucket, cut at a cap": [
        "215.4 [200 243.3] 244.8 [200 256] 255.5 [200 256] 256 [256 256] 256 [256 256]",
        "cv 0.04634 [0 0.4334], above 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1] 0 [0 0]",
        "213.8..222.4 278.7..287.2 0.04046..0.05272",
    ],
    "all of the last bucket cut at a cap": [
        "57.14 [50 100] 93.3 [76.29 100] 200 [200 200] 200 [200 200] 200 [200 200]",
        "cv 0.4563 [0.269 0.4811], above 1 [1 1] 1 [1 1] 1 [1 1] 0.09574 [0 0.4] 0 [0 0]",
        "56.45..62.68 156..182.2 0.4431..0.4705",
    ],
    "wide, without an end": [
        "45.5 [20 50] 1978 [1000 2000] 6589 [5000 3.352e+04] 1.9e+04 [5000 7.426e+04] 1.057e+05 [5000 4.898e+05]?",
        "cv 3.096 [1.181 inf]?, above 1 [1 1] 1 [1 1] 0.9905 [0.98 0.995] 0.9339 [0.9 0.95] 0.7206 [0.65 0.78]",
        "50..50 7.863e+04..2.062e+05 2.437..4.004",
    ],
    "one bucket far beyond the last edge": [
        "5.275e+04 [5000 2.073e+05]? 1.682e+05 [5000 3.901e+05] 2.514e+05 [5000 7.511e+05]? "
        "3.575e+05 [5000 1.71e+06]? 7.164e+05 [5000 1.194e+07]?",
        "cv 0.6467 [0 inf]?, above 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1] 1 [1 1]",
        "9496..1.083e+05 2.847e+05..7.571e+06 0.2224..2.559",
    ],
    "a few enormous ones": [
        "14.61 [10 20] 19.95 [10 20] 33.7 [20 50] 70.25 [50 5622] 5801 [50 5.02e+04]?",
        "cv 11.86 [2.511 inf]?, above 1 [1 1] 1 [1 1] 0.3054 [0.125 0.5] 0.07763 [0 0.125] 0.02883 [0 0.125]",
        "11.9..16.84 1237..1.069e+04 6.738..17.14",
    ],
    "two": [
        "64.94 [50 100]? 64.94 [50 100]? 154 [120 170]? 154 [120 170]? 154 [120 170]?",
        "cv 0.4437 [0.09091 0.6199]?, above 1 [1 1] 1 [1 1] 1 [1 1] 0.3462 [0 0.5] 0 [0 0]",
        "50.17..51.67 195.9..199.6 0.3891..0.4876",
    ],
    "a hump of three buckets, and another": [
        "1.314 [1 2] 787.1 [500 1000] 1003 [1000 1730] 1265 [1000 2000] 1771 [1000 2000]",
        "cv 0.7551 [0.6683 1.124], above 1 [0.995 1] 1 [0.995 1] 0.7 [0.7 0.7] 0.7 [0.7 0.7] 0.5687 [0.255 0.68]",
        "1.358..1.358 1824..1824 0.7522..0.765",
    ],
    "the first bucket, then nothing": [
        "0.0001469 [0 0.001]? 0.2456 [0.1 0.25] 0.4457 [0.25 0.5] 0.6338 [0.5 0.75] 1.067 [1 2.5]",
        "cv 1.055 [0.9251 1.56], above 0.729 [0.6 1] 0.4421 [0.2 0.5] 0 [0 0] 0 [0 0] 0 [0 0]",
        "3.754e-05..0.0003721 1.069..1.414 1.026..1.128",
    ],
}


@pytest.mark.parametrize("name", SHAPES)
def test_each_histogram_is_told_as_ever(name: str) -> None:
    assert said(*SHAPES[name]) == SAID[name]


if __name__ == "__main__":
    for name, given in SHAPES.items():
        rows = "".join(f'        "{row}",\n' for row in said(*given))
        print(f'    "{name}": [\n{rows}    ],')
