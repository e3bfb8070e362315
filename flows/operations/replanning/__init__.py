"""From measured rates to the decision whether a new plan is worth a rollout."""
