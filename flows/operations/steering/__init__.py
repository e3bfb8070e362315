"""Plans that follow clients as they move their cuts: when, for what, simulated and live."""
