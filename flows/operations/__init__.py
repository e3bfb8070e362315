"""Operations that keep a running system on a fitting plan: measurement, replanning."""
