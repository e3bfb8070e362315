"""Tolerances of planning: from which distance on two numbers are different. All are relative.

`verify` has its own, since it checks what planners say.
"""

EXACT = 1e-12
"""Numbers that the same sums give in another order are this close."""
ROUNDING = 1e-9
"""Sums of many floats are this close: rates, shares, costs."""
SOLVED = 1e-7
"""Values of a solver are this close to what its rows say, and to whole numbers."""
ROUND_OFF_US = 1e-6
"""Absolute: a sum of whole µs is this close to a limit that is no whole number of them."""
