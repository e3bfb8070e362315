"""Numbers stated in the PPipe paper (ATC 2025), as shares.

Sections 7.2 (figures 6 to 8), 7.4 (figure 10) and 7.6 (figure 13). Gains are of `pool` over the
planner named, per cluster HC1-L to HC4-L where there are four.
"""

FIGURE_6 = {
    ("Poisson", "pool"): 0.965,
    ("Poisson", "dart-r"): 0.749,
    ("Poisson", "no-partitioning"): 0.668,
    ("Bursty", "pool"): 0.903,
    ("Bursty", "dart-r"): 0.694,
    ("Bursty", "no-partitioning"): 0.611,
}
FIGURE_6_GAINS = {
    ("Poisson", "no-partitioning"): (0.649, 0.348, 0.467, 0.455),
    ("Poisson", "dart-r"): (0.472, 0.173, 0.348, 0.293),
    ("Bursty", "no-partitioning"): (1.616, 0.341, 0.504, 0.541),
    ("Bursty", "dart-r"): (0.504, 0.181, 0.402, 0.345),
}
FIGURE_7 = {"pool": 0.95, "dart-r": 0.55, "no-partitioning": 0.45}  # HC1-L, 99 % attainment
FIGURE_8 = {"pool": 0.736, "dart-r": 0.295, "no-partitioning": 0.081}  # low class
FIGURE_10 = {"reservation": 0.92, "reactive": 0.71}
FIGURE_13_RATIO = {2: 0.6403, 12: 0.0564}  # high-class GPUs of 16: gain over no-partitioning
FIGURE_13_MARGIN = {0.2: 0.249, 0.4: 0.528, 0.6: 0.164}
HIGH_CLASSES = ("L4", "V100")
